"""Measures a lower bound of epsilon alongside the proved upper one.

  python -m tff_pipelines.audit
  python -m tff_pipelines.audit --mechanism=skellam-kernels,krr-answer \\
      --epsilon=1 --trials=1000000
  python -m tff_pipelines.audit --run=run

The shipped encoders and decoders draw single releases many times, with a client at its
full norm and without it. A test is chosen on the first half of the outputs; what it finds
in the second half proves a lower bound of epsilon with 95% confidence, by intervals of
Clopper and Pearson. The noise is calibrated to --epsilon, so a sound mechanism has a
bound a little below it, the nearer the more trials. Where the law of the noise is known
in full, its variance is tested, too.

--run audits a run of train with --canaries: how well what it released tells which of the
canaries took part.

Exit code 1 if a claim is refuted. An audit can refute a claim, and never prove one.
"""

from tff_pipelines.audit.settings import AuditSettings
from tff_pipelines.experiment import cli

main = cli.program(__name__, AuditSettings, 'tff_pipelines.audit.run:audit')

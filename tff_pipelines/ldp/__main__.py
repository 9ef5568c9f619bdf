"""Learns from locally private answers of data owners to public queries (LDP-DL).

  python -m tff_pipelines.ldp
  python -m tff_pipelines.ldp --task=mnist --data_path=mnist.npz \\
      --num_clients=1000 --clients_per_query=2 --epsilon=5 --output_dir=run
  python -m tff_pipelines.ldp --mechanism=laplace --epsilon_per_query=1 \\
      --epsilon=4 --sampling=random

Every owner trains a teacher on its own records. Groups of owners are asked,
alternately, about public images; each perturbs its soft labels before they leave it,
so that the guarantee holds for every owner against any observer. A student learns
from the answers and, with --sampling=active, says what to ask next. The run stops when
the budget, the images or --max_queries are used up, or at --target_accuracy.

The output folder gets the answers, a privacy ledger, metrics, a summary (JSON), a report
and a figure. A run that was stopped, in whatever way, continues with --resume; answers
are charged before they are given, so those that a crash lost have been paid for.
"""

from tff_pipelines.experiment import cli
from tff_pipelines.ldp.settings import LdpSettings

main = cli.program(__name__, LdpSettings, 'tff_pipelines.ldp.run:experiment')

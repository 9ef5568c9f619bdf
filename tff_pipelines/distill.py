"""Distils between parties that keep their records and their models (FedMD).

Parties with models of different architectures exchange predictions on public
records, under secure aggregation, and learn from their mean. Modes: nfdp, every
party trains on a random draw of its records, which is noise-free differential
privacy (arXiv 2009.05537); ldp, every party adds noise to its predictions; np, no
privacy; centralized, all records in one place.

  python -m tff_pipelines.distill
  python -m tff_pipelines.distill --pair=cifar --data_dir=$DATA_DIR \\
      --mode=nfdp --knowledge=argmax --subset_size=60 --output_dir=run
  python -m tff_pipelines.distill --pair=mnist_letters --data_dir=$DATA_DIR \\
      --split=noniid --mode=np

The output folder gets checkpoints, a privacy ledger, metrics (CSV and
TensorBoard), a summary (JSON) and a picture. A run that was stopped, in whatever
way, goes on with --resume.

Exit codes: 0; 2 for a wrong flag, bad data or a folder that can't be used.
"""

from absl import flags

from aggregators import prediction_params
from tasks import fedmd_data
from tff_pipelines import cli
from tff_pipelines import distill_plan

_PRIVACY = 'privacy: '
_ROUNDS = 'rounds: '
_TRAINING = 'training: '
_DATA = 'data: '
_RUN = 'run: '

_DEFAULTS = distill_plan.DistillConfig()
# Public records of a round that is not told otherwise: of small data sets fewer.
_PUBLIC_PER_ROUND = {'digits': 200}
# Pairs whose images mean the same in a mirror.
_MIRRORED = ('cifar',)

flags.DEFINE_enum('mode', _DEFAULTS.mode, distill_plan.MODES, _PRIVACY +
                  'nfdp: parties train on a random draw of their records. ldp: '
                  'parties add noise to their predictions. np: no privacy. '
                  'centralized: all records in one place.')
flags.DEFINE_integer('subset_size', None, _PRIVACY + 'Draws of each party, for '
                     'mode=nfdp; as many as it has records if not given.')
flags.DEFINE_bool('replacement', _DEFAULTS.replacement, _PRIVACY + 'Whether a '
                  'record may be drawn more than once.')
flags.DEFINE_float('epsilon', None, _PRIVACY + 'Over all rounds, for mode=ldp; that '
                   'of mode=nfdp with this --subset_size if not given.')
flags.DEFINE_float('delta', None, _PRIVACY + 'Likewise.')
flags.DEFINE_enum('noise', _DEFAULTS.noise, distill_plan.LDP_NOISES, _PRIVACY +
                  'For mode=ldp.')
flags.DEFINE_integer('seed', None, _PRIVACY + 'Simulation seed: makes the run '
                     'repeatable and void of any guarantee.')

flags.DEFINE_enum('knowledge', _DEFAULTS.knowledge, prediction_params.KNOWLEDGE,
                  _ROUNDS + 'What parties share of their predictions.')
flags.DEFINE_integer('parties', _DEFAULTS.parties, _ROUNDS + 'How many.')
flags.DEFINE_integer('rounds', _DEFAULTS.rounds, _ROUNDS + 'Of digest, revisit and '
                     'predict, after the parties\' own initial training.')
flags.DEFINE_integer('initial_epochs', _DEFAULTS.initial_epochs, _ROUNDS +
                     'Of a party over its own records, when it first takes part.')
flags.DEFINE_integer('digest_epochs', _DEFAULTS.digest_epochs, _ROUNDS +
                     'Over the public records and their consensus, each round.')
flags.DEFINE_integer('revisit_epochs', _DEFAULTS.revisit_epochs, _ROUNDS +
                     'Over a party\'s own records, each round.')
flags.DEFINE_integer('public_per_round', None, _ROUNDS + 'Public records (5000; '
                     '200 of the digits).')
flags.DEFINE_enum('weighting', _DEFAULTS.weighting, distill_plan.WEIGHTINGS, _ROUNDS +
                  'Of the parties in the consensus: equal, by their numbers of '
                  'records, or by the public records of the last round on which '
                  'they agree with it.')
flags.DEFINE_integer('bits', _DEFAULTS.bits, _ROUNDS + 'Of an entry of the sum of '
                     'predictions, 4 to 30; votes take fewer.')
flags.DEFINE_float('logit_bound', _DEFAULTS.logit_bound, _ROUNDS + 'Logits are '
                   'clipped to it.')
flags.DEFINE_float('simulated_dropout_rate', 0.0, _ROUNDS + 'Part of the parties '
                   'that miss a round.')

flags.DEFINE_list('architectures', list(_DEFAULTS.architectures), _TRAINING +
                  'Networks that the parties take in turns: conv2, conv3, mixed3, '
                  'dense2, dense3.')
flags.DEFINE_integer('pretrain_epochs', _DEFAULTS.pretrain_epochs, _TRAINING +
                     'Over the labelled public records.')
flags.DEFINE_float('pretrain_learning_rate', _DEFAULTS.pretrain_learning_rate,
                   _TRAINING + 'Of Adam.')
flags.DEFINE_integer('pretrain_batch_size', _DEFAULTS.pretrain_batch_size,
                     _TRAINING + 'Examples of a step.')
flags.DEFINE_float('private_learning_rate', _DEFAULTS.private_learning_rate,
                   _TRAINING + 'Of Adam, on a party\'s own records.')
flags.DEFINE_integer('private_batch_size', _DEFAULTS.private_batch_size, _TRAINING +
                     'Examples of a step.')
flags.DEFINE_float('digest_learning_rate', _DEFAULTS.digest_learning_rate,
                   _TRAINING + 'Of Adam, on the consensus.')
flags.DEFINE_integer('digest_batch_size', _DEFAULTS.digest_batch_size, _TRAINING +
                     'Examples of a step.')
flags.DEFINE_float('final_rate_factor', _DEFAULTS.final_rate_factor, _TRAINING +
                   'What both learning rates have come down to in the last round, '
                   'in equal steps; 1 to keep them.')
flags.DEFINE_bool('mirror', None, _TRAINING + 'Show images mirrored half of the time '
                  '(for --pair=cifar); the consensus on an image counts for its '
                  'mirror image too.')
flags.DEFINE_integer('initial_weights_seed', 0, _TRAINING + 'Of the public models '
                     'that parties start from.')

flags.DEFINE_enum('pair', _DEFAULTS.pair, tuple(fedmd_data.PAIRS), _DATA + 'Public and '
                  'private data sets: digits (embedded), MNIST and letters a to f, '
                  'or CIFAR-10 and CIFAR-100.')
flags.DEFINE_enum('split', _DEFAULTS.split, fedmd_data.SPLITS, _DATA + 'iid: random '
                  'records to each party. noniid: a writer each, or one fine class '
                  'of every class.')
flags.DEFINE_integer('records_per_party', None, _DATA + 'Private records of each.')
flags.DEFINE_string('data_dir', None, _DATA + 'Folder of the .npz files.')
flags.DEFINE_string('cache_dir', None, _DATA + 'Folder of TFF\'s federated EMNIST, to '
                    'take the letters from it.')
flags.DEFINE_integer('data_seed', 0, _DATA + 'Of the split.')

flags.DEFINE_integer('num_workers', _DEFAULTS.num_workers, _RUN + 'TFF worker '
                     'processes that share the parties of a round, at most 64; 0: all '
                     'is computed in this process, which is the fastest on one '
                     'machine.')
flags.DEFINE_string('output_dir', None, _RUN + 'Folder of checkpoints, ledger, '
                    'metrics, summary and picture; a new one below out/ if not '
                    'given.')
flags.DEFINE_bool('resume', False, _RUN + 'Continue the run in --output_dir; start '
                  'it if there is none.')

FLAGS = flags.FLAGS


def config() -> tuple[distill_plan.DistillConfig, frozenset[str]]:
  """The flags, and the names of those that the user gave."""
  names = list(distill_plan.DistillConfig.__dataclass_fields__)
  values = {name: FLAGS[name].value for name in names}
  values['architectures'] = tuple(values['architectures'])
  if values['public_per_round'] is None:
    values['public_per_round'] = _PUBLIC_PER_ROUND.get(
        FLAGS.pair, _DEFAULTS.public_per_round)
  if values['mirror'] is None:
    values['mirror'] = FLAGS.pair in _MIRRORED
  given = frozenset(name for name in names if FLAGS[name].present)
  return distill_plan.DistillConfig(**values), given


def main(argv: list[str]) -> int:
  del argv  # Unused.
  found, given = config()
  # TensorFlow takes seconds to import: --help and wrong flags need not wait.
  from tff_pipelines import distillation  # pylint: disable=g-import-not-at-top
  distillation.distill(found, given)
  return 0


if __name__ == '__main__':
  cli.run(main)

"""The privacy statement of a model, in JSON and in plain words, to be published.

All comes from the run's summary; nothing of the operator's (cohorts, times, paths,
diagnostics) is among `KEYS`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tff_pipelines.accounting.guarantees.guarantee import Guarantee

VERSION = 1
JSON, TEXT = 'privacy.json', 'PRIVACY.md'

# Keys of the summary, of the same meaning.
_COPIED = (
    'task', 'algorithm', 'model', 'mechanism', 'epsilon', 'epsilon_server',
    'epsilon_server_any_cohorts', 'epsilon_participant', 'clients_per_person',
    'epsilon_person', 'epsilon_server_person', 'delta', 'adjacency',
    'adjacency_in_words', 'privacy_unit', 'observers', 'observers_server',
    'observers_participant', 'least_cohort', 'sampling',
    'trust_model', 'secure_aggregation', 'accountant', 'amplification', 'source')
KEYS = ('version', 'private', 'reasons', *_COPIED, 'caveats')

# Caveats about files of the operator, which are no part of an export.
_OF_THE_OPERATOR = (
    'diagnostics outside the guarantee', 'held-out metrics not protected',
    'labels of clients drawn')
# Caveats that count or name, and their sentence in public.
_IN_PUBLIC = {
    'bad clients skipped': 'bad data were left out, outside the guarantee',
    'answers lost': 'answers were lost in an interruption; they count as given',
    'vote repeated': 'the vote was interrupted and repeated; every time counts',
}
_SEEDED = 'seeded: not private'
# Caveats of what reached the model and is in no epsilon: it is not private.
_OUTSIDE = (
    'classes counted in private labels', 'release of another run',
    'vocabulary outside the guarantee', 'warm start outside the guarantee')
_STOPPED, _DIAGNOSTICS = 'stopped early', 'diagnostics outside the guarantee'

STOPPED = 'when to stop was decided by metrics that no epsilon protects'
PARTY = ('it is the own model of one party, trained on its records without noise, for '
         'the party alone; the guarantee is of what the party shared')


def statement(summary: Mapping[str, Any],
              not_private: Sequence[str] = ()) -> dict[str, Any]:
  """The statement of a finished run's summary as JSON; its keys are KEYS.

  `not_private` are reasons, besides those that the caveats tell, why the model reveals
  more than the run's guarantee says.
  """
  reasons = list(map(str, not_private))
  if _SEEDED in summary['caveats']:
    reasons.insert(0, 'the run was seeded: its noise is predictable')
  elif summary['epsilon'] is None:
    reasons.insert(0, 'no finite epsilon is guaranteed' if summary['adjacency'] else
                   'it was trained without a mechanism that protects privacy')
  named = dict(zip(summary['caveats'], summary['warnings'], strict=True))
  reasons += [text for name, text in named.items()
              if name in _OUTSIDE and text not in reasons]
  if _STOPPED in named and (summary['outside_guarantee'] or _DIAGNOSTICS in named):
    reasons.append(STOPPED)
  caveats = [
      {'name': name, 'text': _IN_PUBLIC.get(name, text)}
      for name, text in zip(summary['caveats'], summary['warnings'], strict=True)
      if name not in _OF_THE_OPERATOR]
  return {'version': VERSION, 'private': not reasons, 'reasons': reasons,
          **{name: summary[name] for name in _COPIED}, 'caveats': caveats}


def in_words(content: Mapping[str, Any]) -> str:
  """The statement as Markdown, for readers who know no paper on it."""
  heading = ('Privacy of this model' if content['private'] else
             'This model is not private')
  lines = [f'# {heading}', '', f'Model `{content["model"]}` of the task '
           f'`{content["task"]}`, trained by `{content["algorithm"]}`.', '']
  if not content['private']:
    lines += ['**Do not publish it as private.** Why:', '',
              *(f'- {reason}' for reason in content['reasons']), '']
  if content['epsilon'] is not None:
    if not content['private']:
      lines += ['What the training guarantees apart from that:', '']
    lines += Guarantee.from_json(content).public_lines()
  lines += [f'- {label}: {content[name]}' for label, name in (
      ('Privacy unit', 'privacy_unit'), ('Mechanism', 'mechanism'),
      ('Sampling', 'sampling'), ('Trust', 'trust_model'),
      ('Secure aggregation', 'secure_aggregation'), ('Accountant', 'accountant'),
      ('Source of the bounds', 'source')) if content[name] is not None]
  if content['caveats']:
    lines += ['', '## What to know', '', *(
        f'- **{caveat["name"]}**: {caveat["text"]}' for caveat in content['caveats'])]
  return '\n'.join(lines) + '\n'

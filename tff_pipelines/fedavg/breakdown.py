"""How predictions divide over classes, as JSON and as a few lines for people."""

from typing import Any, Mapping

import numpy as np

from tasks.task import Breakdown

# More classes than this are cut to the most frequent ones.
_MOST_CLASSES = 100
_MOST_PAIRS = 20
# Of what is printed.
_PRINTED_CLASSES = 10
_PRINTED_PAIRS = 5
_PRINTED_WEAKEST = 3


def describe(breakdown: Breakdown, counts: Mapping[str, np.ndarray], *,
             outside_guarantee: bool) -> dict[str, Any]:
  """A held-out set's breakdown as JSON.

  Args:
    breakdown: Of the model.
    counts: As Evaluator.breakdown has them.
    outside_guarantee: Whether no epsilon protects those whose examples they are.

  Returns:
    `count`, how many predictions there are; `constant`, what part would be right
    if they were always the same; `classes`, the most frequent first, and `groups`,
    each with how often it occurred (`count`), was `right` and was `predicted`; and
    where pairs were counted, `confusions`, the most frequent mistakes.
  """
  occurred, right, predicted = (
      counts[name] for name in ('occurred', 'right', 'predicted'))
  total = occurred.sum()
  order = np.argsort(-occurred, kind='stable')
  order = order[occurred[order] > 0]
  most = occurred[order[:breakdown.guesses]].sum()
  found = {
      'kind': breakdown.kind, 'outside_guarantee': outside_guarantee,
      'count': int(total), 'constant': float(most / total) if total else None,
      'classes': [
          dict(name=breakdown.names[i], count=int(occurred[i]),
               right=int(right[i]), predicted=int(predicted[i]))
          for i in order[:_MOST_CLASSES].tolist()],
      'groups': [], 'confusions': [],
  }
  confusion = counts.get('confusion')
  for name, members in breakdown.groups.items():
    members = list(members)
    group = dict(
        name=name, count=int(occurred[members].sum()),
        right=int(right[members].sum()), predicted=int(predicted[members].sum()))
    if confusion is not None:
      group['taken_for'] = {
          other: int(confusion[np.ix_(members, list(others))].sum())
          for other, others in breakdown.groups.items()}
    if group['count'] or group['predicted']:
      found['groups'].append(group)
  if confusion is not None:
    mistakes = confusion - np.diag(np.diag(confusion))
    pairs = np.argsort(-mistakes, axis=None, kind='stable')[:_MOST_PAIRS]
    for true, guess in zip(*np.unravel_index(pairs, mistakes.shape)):
      if mistakes[true, guess] > 0:
        found['confusions'].append(dict(
            true=breakdown.names[true], predicted=breakdown.names[guess],
            count=int(mistakes[true, guess])))
  return found


def lines(set_name: str, found: Mapping[str, Any]) -> list[str]:
  """For people: groups, the most frequent classes and mistakes of one set."""
  if not found['count']:
    return []
  outside = ', outside the guarantee' if found['outside_guarantee'] else ''
  kind = found['kind']
  head = f'{set_name}{outside}'
  result = []
  # Others were predicted only, which summary.json has.
  groups = [group for group in found['groups'] if group['count']]
  if groups:
    result.append(f'{head}, right by group: ' + '; '.join(map(_share, groups)))
  result.append(
      f'{head}, right by {kind}, of {found["count"]:,}: ' + '; '.join(
          map(_share, found['classes'][:_PRINTED_CLASSES]))
      + f'; the same for all would be {100 * found["constant"]:.1f}%')
  if found['confusions']:
    result.append(f'{head}, most frequent mistakes: ' + '; '.join(
        f'{pair["true"]!r} taken for {pair["predicted"]!r} {pair["count"]:,}'
        for pair in found['confusions'][:_PRINTED_PAIRS]))
  return result


def _share(entry: Mapping[str, Any]) -> str:
  return (f'{entry["name"]!r} {100 * entry["right"] / entry["count"]:.0f}% '
          f'of {entry["count"]:,}')


def weakest(found: Mapping[str, Any]) -> str | None:
  """The classes with the lowest accuracy in one line; None if there are none.

  Args:
    found: A set's breakdown, from `describe`.
  """
  classes = [entry for entry in found['classes'] if entry['count']]
  if not classes:
    return None
  worst = sorted(classes, key=lambda entry: entry['right'] / entry['count'])
  return f'{found["kind"]} ' + ', '.join(map(_share, worst[:_PRINTED_WEAKEST]))

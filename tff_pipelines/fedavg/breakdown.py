"""How predictions divide over classes, as JSON and as a few lines for people."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tasks.task import Breakdown

# More classes than this are cut to the most frequent ones.
_MOST_CLASSES = 100
_MOST_PAIRS = 20
# Maximum numbers in the lines.
_PRINTED_CLASSES = 10
_PRINTED_PAIRS = 5
_PRINTED_WEAKEST = 3


def describe(breakdown: Breakdown, counts: Mapping[str, np.ndarray], *,
             outside_guarantee: bool) -> dict[str, Any]:
  """A held-out set's breakdown as JSON.

  Args:
    breakdown: Breakdown of the model.
    counts: As Evaluator.breakdown returns them.
    outside_guarantee: Whether no epsilon protects those whose examples they are.

  Returns:
    `count`, the number of predictions; `constant`, the fraction that would be right
    if they were always the same; `classes`, the most frequent first, and `groups`,
    each with how often it occurred (`count`), was `right` and was `predicted`; and
    where pairs were counted, `confusions`, the most frequent mistakes.
  """
  occurred, confusion = counts['occurred'], counts.get('confusion')
  total = occurred.sum()
  order = np.argsort(-occurred, kind='stable')
  order = order[occurred[order] > 0]
  most = occurred[order[:breakdown.guesses]].sum()

  def entry(name: str, members: Sequence[int]) -> dict[str, Any]:
    return dict(name=name, **{
        key: int(counts[source][members].sum()) for key, source in (
            ('count', 'occurred'), ('right', 'right'), ('predicted', 'predicted'))})

  groups, confusions = [], []
  for name, members in breakdown.groups.items():
    members = list(members)
    group = entry(name, members)
    if confusion is not None:
      group['taken_for'] = {
          other: int(confusion[np.ix_(members, list(others))].sum())
          for other, others in breakdown.groups.items()}
    if group['count'] or group['predicted']:
      groups.append(group)
  if confusion is not None:
    mistakes = confusion - np.diag(np.diag(confusion))
    pairs = np.argsort(-mistakes, axis=None, kind='stable')[:_MOST_PAIRS]
    confusions = [
        dict(true=breakdown.names[true], predicted=breakdown.names[guess],
             count=int(mistakes[true, guess]))
        for true, guess in zip(*np.unravel_index(pairs, mistakes.shape))
        if mistakes[true, guess] > 0]
  return {
      'kind': breakdown.kind, 'outside_guarantee': outside_guarantee,
      'count': int(total), 'constant': float(most / total) if total else None,
      'classes': [entry(breakdown.names[i], [i])
                  for i in order[:_MOST_CLASSES].tolist()],
      'groups': groups, 'confusions': confusions}


def lines(set_name: str, described: Mapping[str, Any]) -> list[str]:
  """Lines for people: groups, the most frequent classes and mistakes of one set."""
  if not described['count']:
    return []
  head = set_name + (
      ', outside the guarantee' if described['outside_guarantee'] else '')
  result = []
  # Others were predicted only, which summary.json has.
  groups = [group for group in described['groups'] if group['count']]
  if groups:
    result.append(f'{head}, right by group: ' + '; '.join(map(_share, groups)))
  result.append(
      f'{head}, right by {described["kind"]}, of {described["count"]:,}: ' + '; '.join(
          map(_share, described['classes'][:_PRINTED_CLASSES]))
      + f'; the same for all would be {100 * described["constant"]:.1f}%')
  if described['confusions']:
    result.append(f'{head}, most frequent mistakes: ' + '; '.join(
        f'{pair["true"]!r} taken for {pair["predicted"]!r} {pair["count"]:,}'
        for pair in described['confusions'][:_PRINTED_PAIRS]))
  return result


def _share(entry: Mapping[str, Any]) -> str:
  return (f'{entry["name"]!r} {100 * entry["right"] / entry["count"]:.0f}% '
          f'of {entry["count"]:,}')


def weakest(described: Mapping[str, Any]) -> str | None:
  """The classes with the lowest accuracy in one line; None if there are none.

  Args:
    described: A set's breakdown, from `describe`; its classes have occurred.
  """
  worst = sorted(described['classes'],
                 key=lambda entry: entry['right'] / entry['count'])[:_PRINTED_WEAKEST]
  return f'{described["kind"]} ' + ', '.join(map(_share, worst)) if worst else None

"""The privacy statement of a run, for who must decide: one page, in JSON and in words.

All comes from the run's summary; nothing of the operator's (cohorts, number of clients,
times, paths, diagnostics) is among `KEYS`. Whether a model may be called private
follows from rules, each of which has a name.
"""

from collections.abc import Iterator, Mapping, Sequence
import itertools
import math
import operator
from typing import Any

from tff_pipelines.accounting.events import base
from tff_pipelines.accounting.guarantees import bounds
from tff_pipelines.accounting.guarantees.bounds import Bound
from tff_pipelines.accounting.guarantees.guarantee import (
    DRAWN, Guarantee, detected, in_words as number_in_words)
from tff_pipelines.common import decimals
from tff_pipelines.experiment import measured

VERSION = 1
JSON, TEXT = 'privacy.json', 'PRIVACY.md'
# False alarms of the test by which epsilon is explained.
FALSE_ALARMS = 0.01

# Keys of the summary, of the same meaning.
_COPIED = (
    'task', 'algorithm', 'model', 'mechanism', 'epsilon', 'epsilon_server',
    'epsilon_server_any_cohorts', 'epsilon_participant', 'clients_per_person',
    'epsilon_person', 'epsilon_server_person', 'delta', 'adjacency',
    'adjacency_in_words', 'privacy_unit', 'observers', 'observers_server',
    'observers_participant', 'least_cohort', 'sampling', 'trust_model',
    'secure_aggregation', 'sampler', 'accountant', 'amplification', 'source', 'about')
KEYS = ('version', 'private', 'reasons', 'rules', *_COPIED, 'earlier', 'audit', 'caveats')

# Beginnings of caveats about files and metrics of the operator, which are no part of an
# export.
_OF_THE_OPERATOR = ('diagnostics outside the guarantee', 'held-out metrics not protected',
                    'labels of clients drawn', 'no better than a constant')
# Caveats that count or name, and their sentence in public.
_IN_PUBLIC = {'answers lost': 'answers were lost in an interruption; they count as given',
              'vote repeated': 'the vote was interrupted and repeated; every time counts'}
# Caveats of what reached the model and is in no epsilon: it is not private.
_OUTSIDE = ('classes counted in private labels', 'release of another run',
            'vocabulary outside the guarantee', 'warm start outside the guarantee')
_LARGE_DELTA = ('delta not below 1/population', 'delta not below 1/records',
                'delta to be compared with the records')
_STOPPED, _DIAGNOSTICS = 'stopped early', 'diagnostics outside the guarantee'

STOPPED = 'how many rounds to run was decided by metrics that no epsilon protects'
PARTY = ('it is the own model of one party, trained on its records without noise, for '
         'the party alone; the guarantee is of what the party shared')


def _named(summary: Mapping[str, Any]) -> dict[str, str]:
  """Name -> text of the caveats."""
  return dict(zip(summary['caveats'], summary['warnings'], strict=True))


def _rules(summary: Mapping[str, Any], earlier: Mapping | None,
           audit: Sequence[Mapping[str, Any]] | None) -> dict[str, list[str]]:
  """The rules of the verdict, each with the reasons why a summary breaks it."""
  named, delta = _named(summary), summary['delta']
  is_seeded, has_noise = 'seeded: not private' in named, bool(summary['adjacency'])
  own = 'epsilon_participant' if summary['sampling'] == 'records' and (
      summary['observers_participant']) else 'epsilon'  # Of silos the largest.
  pairs = [(summary[own], delta)] * has_noise * (not is_seeded) + (
      [(earlier['epsilon'], earlier['delta'])] if earlier else [])
  finite = [pair for pair in pairs if pair[0] is not None]
  # Number of records may be private: the accountant judged the run's own delta by it.
  clients = summary['population'] or math.inf
  large_delta = bool(named.keys() & _LARGE_DELTA) or any(
      other > delta if summary['adjacency'] in base.OF_RECORDS else
      float(decimals.rounded_up(other, 3)) * clients >= 1 for _, other in finite)
  certain = [epsilon for epsilon, delta in finite
             if detected(epsilon, delta, FALSE_ALARMS) == 100]
  stopped = named.keys() & {_STOPPED, 'rounds added'} and (
      summary['outside_guarantee'] or _DIAGNOSTICS in named)
  return {
      'a mechanism adds noise or hides whom it samples': [
          'it was trained without a mechanism that protects privacy'
      ] * (not is_seeded and not has_noise),
      'the noise is unpredictable': [
          'the run was seeded: its noise is predictable'] * is_seeded,
      'epsilon is finite, with all releases that are stated': [
          'no finite epsilon is guaranteed'] * (finite != pairs),
      'delta is below 1 over the number of those protected': [
          'delta is not known to be below 1 over the number of those who are protected: '
          'to give all data of one of them away may be within it'] * large_delta,
      'a test with 1% false alarms can\'t detect everyone': [
          f'at epsilon {decimals.epsilon(max(certain))} a test with '
          f'{FALSE_ALARMS:.0%} false alarms may detect everyone'] if certain else [],
      'all that reached the model is in epsilon': [
          text for name, text in named.items() if name in _OUTSIDE],
      'no audit refutes epsilon': [
          measured.REFUTED] * any(map(measured.refutes, audit or ())),
      'the mechanism is one of this project': [
          text for name, text in named.items() if name == 'aggregation as stated'],
      'no unprotected metric decided when to stop': [STOPPED] * bool(stopped)}


def statement(summary: Mapping[str, Any], not_private: Sequence[str] = (),
              earlier: Mapping[str, Any] | None = None,
              audit: Sequence[Mapping[str, Any]] | None = None) -> dict[str, Any]:
  """The statement of a finished run's summary as JSON; its keys are KEYS.

  Args:
    summary: As in docs/summary.md.
    not_private: Reasons, in addition to those of the rules, why the model reveals more
      than the run's guarantee says.
    earlier: The ledgers of earlier releases about the same people, their number as
      `count`, with `epsilon` and `delta` of all releases together; None if none are
      stated.
    audit: Findings of a run of the same settings with canaries; None for the summary's
      own, if it has any.
  """
  findings = summary['details'].get('audit') if audit is None else audit
  rules = _rules(summary, earlier, findings)
  reasons = list(dict.fromkeys([*itertools.chain(*rules.values()),
                                *map(str, not_private)]))
  caveats = [{'name': name, 'text': _IN_PUBLIC.get(name, text)}
             for name, text in _named(summary).items()
             if not name.startswith(_OF_THE_OPERATOR)]
  return {'version': VERSION, 'private': not reasons, 'reasons': reasons,
          'rules': {rule: not broken for rule, broken in rules.items()},
          **{name: summary[name] for name in _COPIED}, 'earlier': earlier, 'audit': findings and [
              {key: value for key, value in found.items() if key != 'curve'}
              for found in findings],
          'caveats': caveats}


def _bound(bound: Bound | None, delta: float, against: str) -> str:
  """An epsilon, against whom, and its meaning."""
  if bound is None:
    return f'**no epsilon** against {against}'
  return (f'**epsilon {number_in_words(bound)}, delta {decimals.rounded_up(delta)}** '
          f'against {against}: a test with {FALSE_ALARMS:.0%} false alarms detects at '
          f'most {detected(bound.epsilon, delta, FALSE_ALARMS):g}%')


def _bounds(content: Mapping[str, Any]) -> Iterator[str]:
  """All epsilons and what they mean."""
  guarantee = Guarantee.from_json(content)
  notes = {bounds.SERVER: '; rounds that an interruption may have shown them twice '
                          'count twice',
           bounds.PARTICIPANT: f'; {guarantee.cohorts}'}
  if guarantee.chosen is not None:
    notes[bounds.SERVER] += (f'. That is for {DRAWN}; epsilon is '
                             f'{number_in_words(guarantee.chosen)} whatever cohorts '
                             'the server chooses')
  for observer, bound, against in guarantee.stated():
    yield _bound(bound, guarantee.delta, against) + notes.get(observer, '')
  if guarantee.terms.observers_server is None:
    yield 'no other number is stated for the server'
  if guarantee.clients_per_person > 1:
    person, server = ('none' if bound is None else f'**{number_in_words(bound)}**'
                      for bound in (guarantee.person, guarantee.person_server))
    yield (f'for a person who owns {guarantee.clients_per_person} clients the first '
           f'epsilon is {person}, and the second {server}')


def _before(content: Mapping[str, Any]) -> str:
  if (earlier := content['earlier']) is None:
    return ('No earlier release about the same people is stated. All numbers are of '
            'this training alone: what else is released about them, such as other '
            'models, adds to them.')
  epsilon = earlier['epsilon']
  return (f'With {earlier["count"]} earlier ledgers about the same people, all releases '
          'together have ' + ('no finite epsilon.' if epsilon is None else
          f'**epsilon {decimals.epsilon(epsilon)} at delta '
          f'{decimals.rounded_up(earlier["delta"])}** against the first observers.'))


def parts(content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
  """The statement as (kind, text): 'title', 'heading', 'text' or 'item', ** for bold."""
  about = content['about']
  one = content['privacy_unit'].removeprefix('one ')
  unit = about.get('unit_name') or (one if content['sampling'] == 'records' else 'client')
  yield 'title', ('Privacy of this model' if content['private'] else
                  'This model is not private')
  if content['private']:
    first = list(_bounds(content))[2 if content['sampling'] == 'records' and (
        content['epsilon_participant'] is not None) else 0]
    yield 'text', f'**Verdict: private**, as all rules below hold: {first}.'
  else:
    yield 'text', '**Verdict: not private. Do not publish it as private.** Why:'
    yield from (('item', reason) for reason in content['reasons'])
  yield 'heading', 'Who is protected'
  described = '' if unit == one else f': {content["privacy_unit"]}'
  yield 'text', f'Each {unit}{described}.'
  if content['epsilon'] is not None:
    yield 'heading', 'Against whom'
    if not content['private']:
      yield 'text', 'What the training guarantees apart from that:'
    yield from (('item', line) for line in _bounds(content))
    yield 'text', Guarantee.from_json(content).meaning()
    if content['audit']:
      yield 'heading', 'Measured'
      yield 'text', ('Canaries, made-up clients each in or out by a coin, were added to a '
                     'run of these settings, and guessed from what it released. The bounds '
                     'and deltas are of that run. Such an audit may find a fault, and '
                     'never proves that there is none.')
      yield from (('item', line) for line in measured.lines(content['audit']))
    yield 'heading', 'Releases before'
    yield 'text', _before(content)
  yield 'heading', 'Who held raw rows'
  yield 'text', f'{about.get("raw_rows", "not recorded")}. Trust: {content["trust_model"]}.'
  yield 'heading', 'Facts'
  yield from (('item', f'{label}: {text}') for label, text in (
      ('Data', about.get('data_description')), ('Begun on', about.get('date')),
      ('Version', about.get('version')),
      ('Model', f'{content["model"]} of the task {content["task"]}, trained by '
                f'{content["algorithm"]}'),
      ('Mechanism', content['mechanism']), ('Noise', content['sampler']),
      ('Sampling', content['sampling']),
      ('Secure aggregation', content['secure_aggregation']),
      ('Accountant', content['accountant']), ('Source of the bounds', content['source']))
      if text is not None)
  if content['caveats']:
    yield 'heading', 'What to know'
    yield from (('item', f'**{caveat["name"]}**: {caveat["text"]}')
                for caveat in content['caveats'])
  yield 'heading', 'Rules of the verdict'
  yield from (('item', f'{rule}: {"yes" if holds else "no"}')
              for rule, holds in content['rules'].items())


_MARKS = {'title': '# ', 'heading': '## ', 'text': '', 'item': '- '}


def in_words(content: Mapping[str, Any]) -> str:
  """The statement as Markdown, for readers who know no paper on it."""
  blocks = []
  for kind, group in itertools.groupby(parts(content), operator.itemgetter(0)):
    lines = [f'{_MARKS[kind]}{text}' for _, text in group]
    blocks += ['\n'.join(lines)] if kind == 'item' else lines
  return '\n\n'.join(blocks) + '\n'

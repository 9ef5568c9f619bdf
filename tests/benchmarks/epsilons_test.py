"""The sweep of epsilons, and the attacks that it compares them with."""

import csv
import dataclasses
import json

import numpy as np
import pytest
from scipy import stats

from benchmarks import attacks, epsilons, worlds
from tff_pipelines.accounting.events import turns
from tff_pipelines.accounting.guarantees import answers

WRITERS = worlds.World(
    noise=attacks.Noise(variance=0.8633**2), sampling='poisson', population=539,
    cohort_size=100, rounds=50, delta=1 / 539)
EMNIST = worlds.World(
    noise=attacks.Noise(variance=0.7914**2), sampling='poisson', population=3400,
    cohort_size=100, rounds=1500, delta=1 / 3400)


@pytest.mark.parametrize('world, attack, changes, expected', [
    (WRITERS, worlds.outsiders, {}, 8.00), (WRITERS, worlds.server, {}, 18.75),
    (WRITERS, worlds.server, {'limit': 13}, 17.75),
    (WRITERS, worlds.server_any_cohorts, {}, 56.46),
    (WRITERS, worlds.server_any_cohorts, {'limit': 13}, 20.09),
    (WRITERS, worlds.participant, {}, 18.89),
    (WRITERS, worlds.participant, {'limit': 13}, 17.89),
    (WRITERS, worlds.person_server, {'person': 2}, 36.5),
    (WRITERS, worlds.person_server, {'person': 2, 'limit': 13}, 34.7),
    (EMNIST, worlds.outsiders, {}, 10.0), (EMNIST, worlds.server, {}, 71.8),
    (EMNIST, worlds.server_any_cohorts, {}, 1364.7)])
def test_attacks_attain_the_known_numbers(world, attack, changes, expected):
  found = attack(dataclasses.replace(world, **changes))
  assert 0.998 * expected < found < 1.0007 * expected


@pytest.mark.parametrize('changes', [
    {'sampling': 'poisson'}, {'sampling': 'poisson', 'limit': 1},
    {'sampling': 'poisson', 'least': 2}, {'sampling': 'none', 'cohort_size': 4},
    {'sampling': 'fixed', 'replaces': True}, {'sampling': 'epochs', 'cohort_size': 2}],
    ids=str)
def test_laws_of_cohorts_are_those_of_an_enumeration(changes):
  world = dataclasses.replace(
      WRITERS, population=4, cohort_size=3, rounds=2, person=2, delta=1e-3)
  world = dataclasses.replace(world, **changes)
  for key, enumerated in worlds.enumerated(world).items():
    found = worlds.ATTACKS[key](world)
    if world.sampling == 'epochs' and key in ('epsilon', 'epsilon_person'):
      assert 0.5 < found < enumerated  # A weaker attack.
    else:
      assert found == pytest.approx(enumerated, rel=5e-3), key


def test_enumerated_cohorts_of_epochs_have_each_client_equally_often():
  for cohorts in worlds.sequences('epochs', 4, 3, 2, None, None):
    counts = [sum(client in cohort for cohort in cohorts) for client in range(4)]
    assert sorted(counts) == [1, 1, 2, 2]


@pytest.mark.parametrize('variance, shift', [(0.4, 1), (9, 2), (900, 30)])
def test_tests_of_integers_are_those_of_their_probabilities(variance, shift):
  outputs = np.arange(-400, 400 + shift)
  one = stats.skellam.pmf(outputs - shift, variance / 2, variance / 2)
  other = stats.skellam.pmf(outputs, variance / 2, variance / 2)
  for epsilon in (0.1, 1.0, 2.0):
    exact = np.maximum(one - np.exp(epsilon) * other, 0).sum()
    found, = attacks.skellam_delta(
        epsilon, np.array([float(shift)]), np.array([float(variance)]))
    assert (1 - 1e-4) * exact < found < (1 + 1e-9) * exact


def test_skellam_noise_of_large_variance_hides_no_less_than_its_attack():
  variance, shift, delta = 40_000.0, 250, 1e-6
  noise = attacks.vector(sensitivity_squared=shift**2, coordinates=1, variance=variance)
  assert not noise.is_skellam
  exact = attacks.epsilon_of(lambda epsilon: float(attacks.skellam_delta(
      epsilon, np.array([float(shift)]), np.array([variance]))[0]), delta)
  found = attacks.known(noise, worlds.point(1), delta)
  assert 0.99 * exact < found < exact


def test_randomised_response_is_attacked_exactly():
  epsilon, queries, delta = 0.3, 20, 1e-3
  chance = 1 / (1 + np.exp(-epsilon))
  numbers = np.arange(queries + 1)
  one, other = (stats.binom.pmf(numbers, queries, p) for p in (chance, 1 - chance))
  exact = attacks.epsilon_of(
      lambda e: float(np.maximum(one - np.exp(e) * other, 0).sum()), delta)
  found = attacks.composed(
      np.array([chance, 1 - chance]), np.array([1 - chance, chance]), queries, delta)
  assert 0.999 * exact < found < exact


def test_no_printed_number_is_below_an_attack(tmp_path, capsys):
  arguments = ['--quick', f'--output_dir={tmp_path}',
               f'--document={tmp_path / "page.md"}']
  assert epsilons.main(arguments) == 0
  page = (tmp_path / 'page.md').read_text()
  assert capsys.readouterr().out in page
  lines = [json.loads(line) for line in
           (tmp_path / 'results.jsonl').read_text().splitlines() if line]
  numbers = [number for line in lines for number in line.get('numbers', {}).values()]
  assert len(lines) == 24 and len(numbers) > 60
  assert all('excess' in number for number in numbers)
  # The attacks are strong: most numbers are met.
  assert sum(number['excess'] < 0.01 for number in numbers) > 0.4 * len(numbers)
  with open(tmp_path / 'above.csv', encoding='utf-8') as file:
    above = list(csv.DictReader(file))
  assert len(above) == sum(number['excess'] > 0.02 for number in numbers)
  assert all(row['reason'] for row in above)


def test_no_number_of_clients_who_take_turns_is_below_an_attack(tmp_path, monkeypatch):
  arguments = ['--turns', '--settings=20']
  assert epsilons.main([*arguments, f'--output_dir={tmp_path / "right"}']) == 0
  lines = [json.loads(line) for line in (
      tmp_path / 'right' / 'results.jsonl').read_text().splitlines() if line]
  numbers = [number for line in lines for number in line.get('numbers', {}).values()]
  assert len(numbers) > 40 and all('excess' in number for number in numbers)
  assert sum(number['excess'] < 0.01 for number in numbers) > 0.4 * len(numbers)
  # A turn less would be found.
  right = turns.TurnSampled._turns
  monkeypatch.setattr(turns.TurnSampled, '_turns', lambda self, count: right(
      self, max(1, count - self.population // self.turn_size)))
  assert epsilons.main([*arguments, f'--output_dir={tmp_path / "wrong"}']) == 1


def test_rows_that_are_there_are_not_computed_again(tmp_path, monkeypatch, capsys):
  arguments = ['--settings=2', f'--output_dir={tmp_path}']
  assert epsilons.main(arguments) == 0
  first = capsys.readouterr().out
  monkeypatch.setattr(epsilons, 'row', None)  # Would be an error if called.
  assert epsilons.main(arguments) == 0
  assert capsys.readouterr().out == first


@pytest.mark.parametrize('observer', ['outsiders', 'server'])
def test_a_number_that_is_too_low_is_found(observer, tmp_path, monkeypatch, capsys):
  right = answers.answer

  def answer(query, mechanism):
    found = right(query, mechanism)
    bound = getattr(found, observer)
    return found if bound is None else dataclasses.replace(found, **{
        observer: dataclasses.replace(bound, epsilon=0.99 * bound.epsilon)})

  monkeypatch.setattr(answers, 'answer', answer)
  assert epsilons.main(['--settings=6', f'--output_dir={tmp_path}']) == 1
  printed = capsys.readouterr().out
  assert 'BELOW: epsilon' in printed
  assert 'BELOW' in (tmp_path / 'above.csv').read_text()

"""Mechanisms and queries: one table, one event, no setting is dropped."""

import dataclasses

import pytest

from tff_pipelines.accounting.events import base, kinds as events
from tff_pipelines.accounting.guarantees import answers, mechanisms
from tff_pipelines.accounting.sampling import schemes

SUMS = mechanisms.names(mechanisms.SumMechanism)
SUM = dict(noise_multiplier=1.0, clip=0.3, bits=18, dimension=1000, cohort_size=50.0,
           population=1000, rounds=20)
# Settings with which each mechanism is complete.
COMPLETE = {**{name: SUM for name in SUMS}, 'ae_vote': dict(queries=7, noise_stddev=25.0),
    'knn_vote': dict(queries=7, noise_stddev=25.0, neighbours=10, level='instance'),
    'nfdp': dict(records=100, subset_size=10), **{name: dict(epsilon=0.5, queries=7)
       for name in mechanisms.names(mechanisms.LocalMechanism)}}
BY_NAME = pytest.mark.parametrize('name', mechanisms.MECHANISMS)


def test_the_table_is_complete():
  assert COMPLETE.keys() == mechanisms.MECHANISMS.keys()


@BY_NAME
def test_rows_name_fields_of_their_kind_or_of_a_query(name):
  family = mechanisms.MECHANISMS[name]
  fields = {field.name for field in dataclasses.fields(family.kind)}
  asked = {field.name for field in dataclasses.fields(answers.Query)}
  assert family.uses <= fields | asked
  assert family.knob is None or family.knob in fields & family.uses
  assert family.counter is None or family.counter in fields & family.uses
  assert (family.kind is mechanisms.LocalMechanism) == ('epsilon' in fields)


@BY_NAME
def test_mechanisms_are_built_by_name_and_released(name):
  mechanism = mechanisms.build(name, **COMPLETE[name])
  assert mechanism.family is mechanisms.MECHANISMS[name]
  assert type(mechanism) is mechanism.family.kind
  release, counter = mechanism.release(), mechanism.family.counter
  assert isinstance(release, base.Event)
  if counter is None:
    assert mechanism.event() == release
  else:
    assert mechanism.event() == events.SelfComposed(
        event=release, count=COMPLETE[name][counter])
  with pytest.raises(dataclasses.FrozenInstanceError):
    mechanism.mechanism = 'gaussian'


@BY_NAME
def test_a_missing_setting_is_named(name):
  for knob in {'epsilon', 'records', 'noise_stddev', 'noise_multiplier'} & (
      COMPLETE[name].keys()):
    if name in ('none', 'own'):  # Their noise is none, or not of this project.
      continue
    mechanism = mechanisms.build(name, **COMPLETE[name]).replace(**{knob: None})
    with pytest.raises(ValueError, match=f'{knob} must be given for mechanism={name}'):
      mechanism.event()


@pytest.mark.parametrize('kind', [
    mechanisms.SumMechanism, mechanisms.VoteMechanism, mechanisms.NfdpMechanism,
    mechanisms.LocalMechanism])
def test_names_of_other_kinds_are_refused(kind):
  for name in (*mechanisms.MECHANISMS, 'magic'):
    if name not in mechanisms.names(kind):
      with pytest.raises(ValueError, match=f"mechanism must be one of .*'{name}'"):
        kind(mechanism=name)
  with pytest.raises(ValueError, match="mechanism must be one of .*'magic'"):
    mechanisms.build('magic')


@pytest.mark.parametrize('name', SUMS)
@pytest.mark.parametrize('sampling', schemes.SCHEMES)
def test_rounds_are_sampled_as_they_are_accounted(name, sampling):
  mechanism = mechanisms.build(name, **SUM).replace(
      sampling=sampling, silos=5 if sampling == 'records' else None)
  scheme = mechanism.sampling_scheme(simulation_seed=3)
  assert (scheme.name, scheme.simulation_seed) == (sampling, 3)
  assert (scheme.population, scheme.cohort_size) == (1000, 50.0)
  rounds = {mechanism.round_event(r) for r in range(1, 21)}
  assert sampling not in ('poisson', 'fixed', 'none') or len(rounds) == 1
  if len(rounds) == 1:
    assert mechanism.event() == events.SelfComposed(
        event=mechanism.round_event(), count=20)
  expected = mechanism.release()
  if name != 'none':
    expected = scheme.event(expected, 1)
  assert mechanism.round_event() == expected


@pytest.mark.parametrize('changes, message', [
    (dict(rounds=0), 'rounds must be at least 1'),
    (dict(sampling='shuffle'), "sampling must be one of .*'shuffle'"),
    (dict(rotation='fourier'), "rotation must be one of .*'fourier'"),
    (dict(scale=3.0), 'bits and scale must not both be given'),
    (dict(dropout_rate=1.0), r'dropout_rate must be at least 0 and less than 1'),
    (dict(assumed_colluders=-1), 'assumed_colluders must be at least 0')])
def test_settings_of_sums_are_checked_when_given(changes, message):
  with pytest.raises(ValueError, match=message):
    mechanisms.SumMechanism(mechanism='skellam', **{**SUM, **changes})


@pytest.mark.parametrize('changes, message', [
    (dict(cohort_size=None), 'cohort_size must be given'),
    (dict(population=None), 'population must be given for sampling=poisson'),
    (dict(bits=None), 'bits or scale must be given for mechanism=skellam'),
    (dict(clip=None), 'clip must be given')])
def test_settings_of_sums_are_checked_where_they_are_needed(changes, message):
  mechanism = mechanisms.SumMechanism(
      mechanism='skellam', **{**SUM, 'sampling': 'poisson', **changes})
  for use in (mechanism.params, mechanism.event, mechanism.round_event):
    with pytest.raises(ValueError, match=message):
      use()


@pytest.mark.parametrize('name', ['ae_vote', 'laplace'])
def test_a_number_of_queries_is_positive(name):
  with pytest.raises(ValueError, match='queries must be at least 1'):
    mechanisms.build(name, queries=0)

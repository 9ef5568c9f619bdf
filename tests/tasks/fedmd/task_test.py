"""The FedMD tasks."""

import dataclasses

import numpy as np
import pytest

from tasks.fedmd import data as fedmd_data, task as fedmd

NAMES = ('conv2', 'dense2', 'conv2')


def _build(**changes):
  return fedmd.build(**{
      'task': 'digits', 'split': 'iid', 'num_clients': 4, 'architectures': NAMES,
      **changes})


def test_parties_have_the_architectures_alternately():
  task = _build()
  assert [a.name for a in task.architectures] == ['conv2', 'dense2']
  assert [party.architecture for party in task.parties] == [0, 1, 0, 0]
  assert {a.num_classes for a in task.architectures} == {6} == {task.classes}
  assert {a.num_classes for a in task.public_architectures} == {4}
  assert task.public.x.shape[1:] == (8, 8, 1)


def test_pooled_task_has_a_party_of_each_architecture_with_all_records():
  task = _build()
  pooled = task.pooled()
  assert [party.architecture for party in pooled.parties] == [0, 1]
  for party in pooled.parties:
    assert len(party.private) == sum(len(p.private) for p in task.parties)
    np.testing.assert_array_equal(
        party.private.x[:len(task.parties[0].private)], task.parties[0].private.x)


def test_fingerprint_depends_on_public_records_and_parties_and_nothing_private():
  task = _build()
  assert task.fingerprint == _build().fingerprint
  others = [_build(num_clients=3), _build(architectures=NAMES[:2]),
            _build(architectures=('dense2', 'conv2', 'dense2')), task.pooled()]
  for name in ('public', 'test'):
    part = getattr(task, name)
    x = part.x.copy()
    x[0, 0, 0, 0] ^= 1
    others.append(dataclasses.replace(task, **{name: fedmd_data.Labelled(x=x, y=part.y)}))
  assert len({task.fingerprint, *(other.fingerprint for other in others)}) == 7
  # It is published, so private records must not change it.
  party = task.parties[0]
  y = party.private.y.copy()
  y[0] = (y[0] + 1) % 2
  changed = dataclasses.replace(party, private=fedmd_data.Labelled(
      x=party.private.x, y=y))
  assert dataclasses.replace(
      task, parties=(changed, *task.parties[1:])).fingerprint == task.fingerprint


@pytest.mark.parametrize('changes, message', [
    (dict(task='cats'), "task must be one of digits, mnist_letters, cifar, found"),
    (dict(split='halves'), "split must be one of iid, noniid, found 'halves'"),
    (dict(architectures=('vgg',)), "architectures must be one of conv2"),
    (dict(data_path='x'), 'task digits does not use data_path'),
    (dict(task='cifar'), 'task cifar needs data_path'),
    (dict(task='cifar', data_path='x', cache_dir='y'),
     'task cifar does not use cache_dir')])
def test_unknown_unused_or_lacking_options_are_named(changes, message):
  with pytest.raises(ValueError, match=message):
    _build(**changes)


def test_images_of_two_shapes_are_refused(monkeypatch):
  data = fedmd_data.digits(fedmd_data.Choice(split='iid', num_clients=4))
  other = dataclasses.replace(data, public=fedmd_data.Labelled(
      x=np.zeros([5, 9, 9, 1], np.uint8), y=np.zeros([5], np.int32)))
  monkeypatch.setitem(fedmd_data.TASKS, 'digits', lambda choice: other)
  with pytest.raises(ValueError, match='must have one shape'):
    _build()

"""Tasks of voting: the records of agents and of the server."""

import numpy as np
import pytest

from tasks.sources import labelled
from tasks.voting import data as voting_data, task as voting
from tests import data_dir


def _records(labels):
  return {'x': np.zeros((len(labels), 2), np.float32), 'y': np.array(labels, np.int32)}


def _task(labels=(0, 1, 2), public=4, classes=3):
  return voting.VotingTask(
      name='tiny', num_classes=classes, agents=voting.AgentRecords(
          {'1': _records(labels[1::2]), '0': _records(labels[::2])}),
      public=np.zeros((public, 2), np.float32), public_labels=np.zeros(public, np.int32),
      test={'x': np.zeros((3, 2), np.float32), 'y': np.zeros(3, np.int32)},
      privacy_unit='one agent')


def _check(task, agents, record_shape, public, test, classes=10):
  assert len(task.agents.client_ids) == agents
  assert task.record_shape == record_shape
  assert task.public.shape == (public, *record_shape)
  assert task.public_labels.shape == (public,)
  assert len(task.test['y']) == test and task.num_classes == classes
  spec = task.agents.element_spec
  assert spec['x'] == (task.public.dtype, record_shape)
  assert spec['y'] == (np.int32, ())


def test_embedded_needs_no_file():
  task = voting.build('embedded')
  _check(task, 100, (16, 16), 300, 400)
  sizes = [len(task.agents.examples(a)['y']) for a in task.agents.client_ids]
  assert sum(sizes) == 1797 - 700 and max(sizes) - min(sizes) <= 1


def test_the_servers_records_stay_whatever_the_agents():
  first, other = (voting.build('embedded', num_clients=count, data_seed=count)
                  for count in (5, 40))
  np.testing.assert_array_equal(first.public, other.public)
  np.testing.assert_array_equal(first.test['x'], other.test['x'])
  assert first.agents.client_ids[0] == 'agent0'
  assert other.agents.client_ids[0] == 'agent00'


def test_no_agents_records_are_the_servers():
  task = voting.build('embedded')
  of_agents = {task.agents.examples(a)['x'][i].tobytes()
               for a in task.agents.client_ids
               for i in range(len(task.agents.examples(a)['y']))}
  of_server = {x.tobytes() for x in (*task.public, *task.test['x'])}
  # Two of scikit-learn's digits may be the same image.
  assert len(of_agents & of_server) <= 5


@pytest.mark.parametrize('target, public, test', [('webcam', 206, 89), ('dslr', 110, 47)])
def test_office_has_a_domain_each(target, public, test):
  folder = data_dir.require('office_caltech10_surf.npz').parent
  task = voting.build('office', data_path=str(folder), target=target)
  _check(task, 3, (800,), public, test)
  assert target not in task.agents.client_ids
  np.testing.assert_allclose(np.linalg.norm(task.public, axis=1), 1, rtol=1e-4)


def test_mnist_agents_have_six_digits_and_600_records():
  folder = data_dir.require('mnist.npz').parent
  task = voting.build('mnist', data_path=str(folder))
  _check(task, 100, (28, 28), 3000, 7000)
  for agent in task.agents.client_ids[::9]:
    y = task.agents.examples(agent)['y']
    assert len(y) == 600 and len(np.unique(y)) == 6
  assert not task.notes


@pytest.mark.slow
def test_digits_agents_have_one_domain_each():
  folder = data_dir.require('svhn_1000.npz').parent
  task = voting.build('digits', data_path=str(folder), num_clients=40, svhn_clients=4)
  _check(task, 40, (16, 16), 3000, 6298)
  sizes = {a: len(task.agents.examples(a)['y']) for a in task.agents.client_ids}
  assert {s for a, s in sizes.items() if a.startswith('svhn')} == {250}
  assert sum(s for a, s in sizes.items() if a.startswith('mnist')) == 70000
  assert 'SVHN is a part of 1,000 images: 4 agents' in task.notes[0]
  # Digits fill their images in both domains: there is ink in the outermost rows.
  of_mnist = task.agents.examples('mnist-00')['x']
  for x in (of_mnist, task.public):
    assert np.mean(x[:, [0, -1]].max(axis=(1, 2)) > 100) > 0.5


def _npz(path, x, x_test, **changes):
  content = {**dict(
      x_train=x, y_train=np.arange(len(x)) % 3, writer_train=np.arange(len(x)) % 4,
      x_test=x_test, y_test=np.arange(len(x_test)) % 3), **changes}
  np.savez(path, **{k: v for k, v in content.items() if v is not None})
  return str(path)


@pytest.mark.parametrize('shape, dtype', [
    ((5,), np.float32), ((9, 9), np.uint8), ((7,), np.int64)])
def test_any_npz_with_agents_is_a_task(tmp_path, shape, dtype):
  x = np.arange(24 * np.prod(shape)).reshape(24, *shape) % 200
  path = _npz(tmp_path / 'a.npz', x.astype(dtype), x[:20].astype(dtype))
  task = voting.build('npz', data_path=path, public_fraction=0.5)
  _check(task, 4, shape, 10, 10, classes=3)
  assert task.agents.client_ids == ('0', '1', '2', '3')


def test_agents_of_any_npz_may_be_simulated(tmp_path):
  x = np.arange(24 * 5, dtype=np.float32).reshape(24, 5)
  path = _npz(tmp_path / 'a.npz', x, x[:20])
  few = dict(data_path=path, num_clients=3, records_per_client=6, labels_per_client=2)
  task = voting.build('npz', **few)
  assert task.agents.client_ids == ('agent0', 'agent1', 'agent2') and not any(
      'taken as public' in note and 'agents' in note for note in task.notes)
  for agent in task.agents.client_ids:
    y = task.agents.examples(agent)['y']
    assert len(y) == 6 and len(np.unique(y)) == 2
  with_more = voting.build('npz', **{**few, 'num_clients': 9})
  assert 'some agents have the same records' in with_more.notes[0]
  other = voting.build('npz', **few, data_seed=5)
  assert any((other.agents.examples(a)['x'] != task.agents.examples(a)['x']).any()
             for a in task.agents.client_ids)


X = np.zeros((24, 5), np.float32)


@pytest.mark.parametrize('changes, message', [
    ({'y_train': np.full(24, -1)}, r'labels must be in \[0, 1000\), found -1 in row'),
    ({'x_test': np.zeros((20, 6), np.float32)}, 'records of one shape'),
    ({'x_train': np.where(np.arange(24)[:, None] == 7, np.nan, X)},
     'x_train must be finite, found nan in row 7'),
    ({'writer_train': np.zeros(24)}, 'writer_train must be one integer or string'),
    ({'writer_train': None}, 'has no array writer_train'),
    ({'x_test': X[:0], 'y_test': np.zeros(0, int)}, 'must be at least one record')])
def test_bad_files_are_refused(tmp_path, changes, message):
  path = _npz(tmp_path / 'a.npz', **{**dict(x=X, x_test=X[:20]), **changes})
  with pytest.raises(ValueError, match=message) as raised:
    voting.build('npz', data_path=path)
  assert '\n' not in str(raised.value)


def test_a_damaged_file_is_refused(tmp_path):
  path = tmp_path / 'a.npz'
  _npz(path, X, X[:20])
  path.write_bytes(path.read_bytes()[:-60])
  with pytest.raises(ValueError, match='is not an npz file, or corrupted'):
    voting.build('npz', data_path=str(path))
  with pytest.raises(ValueError, match='does not exist'):
    voting.build('npz', data_path=str(tmp_path / 'b.npz'))


def test_labels_out_of_range_are_refused():
  with pytest.raises(ValueError, match=r'labels of agent 1 must be in \[0, 3\)'):
    _task(labels=(0, 3, 1))
  with pytest.raises(ValueError, match=r'labels of agent 0 must be in \[0, 3\)'):
    _task(labels=(0, 2, -1))


def test_a_server_without_records_has_no_queries():
  with pytest.raises(ValueError, match='task tiny has no public queries'):
    _task(public=0)
  with pytest.raises(ValueError, match='task embedded has no public queries'):
    voting.build('embedded', public_records=0)


def test_agents_may_have_no_records():
  task = _task(labels=(2,))
  assert task.agents.client_ids == ('0', '1')
  assert task.agents.element_spec == {'x': (np.float32, (2,)), 'y': (np.int32, ())}
  nothing = task.agents.examples('1')
  assert nothing['x'].shape == (0, 2) and nothing['y'].dtype == np.int32
  assert _task(labels=()).agents.client_ids == ('0', '1')
  with pytest.raises(ValueError, match="there is no agent '2'"):
    task.agents.examples('2')


def test_records_of_agents_are_read_only():
  records = _records([1, 2])
  agents = voting.AgentRecords({'a': records})
  with pytest.raises(ValueError):
    agents.examples('a')['y'][0] = 3
  records['y'][0] = 0  # The original arrays stay writeable.


@pytest.mark.parametrize('records, message', [
    ({}, 'at least one agent'),
    ({'a': {**_records([1]), 'y': np.zeros(2, np.int32)}}, r'length, found \[1, 2\]'),
    ({'a': _records([1]), 'b': {**_records([]), 'y': np.zeros(0)}},
     r'agent b: y must be int32 \[examples\], found float64')])
def test_records_that_are_not_alike_are_refused(records, message):
  with pytest.raises(ValueError, match=message):
    voting.AgentRecords(records)


COUNTED = 'was counted from labels, private ones among them'
UNLISTED = 'the agents are those that have a record in the file'


@pytest.mark.parametrize('changes, given, classes, counted', [
    # The server's labels count as well.
    ({'y_test': np.full(20, 5)}, None, 6, True), ({}, 7, 7, False),
    ({'class_names': np.array(list('abcd'))}, None, 4, False)])
def test_classes_of_a_file_are_public_or_the_task_says_that_they_were_counted(
    tmp_path, changes, given, classes, counted):
  path = _npz(tmp_path / 'a.npz', X, X[:20], **changes)
  task = voting.build('npz', data_path=path, num_classes=given)
  assert task.num_classes == classes
  assert any(COUNTED in note for note in task.notes) == counted


def test_stated_classes_do_not_depend_on_records(tmp_path):
  tasks = []
  for label in (2, 0):  # The only record of class 2, or none.
    y = np.zeros(24, int)
    y[7] = label
    path = _npz(tmp_path / f'{label}.npz', X, X[:20], y_train=y,
                num_classes=np.array(3), y_test=np.zeros(20, int))
    tasks.append(voting.build('npz', data_path=path))
  assert tasks[0].num_classes == tasks[1].num_classes == 3
  assert tasks[0].notes == tasks[1].notes


def test_a_file_may_list_agents_without_records(tmp_path):
  path = _npz(tmp_path / 'a.npz', X, X[:20], writers=np.array([9, 0, 1, 2, 3, 10]))
  task = voting.build('npz', data_path=path)
  assert task.agents.client_ids == ('0', '1', '10', '2', '3', '9')
  assert [len(task.agents.examples(a)['y']) for a in task.agents.client_ids] == [
      6, 6, 0, 6, 6, 0]
  assert not any(UNLISTED in note for note in task.notes)
  task = voting.build('npz', data_path=_npz(tmp_path / 'a.npz', X, X[:20]))
  assert any(UNLISTED in note for note in task.notes)


@pytest.mark.parametrize('writers, message', [
    (np.arange(3), 'writer_train must be one of writers, found 3 in row 3'),
    (np.array([0, 1, 2, 3, 3]), 'writers must list each agent once'),
    (np.array(list('0123')), 'as writer_train'),
    (np.arange(4)[None], 'writers must list')])
def test_bad_lists_of_agents_are_refused(tmp_path, writers, message):
  path = _npz(tmp_path / 'a.npz', X, X[:20], writers=writers)
  with pytest.raises(ValueError, match=f'a.npz: .*{message}'):
    voting.build('npz', data_path=path)


@pytest.mark.parametrize('name, options, message', [
    ('cifar', {}, "task must be one of embedded, .*, found 'cifar'"),
    ('embedded', {'target': 'dslr'}, 'task embedded does not use target; its'),
    ('mnist', {}, 'task mnist needs data_path'),
    ('embedded', {'num_clients': 0}, 'num_clients must be an integer from 1'),
    ('embedded', {'public_records': 1397}, 'public_records must be an integer from 0 to 1396'),
    ('office', {'data_path': 'd', 'target': 'moon'}, 'target must be one of amazon'),
    ('digits', {'data_path': 'd', 'svhn_clients': 200}, 'svhn_clients must be .* from 0'),
    ('npz', {'data_path': 'f', 'public_fraction': 1.0}, 'public_fraction must be in')])
def test_bad_options_are_one_clear_line(name, options, message):
  with pytest.raises(ValueError, match=message) as raised:
    voting.build(name, **options)
  assert '\n' not in str(raised.value)


def test_options_that_are_none_count_as_not_given():
  assert len(voting.build('embedded', target=None).public) == 300


@pytest.mark.parametrize('size', [8, 40])
def test_resizing_keeps_mass_and_position(size):
  images = np.zeros((1, 24, 24), np.uint8)
  images[0, 6:12, 12:18] = 200
  actual = labelled.resized(images, size).astype(float)[0]
  assert actual.shape == (size, size)
  assert actual.sum() == pytest.approx(images.sum() * (size / 24)**2, rel=0.03)
  rows, columns = np.indices(actual.shape)
  scale = 24 / size
  assert (actual * rows).sum() / actual.sum() * scale == pytest.approx(
      9 - scale / 2, abs=0.15)
  assert (actual * columns).sum() / actual.sum() * scale == pytest.approx(
      15 - scale / 2, abs=0.15)


def test_grey_is_luma():
  colours = np.array([[[[255, 0, 0], [0, 255, 0], [0, 0, 255], [9, 9, 9]]]], np.uint8)
  np.testing.assert_array_equal(voting_data.grey(colours), [[[76, 150, 29, 9]]])

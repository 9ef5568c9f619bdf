"""Public feature maps, and tasks seen through them."""

import numpy as np
import pytest

from tasks.voting import task as voting
from tff_pipelines.fedavg import adam as voting_training
from tff_pipelines.voting import features as vote_features

SHORT = voting_training.AdamConfig(learning_rate=2e-3, batch_size=50, epochs=1)


@pytest.fixture(scope='module')
def task():
  return voting.build('embedded', num_clients=3, public_records=60)


_FITTED = {}  # With their tasks, whose ids are kept so.


def _fit(task, kind, dimensions=7):
  key = id(task), kind, dimensions
  if key not in _FITTED:
    _FITTED[key] = task, vote_features.fit(task.public, vote_features.FeatureConfig(
        kind=kind, dimensions=dimensions, training=SHORT))
  return _FITTED[key][1]


@pytest.mark.parametrize('kind, size', [
    ('standard', 256), ('pca', 7), ('contrastive', 64)])
def test_a_task_through_a_map_has_vectors(task, kind, size):
  config = vote_features.FeatureConfig(kind=kind, dimensions=7)
  assert vote_features.check(task.public, config) == (size,)
  features = _fit(task, kind)
  seen = vote_features.map_records(task, features)
  assert seen.record_shape == (size,) and seen.public.dtype == np.float32
  assert seen.agents.client_ids == task.agents.client_ids
  for agent in task.agents.client_ids:
    before, after = (t.agents.examples(agent) for t in (task, seen))
    np.testing.assert_array_equal(before['y'], after['y'])
    # Each record independently: alone it has the same features.
    alone = np.concatenate([features(x[None]) for x in before['x'][:5]])
    np.testing.assert_allclose(alone, after['x'][:5], atol=2e-3)
  assert np.isfinite(seen.test['x']).all()


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['standard', 'pca', 'contrastive'])
def test_maps_follow_from_public_records_alone(task, kind):
  other = voting.build('embedded', num_clients=9, public_records=60, data_seed=5)
  first, again = _fit(task, kind), _fit(other, kind)
  for name, array in first.arrays.items():
    np.testing.assert_allclose(array, again.arrays[name], atol=1e-4)


def test_components_that_public_records_do_not_have_are_left_out(task):
  assert _fit(task, 'pca', dimensions=500)(task.public).shape == (60, 59)


def test_coordinates_that_never_vary_in_public_are_ignored():
  public = np.array([[1.0, 5.0], [3.0, 5.0]], np.float32)
  features = vote_features.fit(public, vote_features.FeatureConfig(kind='standard'))
  np.testing.assert_allclose(features(np.array([[2.0, 900.0], [4.0, 5.0]])),
                             [[0.0, 0.0], [2.0, 0.0]])


def test_a_map_that_was_kept_is_the_same(task, tmp_path):
  features = _fit(task, 'contrastive')
  assert vote_features.read_map(tmp_path, task.public) is None
  vote_features.write_map(tmp_path, features, task.public)
  kept = vote_features.read_map(tmp_path, task.public)
  np.testing.assert_array_equal(kept(task.public), features(task.public))
  with pytest.raises(ValueError, match='is of other public records than these'):
    vote_features.read_map(tmp_path, task.public[:-1])
  path = tmp_path / vote_features.MAP
  path.write_bytes(path.read_bytes()[:-200])
  with pytest.raises(ValueError, match='features.npz is damaged'):
    vote_features.read_map(tmp_path, task.public)


def test_a_grid_has_small_integers_and_keeps_neighbours(task):
  seen = vote_features.map_records(task, _fit(task, 'pca', dimensions=20))
  grid = vote_features.as_grid(seen)
  most = vote_features.largest_feature(20)
  for x in (grid.public, *(grid.agents.examples(a)['x'] for a in grid.agents.client_ids)):
    assert x.dtype == np.int8 and np.abs(x.astype(int)).max() <= most
  assert np.abs(grid.public.astype(int)).max() == most
  near = [((t.public.astype(float)[:, None] - t.test['x'].astype(float)[None])**2
           ).sum(axis=2).argmin(axis=1) for t in (seen, grid)]
  assert np.mean(near[0] == near[1]) > 0.9


def test_the_grid_follows_from_public_records(task):
  seen = vote_features.map_records(task, _fit(task, 'standard'))
  other = voting.build('embedded', num_clients=2, public_records=60, data_seed=3)
  again = vote_features.map_records(other, _fit(other, 'standard'))
  np.testing.assert_array_equal(
      vote_features.as_grid(seen).public, vote_features.as_grid(again).public)


@pytest.mark.parametrize('kind', ['standard', 'pca'])
def test_no_warning_tells_of_the_records_of_an_agent(kind):
  rng = np.random.default_rng(0)
  public = rng.normal(size=(20, 4)).astype(np.float32)
  largest = np.finfo(np.float32).max
  task = voting.VotingTask(
      name='vectors', num_classes=2, public=public, public_labels=np.zeros(20, np.int32),
      test={'x': public, 'y': np.zeros(20, np.int32)}, privacy_unit='one agent',
      agents=voting.AgentRecords({'a': {
          'x': np.array([[largest, -largest, largest, 0]], np.float32),
          'y': np.zeros(1, np.int32)}}))
  seen = vote_features.as_grid(vote_features.map_records(
      task, _fit(task, kind, dimensions=3), alone=True))
  assert seen.agents.examples('a')['x'].dtype == np.int8


@pytest.mark.parametrize('kind, public, message', [
    ('contrastive', np.zeros((5, 3), np.float32), 'for square images, .* shape'),
    ('contrastive', np.zeros((5, 8, 9), np.uint8), 'for square images'),
    ('pca', np.zeros((1, 3), np.float32), 'needs 2 public records or more')])
def test_maps_that_cannot_be_fitted_are_refused(kind, public, message):
  with pytest.raises(ValueError, match=message):
    vote_features.fit(public, vote_features.FeatureConfig(kind=kind))


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['pca', 'contrastive', 'standard'])
def test_a_record_more_changes_no_bit_of_the_others(task, kind):
  features = _fit(task, kind)
  x = np.concatenate([task.agents.examples(agent)['x']
                      for agent in task.agents.client_ids])[:60]
  together = features(x, alone=True)
  for missing in (0, 7, 31, 59):
    others = np.delete(np.arange(60), missing)
    np.testing.assert_array_equal(features(x[others], alone=True), together[others])
  np.testing.assert_array_equal(features(x[::-1], alone=True), together[::-1])
  np.testing.assert_allclose(together, features(x), atol=1e-3, rtol=1e-3)


def _blobs():
  rng = np.random.default_rng(0)
  centres = 20 * rng.normal(size=(6, 3))
  return np.repeat(centres, 30, axis=0) + rng.normal(size=(180, 3))


@pytest.mark.parametrize('choice', ['random', 'spread'])
@pytest.mark.parametrize('count', [1, 6, 50, 180])
def test_queries_are_distinct_records(choice, count):
  rows = vote_features.choose_queries(_blobs(), count, choice, 0)
  assert rows.shape == (count,) and len(set(rows)) == count
  assert rows.min() >= 0 and rows.max() < 180
  np.testing.assert_array_equal(rows, np.sort(rows))
  again, other = (vote_features.choose_queries(_blobs(), count, choice, seed)
                  for seed in (0, 1))
  np.testing.assert_array_equal(rows, again)
  assert choice == 'spread' or count in (1, 180) or not np.array_equal(rows, other)


def test_spread_queries_speak_for_every_cluster():
  rows = vote_features.choose_queries(_blobs(), 6, 'spread', 0)
  np.testing.assert_array_equal(rows // 30, np.arange(6))


@pytest.mark.filterwarnings('ignore:Number of distinct clusters')
def test_equal_records_are_still_as_many_queries_as_asked_for():
  rows = vote_features.choose_queries(np.ones((10, 2)), 4, 'spread', 0)
  assert len(set(rows)) == 4

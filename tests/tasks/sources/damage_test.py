"""Damaged copies and prepared files give the original data or one clear error."""

import random
import shlex
import sqlite3

import numpy as np
import pytest
import tensorflow as tf

from tasks import task
from tasks.sources import open_source, rosters, rows, sqlite
from tests import tiny_task
from tests.tasks.sources import populations
from tff_pipelines import prepare_data
from tff_pipelines.fedavg import loop

_FLIPS = 210
_PAGE = 4096


class _Copy:
  """A copy of a small file, which can be damaged, and what is read of it.

  Attributes:
    path: The copy.
    content: Its bytes, undamaged.
  """

  def __init__(self, folder):
    self._options = populations.plain_jsonl(folder, populations.POPULATION)
    self._cache = folder / "the  'cache'; rm -rf x"
    source = self.open()
    self.path, = self._cache.glob('*.sqlite')
    self.content = self.path.read_bytes()
    self._in_graph = tf.function(source.read_in_graph)
    self._stored = source.read_in_graph.stored
    self._expected = {client: populations.expected(rows)
                      for client, rows in populations.POPULATION.items()}

  def open(self):
    options = {**self._options, 'cache_dir': str(self._cache)}
    return open_source.open_raw(
        options.pop('data_source'), fields=populations.FIELDS, **options).train

  def check(self, error: task.DamagedDataError) -> None:
    """The message names the copy and the remedy, not the file that was copied."""
    text = str(error)
    assert len(text.splitlines()) == 1 and len(text) < 700
    assert text.startswith(f'{self.path} is damaged (')
    assert shlex.split(text.partition(' after ')[2]) == [
        'python', '-m', 'tff_pipelines.prepare_data', '--purge',
        f'--cache_dir={self._cache}']
    assert self._options['data_path'] not in text
    assert not any(client in text for client in ('ann', 'ben'))

  def read(self) -> bool:
    """Whether everything is as it was; else everything wrong was found."""
    try:
      source = self.open()
    except task.DamagedDataError as error:
      self.check(error)
      return False
    assert source.client_ids == tuple(self._expected)
    results = []
    for client, expected in self._expected.items():
      try:
        populations.assert_same(source.examples(client), expected)
        results.append(True)
      except task.DamagedDataError as error:
        self.check(error)
        results.append(False)
    return all(results)

  def read_in_graph(self) -> bool:
    """Whether graphs find everything, as does what is read of all together."""
    results, wanted = [], [
        np.concatenate(arrays) for arrays in zip(*(
            [expected[name] for name in sorted(expected)]
            for expected in self._expected.values()))]
    try:
      arrays, lengths = self._stored(list(self._expected))
      together = lengths == [len(next(iter(x.values()))) for x in self._expected.values()]
      for (_, found), array in zip(sorted(arrays.items()), wanted, strict=True):
        assert found.tolist() == [text.encode() if isinstance(text, str) else text
                                  for text in array.tolist()]
    except (ValueError, tf.errors.OpError) as error:
      assert self._options['data_path'] not in str(error)
      together = False
    for client, expected in self._expected.items():
      try:
        arrays = self._in_graph(tf.constant(client))
      except (tf.errors.OpError, UnicodeDecodeError) as error:
        assert self._options['data_path'] not in str(error)
        results.append(False)
        continue
      results.append(True)
      for name, array in expected.items():
        values = arrays[name].numpy()
        if array.dtype == object:
          assert [text.decode() for text in values] == array.tolist()
        else:
          assert values.tobytes() == array.tobytes()
    assert together == all(results)
    return all(results)


@pytest.fixture(name='copy')
def _copy(tmp_path):
  return _Copy(tmp_path)


def _flipped(content: bytes, seed: int) -> bytes:
  """The content with one other bit; every second time of a byte that is not zero."""
  rng, result = random.Random(seed), bytearray(content)
  position = rng.randrange(len(content)) if seed % 2 else rng.choice(
      [at for at, value in enumerate(content) if value])
  result[position] ^= 1 << rng.randrange(8)
  return bytes(result)


def test_a_flipped_bit_is_found_or_changes_nothing(copy):
  found = {True: 0, False: 0}
  for seed in range(_FLIPS):
    copy.path.write_bytes(_flipped(copy.content, seed))
    whole = copy.read()
    found[whole] += 1
    # A graph opens nothing, so it may read what can't be opened.
    assert copy.read_in_graph() or not whole
  assert min(found.values()) > _FLIPS / 5
  copy.path.write_bytes(copy.content)
  assert copy.read() and copy.read_in_graph()


def test_pages_that_are_lost_or_in_the_place_of_others_are_found(copy):
  pages = [copy.content[at:at + _PAGE] for at in range(0, len(copy.content), _PAGE)]
  assert len(pages) > 8
  for number in range(len(pages)):
    for instead in (b'\0' * _PAGE, pages[number - 1]):
      changed = [*pages[:number], instead, *pages[number + 1:]]
      copy.path.write_bytes(b''.join(changed))
      assert not (copy.read() and copy.read_in_graph())


def test_a_copy_that_was_cut_off_or_is_of_other_data_is_found(copy, tmp_path):
  other = tmp_path / 'other'
  other.mkdir()
  contents = [copy.content[:size] for size in (0, 1, 100, _PAGE, -_PAGE, -_PAGE // 2)]
  contents += [b'no database at all' * 1000, _Copy(other).content]
  for content in contents:
    copy.path.write_bytes(content)
    assert not copy.read(), len(content)


def test_purging_as_the_message_says_makes_the_copy_again(copy, capsys):
  copy.path.write_bytes(copy.content[:-_PAGE])
  with pytest.raises(task.DamagedDataError) as raised:
    copy.open()
  command = shlex.split(str(raised.value).partition(' after ')[2])
  assert prepare_data.main(command[3:]) == 0
  assert '1 copies deleted' in capsys.readouterr().out and not copy.path.exists()
  assert copy.read()


def _damage_client(path, client):
  """Changes the last byte of a client's first example."""
  with sqlite3.connect(path) as connection:
    rowid, value = connection.execute(
        'SELECT rowid, serialized_example_proto FROM examples WHERE client_id = ?',
        [client]).fetchone()
    connection.execute('UPDATE examples SET serialized_example_proto = ? WHERE rowid = '
                       '?', [value[:-1] + bytes([value[-1] ^ 1]), rowid])
  connection.close()


def _prepared(path):
  population = populations.Clients({
      client: {'n': np.arange(3) + number} for number, client in enumerate('abcdef')})
  return populations.prepared(path, population, population)


def _read_prepared(path):
  """The data of all splits, or None if the file was found damaged."""
  try:
    sources = {split: sqlite.SqliteSource(path, split)
               for split in sqlite.split_names(path)}
    return {(split, client): source.examples(client)['n'].tolist()
            for split, source in sources.items() if not source.is_roster
            for client in source.client_ids}
  except ValueError as error:
    assert str(path) in str(error) and len(str(error).splitlines()) == 1
    # If not even the header can be read, it may be no file of ours.
    assert isinstance(error, task.DamagedDataError) or 'cannot be read' in str(error)
    return None


@pytest.mark.parametrize('kind', ['complete', 'roster'])
def test_flipped_bits_of_prepared_files_and_rosters_are_found(tmp_path, kind):
  path = _prepared(tmp_path / 'complete')
  if kind == 'roster':
    rosters.write(path, tmp_path / kind)
    path = tmp_path / kind
  content, expected = path.read_bytes(), _read_prepared(path)
  assert len(expected) == {'complete': 12, 'roster': 6}[kind]
  results = []
  for seed in range(60):
    path.write_bytes(_flipped(content, seed))
    results.append(_read_prepared(path))
    assert results[-1] in (None, expected)
  assert 10 < results.count(None) < 50


def test_damage_is_skipped_by_nothing_and_stays_in_a_roster(tmp_path):
  path = _prepared(tmp_path / 'complete')
  _damage_client(path, 'a')
  for split, source in {split: sqlite.SqliteSource(path, split)
                        for split in ('train', 'test')}.items():
    if split == 'test':  # The rows of the other part come first.
      source.examples('a')
      continue
    with pytest.raises(task.DamagedDataError, match='delete it, and let prepare_data'):
      list(rows.of_source(source).rows(lambda _: None))
  rosters.write(path, tmp_path / 'roster', 'test')
  with pytest.raises(task.DamagedDataError, match='roster is damaged'):
    sqlite.SqliteSource(tmp_path / 'roster', 'train').examples('a')


def test_files_of_tffs_format_from_elsewhere_need_no_checksum(tmp_path):
  path = _prepared(tmp_path / 'f')
  with sqlite3.connect(path) as connection:
    for table in ('checksums', 'element_spec', 'preparation', 'skipped'):
      connection.execute(f'DROP TABLE {table}')
    connection.execute('PRAGMA application_id = 0')
    connection.execute('ALTER TABLE client_metadata DROP COLUMN checksum')
  connection.close()
  source = sqlite.SqliteSource(path, 'train')
  assert not source.is_prepared and source.examples('b')['n'].tolist() == [1, 2, 3]
  assert source.read_in_graph(tf.constant('b'))['n'].numpy().tolist() == [1, 2, 3]


def test_a_sampled_client_that_is_damaged_ends_no_run(tmp_path):
  """An end would tell that it was sampled: it participates without examples."""
  path, tiny, told = _prepared(tmp_path / 'f'), tiny_task.task(), []
  _damage_client(path, 'e')
  reader = loop.ClientReader(task.Task(
      name='t', model=tiny.model, train=sqlite.SqliteSource(path, 'train'),
      held_out=tiny.held_out, privacy_unit='one client'), None,
      on_bad=lambda *found: told.append(found))
  reader.check_some()
  assert [len(reader.read(client, 0)['examples']['n']) for client in range(6)] == [
      3, 3, 3, 3, 0, 3]
  (client, error), = told
  assert client == 'e' and isinstance(error, task.DamagedDataError)
  assert str(path) in str(error)


def test_opening_reads_no_examples(tmp_path):
  path = _prepared(tmp_path / 'f')
  for client in 'abcdef':
    _damage_client(path, client)
  assert len(sqlite.SqliteSource(path, 'train').client_ids) == 6

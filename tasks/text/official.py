"""TFF's official federated texts, in its SQLite files."""

import dataclasses
import os
import pathlib

from tasks import official


@dataclasses.dataclass(frozen=True, kw_only=True)
class File:
  """One of TFF's data sets.

  Attributes:
    what: The data set, in messages.
    name: Of the decompressed file.
    data_set: Of tff.simulation.datasets.
    train_split: Of the population.
    others_split: Of clients that are not in the population; None if there are none.
    test_split: Of further examples of the population.
  """

  what: str
  name: str
  data_set: str
  train_split: str = 'train'
  others_split: str | None = None
  test_split: str = 'test'

  def find_or_download(self, cache_dir: str | os.PathLike[str] | None) -> pathlib.Path:
    """The path of the file; see official.find_or_download."""
    return official.find_or_download(
        cache_dir, what=self.what, file_name=self.name, load=self._load)

  def _load(self, cache_dir: str) -> None:
    # TFF takes seconds to import, and is not needed once the file is there.
    import tensorflow_federated as tff  # pylint: disable=g-import-not-at-top
    getattr(tff.simulation.datasets, self.data_set).load_data(cache_dir=cache_dir)

"""Facts on which a driver and its workers must agree, and the proof that they do.

The driver sends a nonce and descriptions of the data; each worker answers with the
facts of its process, the driver computes its own and compares. This finds mistakes, not
attacks: the operator of a worker sees the data of its clients in any case.
"""

from collections.abc import Mapping, Sequence
import functools
import hashlib
import hmac
import importlib.util
import pathlib
import platform
import re
from typing import Protocol

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_pipelines

NONCE_BYTES = 32
_PACKAGES = ('aggregators', 'tasks', 'tff_pipelines')
# Instructions of x86 with which floats are computed.
_CPU_FEATURES = re.compile(r'(s?sse|avx|fma|f16c|bmi|amx)')


class DataProof(Protocol):
  """Describes data that workers read themselves; can be pickled."""

  name: str

  def digest(self, *, in_worker: bool) -> bytes:
    """Digest of ids, element spec and content, as far as they are known.

    If `in_worker`, they must be readable here, and not only described. Raises OSError or
    ValueError if they can't be read; the message is one line.
    """


class MismatchError(ValueError):
  """A worker differs from the driver; the message names the fact."""


@functools.lru_cache(maxsize=1)
def _sources() -> str:
  """SHA-256 of all source files of the project that this process imports."""
  digest = hashlib.sha256()
  for package in _PACKAGES:
    for folder in importlib.util.find_spec(package).submodule_search_locations:
      for path in sorted(pathlib.Path(folder).rglob('*.py')):
        content = path.read_bytes()
        name = path.relative_to(folder).as_posix()
        digest.update(f'{package}/{name}\0{len(content)}\0'.encode() + content)
  return digest.hexdigest()


def cpu_features(cpuinfo: str) -> list[str]:
  """The features of a processor with which floats are computed, sorted."""
  flags = re.search(r'^flags\s*:(.*)$', cpuinfo, re.MULTILINE)
  return sorted(filter(_CPU_FEATURES.match, flags[1].split())) if flags else [
      platform.machine()]


def facts(nonce: bytes, data: Sequence[DataProof] = (), *,
          in_worker: bool = True) -> dict[str, str]:
  """Name -> value of all facts on which the driver and a worker must agree."""
  result = {
      'project version': tff_pipelines.__version__, 'project sources': _sources(),
      'Python': platform.python_version(), 'NumPy': np.__version__,
      'TensorFlow': tf.__version__, 'TensorFlow Federated': tff.__version__,
      'CPU features': ' '.join(cpu_features(
          pathlib.Path('/proc/cpuinfo').read_text(encoding='utf-8')))}
  for proof in data:
    try:
      digest = proof.digest(in_worker=in_worker)
      result[proof.name] = hmac.digest(nonce, digest, 'sha256').hex()
    except (OSError, ValueError) as error:
      if not in_worker:
        raise
      result[proof.name] = str(error)
  return result


def check(worker: str, found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
  """Raises MismatchError for the first fact of a worker that differs."""
  for name, here in wanted.items():
    if (there := found.get(name, 'nothing')) != here:
      # The words of each that the other lacks: of processors, there are many.
      there, here = (' '.join(word for word in one.split() if word not in other.split())
                     for one, other in ((there, here), (here, there)))
      raise MismatchError(f'{worker} differs from this process in {name}: '
                          f'{there or "fewer"} there, {here or "fewer"} here')

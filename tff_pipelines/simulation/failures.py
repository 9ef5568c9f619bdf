"""Errors of computations, told without values of clients' data.

Messages of TensorFlow's operations have values: a label that is out of range, what a
user's assertion prints.
"""

from collections.abc import Callable
import re
from typing import Any

import tensorflow as tf

# A node of a graph in a message, which by default has the name of its operation.
_NODE = re.compile(
    r'^\s*\[\[.*\{\{node (?:[^{}\s]*/)?(\w+?)(?:_\d+)?\}\}\]\]$', re.MULTILINE)


def kind(error: BaseException) -> str:
  """The class of an error, and of a graph's the operation: 'X in GatherV2'."""
  # Only names of TensorFlow's operations are told, because the message may quote data.
  name = type(error).__name__
  if isinstance(error, tf.errors.OpError):
    if operations := [operation for operation in _NODE.findall(error.message)
                      if hasattr(tf.raw_ops, operation)]:
      return f'{name} in {operations[-1]}'
  return name


class ComputationError(RuntimeError):
  """A computation failed; the message has no value of the data.

  Attributes:
    kind: See the function.
    detail: The message of the error, which may have values of clients' data: for the
      operator alone.
  """

  def __init__(self, kind: str, detail: str):  # pylint: disable=redefined-outer-name
    super().__init__(f'a computation failed: {kind} (the error\'s `detail` says more, '
                     'maybe values of clients\' data)')
    self.kind, self.detail = kind, detail

  def __reduce__(self):
    return type(self), (self.kind, self.detail)

  @classmethod
  def of(cls, error: BaseException) -> 'ComputationError':
    """The error of a computation that raised this one."""
    return cls(kind(error), f'{type(error).__name__}: {error}')


def called(function: Callable[[], Any]) -> Any:
  """The result of a function that computes on clients' data.

  Raises ComputationError for whatever it raises, except for OSError, of workers and
  files, and NotImplementedError, which says that a context can't do it.
  """
  try:
    return function()
  except (ComputationError, OSError, NotImplementedError):
    raise
  except Exception as error:  # pylint: disable=broad-exception-caught
    failure = ComputationError.of(error)
  raise failure  # Here its context is not the error, which tracebacks would print.

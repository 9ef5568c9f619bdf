"""TFF's default context, which can't run secure sums, and its message."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow_federated as tff

from aggregators import tff_internals
from tests import modules

_PROGRAM = '''
import numpy as np
import tensorflow_federated as tff
from aggregators.distributed_sum import DistributedSumFactory
from aggregators.params import DistributedSumParams

process = DistributedSumFactory(DistributedSumParams(
    clip=1.0, noise_multiplier=1.0, bits=16, dimension=3, cohort_size=2)).create(
        tff.TensorType(np.float32, [3]))
process.next(process.initialize(), [np.ones(3, np.float32)] * 2)
'''


def _run(program, path):
  """Exit code and last line of a program in an interpreter of its own."""
  with open(path, 'w+', encoding='utf-8') as errors:
    process = subprocess.Popen(
        [sys.executable, '-W', 'ignore', '-c', program], cwd=modules.ROOT,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
        start_new_session=True)
    try:
      code = process.wait(120)
    finally:
      # TFF's worker outlives its program.
      os.killpg(process.pid, signal.SIGKILL)
    errors.seek(0)
    return code, (errors.read().strip().splitlines() or [''])[-1]


@pytest.mark.slow
def test_a_context_without_secure_sums_says_which_has_them(tmp_path):
  code, last = _run(_PROGRAM, tmp_path / 'errors.txt')
  assert code == 1
  assert last.startswith('RuntimeError: this execution context cannot run secure sums')
  assert 'tff_pipelines.simulation.contexts.simulation()' in last


@pytest.mark.slow
def test_a_factory_runs_under_tffs_contexts_for_tests(tmp_path):
  code, last = _run(_PROGRAM.replace(
      '\nprocess =', '\ntff.backends.test.set_sync_test_cpp_execution_context()\n'
      'process ='), tmp_path / 'errors.txt')
  assert code == 0, last


def test_a_context_that_a_program_has_set_is_left_as_it_is(in_process):
  stack = tff.framework.get_context_stack()
  own = stack.current
  total = tff.federated_computation(
      lambda values: tff_internals.secure_modular_sum(values, 4),
      tff.FederatedType(np.int32, tff.CLIENTS))
  assert stack.current is own
  assert total([np.int32(3), np.int32(2)]) == 1

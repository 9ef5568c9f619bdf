"""Tests of tff_pipelines.simulation.transports: when a worker has grown."""

import pytest

from tff_pipelines.simulation import transports


@pytest.mark.parametrize('after, has_grown', [(130, False), (155, False), (157, True)])
def test_a_worker_has_grown_by_a_fifth_of_what_it_had_when_it_was_warm(
    after, has_grown):
  memory = transports.Memory()
  for resident in (100, *[130] * (transports.WARM - 1)):
    memory.observe(resident)
    assert not memory.has_grown
  memory.observe(after)
  assert memory.has_grown == has_grown


def test_memory_that_is_used_is_resident():
  before = transports.resident_bytes()
  used = bytearray(b'x' * 50_000_000)
  assert transports.resident_bytes() - before > 40_000_000
  del used

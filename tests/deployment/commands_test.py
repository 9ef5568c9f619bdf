"""Parties enrol, agree and run by their commands."""

import contextlib
import dataclasses
import json
import threading

import numpy as np
import pytest

from benchmarks import federation as federation_lib
from tests.programs import in_process
from tff_pipelines import deploy
from tff_pipelines.common import files
from tff_pipelines.deployment.engine import commands, parties, settings
from tff_pipelines.experiment import cli

pytestmark = pytest.mark.usefixtures('shared_context')
CASE = federation_lib.CASES['quick']


@pytest.fixture(scope='module', name='arrays')
def _arrays(tmp_path_factory):
  return federation_lib.arrays_of(CASE, None, tmp_path_factory.mktemp('arrays'))


@pytest.fixture(scope='module', name='federation')
def _federation(tmp_path_factory, arrays):
  """Three sites and two servers, of a seeded run."""
  return federation_lib.Federation(
      CASE, arrays, tmp_path_factory.mktemp('parties') / 'all', federation_lib.Network([]),
      seed=3)


def _settings(cls, command):
  return cli.parsed(cls, command[1:])


def test_a_run_over_two_servers_is_that_of_the_simulation(federation, arrays):
  sites = [threading.Thread(target=commands.client, args=[_settings(
      settings.ClientSettings, federation.command(name))]) for name in federation.sites]
  with commands.helping(_settings(
      settings.HelperSettings, federation.command('helper'))) as helper:
    for site in sites:
      site.start()
    finished = in_process.run(
        'tff_pipelines.deploy', *federation.command('leader'), folder=federation.folder)
    for site in sites:
      site.join(60)
  assert finished.code == 0, finished.stderr
  assert helper.opened['round'] == 3 and not any(site.is_alive() for site in sites)
  path = federation.folder / 'all.npz'
  np.savez(path, **arrays)
  federation_lib.simulated(federation, path)
  ours, theirs = (federation_lib.model(federation.folder / name)
                  for name in ('run', 'simulated'))
  for name, array in theirs.items():
    np.testing.assert_array_equal(ours[name], array)
  summary = in_process.summary(federation.folder / 'run')
  assert summary['secure_aggregation'] == 'two servers, not audited'
  assert summary['about']['raw_rows'] == 'Each site its own; neither server'
  assert 'two servers, not audited' in summary['caveats']
  assert 'closed sums simulated' not in summary['caveats']

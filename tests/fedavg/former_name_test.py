"""The process can be imported by its former name."""

import importlib
import sys

import pytest

from tff_pipelines.fedavg import process


def test_former_name_of_the_module_names_the_new_one(monkeypatch):
  monkeypatch.delitem(sys.modules, 'tff_pipelines.algorithms.fedavg', raising=False)
  with pytest.warns(DeprecationWarning, match='tff_pipelines.fedavg.process'):
    former = importlib.import_module('tff_pipelines.algorithms.fedavg')
  assert former.build is process.build

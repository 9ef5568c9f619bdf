"""Fixtures of the tests of aggregators."""

import pytest

from tests.aggregators import forms


@pytest.fixture(params=['in_process', 'one_worker'])
def anywhere(request):
  """The test runs in this process, and then on a worker."""
  request.getfixturevalue(request.param)


@pytest.fixture(params=['graph', 'kernels'])
def form(request, monkeypatch):
  """Runs a test of rounding, noise or encoding with the graph form and the kernels."""
  if request.param == 'kernels':
    forms.use_kernels(monkeypatch)
  return request.param

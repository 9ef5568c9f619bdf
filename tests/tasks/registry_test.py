"""Tests of tasks.registry."""

import subprocess
import sys

import pytest

from tasks import registry, task
from tasks.emnist import task as emnist


def test_build_passes_options_on_and_leaves_out_those_not_given():
  built = registry.build(
      'emnist', model='cnn_1m', data_source='embedded', num_clients=17, data_path=None)
  assert isinstance(built, task.Task)
  assert built.name == 'emnist'
  assert built.model.name == 'cnn_1m'
  assert len(built.train.client_ids) == 17


@pytest.mark.parametrize('name, options, message', [
    ('mnist', {}, "task must be one of emnist, .*found 'mnist'"),
    ('emnist', {'modle': 'x', 'alpha': 1},
     'task emnist does not use alpha, modle; its options are model, data_source'),
    ('emnist', {'model': 'resnet'},
     "model must be one of cnn_1m, cnn_small, found 'resnet'"),
    ('emnist', {'data_source': 'web'},
     "data_source must be one of csv, embedded, folder, .*found 'web'"),
    ('emnist', {'data_path': 'f.npz'},
     'data_source embedded does not use data_path; its options are num_cli'),
    ('emnist', {'data_source': 'npz', 'data_path': 'f', 'num_clients': 0},
     'data_source npz does not use num_clients without partition'),
    ('emnist', {'data_source': 'npz', 'data_path': 'f', 'partition': 'iid'},
     'partition needs num_clients'),
    ('emnist', {'partition': 'iid', 'dirichlet_alpha': 1.0},
     'partition iid does not use dirichlet_alpha'),
    ('emnist', {'data_source': 'leaf'}, 'data_source leaf needs data_path'),
    ('emnist', {'data_source': 'leaf', 'data_path': 'f', 'client_field': 'c'},
     'data_source leaf does not use client_field; its options are data_path'),
    ('emnist', {'data_source': 'npz'}, 'data_source npz needs data_path'),
    ('emnist', {'num_clients': 0}, 'num_clients must be an integer from 1 to')])
def test_bad_names_and_options_are_one_clear_line(name, options, message):
  with pytest.raises(ValueError, match=message) as raised:
    registry.build(name, **options)
  assert '\n' not in str(raised.value)


@pytest.mark.parametrize('name, options, message', [
    ('shakespeare', {'data_source': 'official'},
     "data_source must be embedded with .*found 'official'"),
    ('stackoverflow_tag', {'num_labels': 3, 'num_clients': 5},
     'the copy of embedded data does not use num_labels'),
    ('stackoverflow_word', {'num_clients': 1}, 'num_clients must be .* 2 to the 375'),
    ('shakespeare', {'partition': 'iid'}, 'task shakespeare does not use partition')])
def test_copies_of_a_tasks_data_refuse_what_they_do_not_use(name, options, message):
  with pytest.raises(ValueError, match=message):
    registry.open_raw(name, **options)


def test_lists_agree_with_what_the_task_has():
  assert set(registry.MODELS) == set(registry.TASKS)
  assert set(registry.OPTIONS) == set(registry.TASKS)
  assert registry.MODELS['emnist'] == tuple(sorted(emnist.MODELS))
  assert registry.DATA_SOURCES == emnist.SOURCES
  data_options = {name for source in emnist.SOURCES for name in emnist.options_of(source)}
  assert set(registry.OPTIONS['emnist']) == data_options | {'model', 'data_source'}


def test_listing_the_tasks_imports_no_tensorflow():
  code = ('import sys; from tasks import registry; registry.TASKS; '
          'sys.exit("tensorflow" in sys.modules or "sklearn" in sys.modules)')
  result = subprocess.run([sys.executable, '-c', code], check=False)
  assert result.returncode == 0

"""The examples, and the snippets of README.md, run as they are."""

import ast
import importlib
import pathlib
import re

import pytest

from tests import modules

FOLDER = modules.ROOT / 'examples'
NAMES = sorted(path.stem for path in FOLDER.glob('[!_]*.py'))


@pytest.mark.parametrize('name', NAMES)
def test_examples_are_short_and_say_how_to_run_them(name):
  text = (FOLDER / f'{name}.py').read_text(encoding='utf-8')
  assert len(text.splitlines()) < 60
  assert f'python -m examples.{name}' in ast.get_docstring(ast.parse(text))


@pytest.mark.slow
def test_the_aggregator_trains_a_model_of_tff_learning(capsys):
  losses = importlib.import_module('examples.aggregator_in_tff').main()
  assert losses[-1] < 0.8 * losses[0]
  assert len(capsys.readouterr().out.splitlines()) == len(losses)


def test_a_run_done_elsewhere_is_accounted_for(capsys):
  guarantee = importlib.import_module('examples.account_for_a_run').main()
  assert 0 < guarantee.epsilon < 100 and guarantee.adjacency == 'zero-out'
  first, twice = (float(re.search(r'epsilon.*? ([\d.]+)', line)[1])
                  for line in capsys.readouterr().out.splitlines())
  assert guarantee.epsilon <= first < twice < 2 * first


@pytest.mark.slow
def test_a_keras_model_of_ones_own_is_trained():
  result = importlib.import_module('examples.own_keras_model').main(rounds=3)
  assert len(result.metrics) == 3 and 7.9 < result.guarantee.outsiders.epsilon <= 8
  assert [w.shape for w in result.weights.values()] == [
      (3, 3, 1, 8), (8,), (288, 10), (10,)]


@pytest.mark.slow
def test_an_lstm_of_ones_own_is_trained_on_tags():
  result = importlib.import_module('examples.own_keras_lstm').main(rounds=1)
  measured = result.summary['held_out']['test']
  assert result.summary['headline'] == 'recall_at_5'
  assert 0 <= measured['recall_at_5'] <= 1 and measured['loss'] > 0
  assert [w.shape for w in result.weights.values()] == [
      (1001, 32), (32, 256), (64, 256), (256,), (64, 50), (50,)]


@pytest.mark.slow
def test_a_table_of_ones_own_is_learnt():
  result = importlib.import_module('examples.own_table').main(rounds=12)
  assert 3.9 < result.guarantee.outsiders.epsilon <= 4
  (metrics,) = result.summary['held_out'].values()
  assert metrics['mae'] < 9  # 9.6 is that of the best constant.


@pytest.mark.slow
def test_a_model_is_published_with_its_statement(capsys):
  statement = importlib.import_module('examples.publish_a_model').main(rounds=2)
  assert statement['private'] is True and statement['epsilon'] <= 8
  assert 'class of an empty image' in capsys.readouterr().out


def _snippets(name: str) -> list[str]:
  text = (modules.ROOT / name).read_text(encoding='utf-8')
  return re.findall(r'^```python\n(.*?)^```', text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize('number', range(len(_snippets('README.md'))))
def test_a_snippet_of_the_readme_runs_as_pasted(number, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  snippet = pathlib.Path(tmp_path / 'snippet.py')
  text = _snippets('README.md')[number].replace('rounds=20', 'rounds=2')
  snippet.write_text(text, encoding='utf-8')
  exec(compile(snippet.read_text(), str(snippet), 'exec'), {'__name__': 'pasted'})  # pylint: disable=exec-used

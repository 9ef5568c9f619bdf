"""Mistakes, interrupts and faults of the program `account`."""

import pytest

from tests.queries import account_test
from tff_pipelines.queries import run as run_lib

_QUESTION = ('--mechanism=gaussian', '--noise_multiplier=1', '--delta=0.1')


def _answers_by(monkeypatch, result):
  def answer(settings):
    del settings
    if isinstance(result, BaseException):
      raise result
    return result
  monkeypatch.setattr(run_lib, 'answer', answer)


@pytest.mark.parametrize('result, code', [
    (None, 0), (0, 0), (1, 1), (KeyboardInterrupt(), 130)])
def test_exit_codes(monkeypatch, result, code):
  _answers_by(monkeypatch, result)
  assert account_test.run(*_QUESTION, code=code).stderr == ''


@pytest.mark.parametrize('mistake, words', [
    (ValueError('delta must be\nsmall'), 'delta must be small'),
    (FileNotFoundError(2, 'no such file', 'x.json'), 'x.json')])
def test_mistakes_are_one_line_and_exit_code_2(monkeypatch, mistake, words):
  _answers_by(monkeypatch, mistake)
  (line,) = account_test.run(*_QUESTION, code=2).stderr.strip().splitlines()
  assert line.startswith('error: ') and words in line


@pytest.mark.parametrize('arguments, words', [
    (['--rounds=0'], 'rounds'), (['--rounds=much'], 'rounds'), (['--wise=1'], 'wise'),
    (['more'], 'more')])
def test_wrong_flags_are_one_line_and_exit_code_2(arguments, words):
  (line,) = account_test.run(
      *_QUESTION, *arguments, code=2).stderr.strip().splitlines()
  assert line.startswith('error: ') and words in line


def test_faults_of_the_program_are_not_hidden(monkeypatch):
  _answers_by(monkeypatch, TypeError('a fault'))
  with pytest.raises(TypeError, match='a fault'):
    account_test.run(*_QUESTION)

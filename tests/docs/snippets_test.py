"""The tutorial, its notebook, and the snippets of the guides run as they are."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.docs import pages
from tests.programs import in_process

GUIDES = ('composing.md', 'correlated_noise.md', 'migrating.md', 'tutorial.md')


@pytest.fixture
def here(tmp_path, monkeypatch):
  """An empty folder, which the modules of a page are imported from."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  return tmp_path


def _run(blocks, folder):
  """Runs blocks in order: Python in one namespace, commands as programs.

  A block whose first line is a comment with a file's name is that file.
  """
  namespace = {'__name__': 'pasted'}
  for block in blocks:
    name = re.match(r'# (\w+\.py)\n', block.text)
    if name:
      (folder / name[1]).write_text(block.text, encoding='utf-8')
    elif block.language == 'python':
      code = compile(block.text, 'snippet', 'exec')
      exec(code, namespace)  # pylint: disable=exec-used
    elif not block.language:
      for module, *arguments in pages.commands(f'```\n{block.text}```\n'):
        # Two rounds show as much as thirty.
        arguments = [re.sub('--rounds=.*', '--rounds=2', argument)
                     for argument in arguments]
        finished = in_process.run(module, *arguments, folder=folder)
        assert not finished.code, (module, finished.stderr)
  return namespace


@pytest.mark.slow
@pytest.mark.parametrize('name', GUIDES)
def test_a_guide_runs_from_top_to_bottom(name, here, shared_context):
  del shared_context  # Guides share what is compiled.
  blocks = pages.blocks((pages.DOCS / name).read_text(encoding='utf-8'))
  if name == 'migrating.md':  # Its commands are of full size.
    blocks = [block for block in blocks if block.language]
  _run(blocks, here)


@pytest.mark.slow
def test_the_notebook_finds_the_project_and_runs_from_top_to_bottom(tmp_path):
  notebook = json.loads(
      (pages.ROOT / 'examples' / 'tutorial.ipynb').read_text(encoding='utf-8'))
  assert notebook['nbformat'] == 4
  assert not any(cell.get('outputs') for cell in notebook['cells'])
  code = '\n'.join(''.join(cell['source']) for cell in notebook['cells']
                   if cell['cell_type'] == 'code')
  for name in ('aggregators', 'tasks', 'tff_pipelines'):
    (tmp_path / name).symlink_to(pages.ROOT / name)
  (tmp_path / 'examples').mkdir()
  run = subprocess.run(
      [sys.executable, '-c', code], cwd=tmp_path / 'examples', capture_output=True,
      env={**os.environ, 'PYTHONPATH': ''}, text=True, check=False)
  assert run.returncode == 0, run.stderr
  assert 'epsilon: 1.99' in run.stdout and '4/4' in run.stderr
  assert list(tmp_path.glob('out/*/report.html'))

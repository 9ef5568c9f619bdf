"""The site is built from the documents without a warning."""

import os
import re
import subprocess

import pytest

from tests.docs import pages

PYTHON = pages.ROOT / '.venv-docs' / 'bin' / 'python'


def test_what_builds_the_site_is_pinned_with_hashes():
  text = (pages.ROOT / 'requirements-docs.txt').read_text(encoding='utf-8')
  pinned = re.findall(r'^([\w.-]+)==[\w.]+ \\\n    --hash=sha256:[0-9a-f]{64}$', text,
                      re.MULTILINE)
  assert {'mkdocs-material', 'mkdocstrings-python'} <= set(pinned)
  assert len(pinned) == text.count('==') and 'tensorflow' not in pinned


@pytest.mark.skipif(not PYTHON.exists(), reason='make site has not set up .venv-docs')
def test_the_site_is_built_without_warnings_or_network(tmp_path):
  built = subprocess.run(
      [PYTHON, '-m', 'mkdocs', 'build', '--strict', f'--site-dir={tmp_path}/site'],
      cwd=pages.ROOT, text=True, capture_output=True, check=False, env={
          **os.environ, 'NO_MKDOCS_2_WARNING': '1',
          # A proxy that is not there: nothing may be fetched.
          'HTTPS_PROXY': 'http://127.0.0.1:9', 'HTTP_PROXY': 'http://127.0.0.1:9'})
  assert built.returncode == 0 and 'WARNING' not in built.stderr, built.stderr
  page = (tmp_path / 'site' / 'api' / 'aggregators.html').read_text(encoding='utf-8')
  assert 'Formal guarantees' in page and 'DistributedSumFactory' in page
  index = (tmp_path / 'site' / 'index.html').read_text(encoding='utf-8')
  assert not re.findall(r'(?:src|href)="(?:https?:)?//[^"]*\.(?:js|css)', index)

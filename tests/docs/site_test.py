"""The site is built from the documents without a warning, and works from the disk."""

import html
import os
import re
import shutil
import subprocess

import pytest

from tests.docs import pages

PYTHON = pages.ROOT / '.venv-docs' / 'bin' / 'python'
CHROMIUM = shutil.which('chromium') or shutil.which('google-chrome')


def test_what_builds_the_site_is_pinned_with_hashes():
  text = (pages.ROOT / 'requirements-docs.txt').read_text(encoding='utf-8')
  pinned = re.findall(r'^([\w.-]+)==[\w.]+ \\\n    --hash=sha256:[0-9a-f]{64}$', text,
                      re.MULTILINE)
  assert {'mkdocs-material', 'mkdocstrings-python'} <= set(pinned)
  assert len(pinned) == text.count('==') and 'tensorflow' not in pinned


@pytest.fixture(name='site', scope='module')
def _site(tmp_path_factory):
  """The folder of the site, built without network."""
  if not PYTHON.exists():
    pytest.skip('make site has not set up .venv-docs')
  folder = tmp_path_factory.mktemp('site')
  built = subprocess.run(
      [PYTHON, '-m', 'mkdocs', 'build', '--strict', f'--site-dir={folder}'],
      cwd=pages.ROOT, text=True, capture_output=True, check=False, env={
          **os.environ, 'NO_MKDOCS_2_WARNING': '1',
          # A proxy that is not there: nothing may be fetched.
          'HTTPS_PROXY': 'http://127.0.0.1:9', 'HTTP_PROXY': 'http://127.0.0.1:9'})
  assert built.returncode == 0 and 'WARNING' not in built.stderr, built.stderr
  return folder


def _text(path):
  """The words of a page's content."""
  article = path.read_text(encoding='utf-8').partition('<article')[2]
  words = re.sub('<[^>]+>', '', article.partition('</article>')[0])
  return ' '.join(html.unescape(words).split())


def test_pages_load_nothing_from_another_host(site):
  paths = list(site.rglob('*.html'))
  assert len(paths) > 30
  for path in paths:
    tags = re.findall(r'<(?:script|link|img|iframe)\b[^>]*>', path.read_text('utf-8'))
    assert tags and not [tag for tag in tags if re.search('(?:src|href)="?[^" ]*//', tag)]


def test_fields_of_settings_have_type_default_and_range(site):
  assert 'Formal guarantees' in _text(site / 'api' / 'aggregators.html')
  settings = _text(site / 'api' / 'programs.html').partition(' TrainSettings ')[2]
  assert re.search(
      r' epsilon \( ?float \| None ?, default: None ?\) – Target epsilon [^[]*None: 8, '
      r'[^[]*\[greater than 0\]', settings)
  assert re.search(r' noise_multiplier \( ?float \| None ?, default: None ?\) – Noise '
                   r'standard deviation over the clip, [^[]*\[greater than 0\]', settings)
  assert re.search(r' clip \( ?float \| None ?, default: [^[]*\[model units;', settings)
  for path in (site / 'api').glob('*.html'):
    assert not re.search(r'\b(?:_\w+|setting|like|field)\(', _text(path)), path


@pytest.mark.skipif(CHROMIUM is None, reason='there is no Chromium')
@pytest.mark.parametrize('page', ['index.html', 'api/programs.html'])
def test_the_search_works_from_the_disk(site, page, tmp_path):
  shown = subprocess.run(
      [CHROMIUM, '--headless=new', '--no-sandbox', '--disable-gpu', '--dump-dom',
       f'--user-data-dir={tmp_path}', '--virtual-time-budget=20000',
       # No name is resolved.
       '--host-resolver-rules=MAP * ~NOTFOUND', f'file://{site}/{page}?q=Skellam'],
      text=True, capture_output=True, check=True, timeout=120).stdout
  assert re.search(r'\d+ matching documents', shown)
  assert 'skellam_as_gaussian.html' in ''.join(
      re.findall(r'<a href="([^"]*)" class="md-search-result__link"', shown))

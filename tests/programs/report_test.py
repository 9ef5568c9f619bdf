"""The page of finished runs: what the program reads, refuses and finds wrong."""

import json
import os
import shutil
import subprocess

import matplotlib.image
import pytest

from tests.experiment import (
    page_example_run as example_run, page_parsed as parsed, smallest_family)
from tests.programs import in_process
from tff_pipelines.common import files
from tff_pipelines.experiment import page_document as document

REPORT = 'tff_pipelines.report'


@pytest.fixture(name='folders', scope='module')
def _folders(shared_context, tmp_path_factory):
  """Folders of two runs with a guarantee."""
  base = tmp_path_factory.mktemp('runs')
  for name, noise in (('one', 4.0), ('two', 8.0)):
    smallest_family.release_means(smallest_family.MeanSettings(
        noise_multiplier=noise, output_dir=str(base / name)))
  return base / 'one', base / 'two'


def _run(*arguments, folder):
  return in_process.run(REPORT, *map(str, arguments), folder=folder)


def _read(path):
  return parsed.Page(path.read_text(encoding='utf-8'))


def test_page_of_one_run_is_in_its_folder(folders):
  path = folders[0] / files.PAGE
  before = path.read_bytes()
  path.unlink()
  done = _run(folders[0], folder=folders[0].parent)
  assert (done.code, done.stdout) == (0, f'{path}\n')
  # As training left it, whose numbers are those of the ledger.
  assert path.read_bytes() == before
  page = _read(path)
  # The error over rounds, epsilon over rounds.
  assert page.count['figure'] == 2 and page.count['section'] == 4


def test_runs_are_compared_side_by_side(folders, tmp_path):
  done = _run(*folders, '--output=both.html', folder=tmp_path)
  assert done.code == 0, done.stderr
  page = _read(tmp_path / 'both.html')
  assert page.count['article'] == 2 and page.count['figure'] == 2
  assert 'noise_multiplier 4 8' in ' '.join(page.text.split())
  assert page.texts.count('holds') == page.texts.count('yes') == 2


def test_ledger_that_does_not_prove_the_summary_is_reported(folders, tmp_path):
  folder = tmp_path / 'run'
  shutil.copytree(folders[0], folder)
  summary = json.loads((folder / files.SUMMARY).read_text())
  files.write_json(folder / files.SUMMARY, {**summary, 'epsilon': 0.1})
  done = _run(folder, folder=tmp_path)
  assert done.code == 1
  assert 'the ledger of run does not prove the guarantee' in done.stdout
  files.write_json(folder / files.SUMMARY, summary)
  path = folder / files.LEDGER
  lines = path.read_text().splitlines(keepends=True)
  for broken, words in ((lines[:-1], 'the file must hold 3 rounds, found 2'),
                        ([lines[0], *lines[2:]], 'line 2 must be round 1')):
    path.write_text(''.join(broken))
    done = _run(folder, folder=tmp_path)
    assert done.code == 1 and words in _read(folder / files.PAGE).text


@pytest.mark.parametrize('arguments, message', [
    ([], 'runs must name at least one value, found none'),
    (['absent'], 'absent must be the folder of a finished run, found no summary.json'),
    (['{one}', '{one}/'], 'runs must name every folder once'),
    (['{one}', '--output={one}/ledger.jsonl/x.html'], 'Not a directory'),
    (['{one}', '--outputs=x'], 'unknown flag --outputs: did you mean --output?')])
def test_mistakes_are_one_line(folders, tmp_path, arguments, message):
  done = _run(*(argument.format(one=folders[0]) for argument in arguments),
              folder=tmp_path)
  in_process.check_refused(done, message)
  assert not done.stdout


# Shows a page in a frame of a width, and then says how wide its content is.
_FRAME = '''<!doctype html><body style="margin:0">
<iframe id="frame" style="width:{width}px; height:{height}px; border:0" srcdoc="{page}">
</iframe><script>
frame.onload = () => {{ const root = frame.contentDocument.documentElement;
document.title = root.scrollWidth + ' of ' + root.clientWidth; }}
</script>'''


def _chromium(*arguments):
  browser = shutil.which('chromium')
  if browser is None:
    pytest.skip('there is no chromium on the PATH')
  sandbox = ['--no-sandbox'] if os.geteuid() == 0 else []
  return subprocess.run(
      [browser, '--headless', '--disable-gpu', '--hide-scrollbars', *sandbox,
       *arguments], check=True, capture_output=True, text=True, timeout=120).stdout


@pytest.mark.slow
@pytest.mark.parametrize('width, height', [(1280, 2400), (360, 3600)])
def test_page_is_looked_at_in_a_browser(tmp_path, width, height):
  page = document.document([example_run.run(name) for name in (
      'first', 'second-with-a-name-that-is-far-too-long-for-a-phone', 'third')])
  frame, picture = tmp_path / 'frame.html', tmp_path / 'picture.png'
  frame.write_text(_FRAME.format(
      width=width, height=height, page=page.replace('&', '&amp;').replace(
          '"', '&quot;')), encoding='utf-8')
  shown = _chromium('--dump-dom', frame.as_uri())
  # Nothing but its own boxes scrolls sideways.
  assert f'<title>{width} of {width}</title>' in shown
  _chromium(f'--screenshot={picture}', f'--window-size={max(500, width)},{height}',
            frame.as_uri())
  pixels = matplotlib.image.imread(picture)[:, :width, :3]
  dark = pixels.min(axis=2) < 0.5
  assert dark[:height // 3].any(axis=1).mean() > 0.2
  assert dark.any(axis=0).mean() > 0.5

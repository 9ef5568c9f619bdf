"""Messages over pipes, for an engine that starts the parties and need not be trusted."""

import contextlib
import importlib.util
import os
import sys
import threading

import pytest

from tests import modules
from tests.deployment.federation import Federation
from tff_pipelines.deployment import messages
from tff_pipelines.deployment.engine import pipes

_BRIDGE = modules.ROOT / 'deploy' / 'nvflare' / 'pipelines_nvflare' / 'bridge.py'


@pytest.fixture(name='bridge')
def _bridge():
  """The engine's half, which needs the standard library alone."""
  spec = importlib.util.spec_from_file_location('bridge', _BRIDGE)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.fixture(name='ends')
def _ends():
  """Makes the pipes of a party, and those of the engine that started it."""
  with contextlib.ExitStack() as stack:
    def made():
      (reads, their_writes), (their_reads, writes) = os.pipe(), os.pipe()
      opened = [stack.enter_context(os.fdopen(*pair)) for pair in (
          (reads, 'rb'), (writes, 'wb'), (their_reads, 'rb'), (their_writes, 'wb'))]
      # The engine's end first, for which threads wait.
      stack.callback(opened[3].close)
      return pipes.Pipes(*opened[:2]), pipes.Pipes(*opened[2:])

    yield made


def _client(ends, federation, name, logs):
  """The engine's end of a site that participates on a thread."""
  own, engine = ends()
  threading.Thread(target=pipes.take_part, args=(federation.client(name), own), kwargs=dict(
      most=10**6, log=logs.append), daemon=True).start()
  assert engine.read(0)[0]['kind'] == 'ready'
  return engine


def test_rounds_are_opened_over_pipes_and_what_comes_late_is_left_out(tmp_path, ends):
  federation, logs, (own, engine) = Federation(tmp_path), [], ends()
  engine.send('engine', name='an engine 1.0')
  carrier = pipes.LeaderPipes(own, federation.helper().answer, 10**6)
  assert carrier.engine == 'an engine 1.0' and engine.read(0)[0]['kind'] == 'ready'
  sites = {name: _client(ends, federation, name, logs) for name in federation.identities}

  def carry():
    while (frame := engine.read(10**6))[0]['kind'] == 'round':
      for name in frame[0]['clients']:
        sites[name].send('round', frame[1])
        engine.send('upload', sites[name].read(10**6)[1])
      engine.send('end')

  thread = threading.Thread(target=carry, daemon=True)
  thread.start()
  for index in (1, 2):
    round_ = federation.round(index)
    for upload in carrier.uploads(round_.message, list(federation.identities)):
      round_.take(upload)
      if round_.reported == 3:  # The leader has enough: the fourth is left out.
        break
    found = round_.finish(request := round_.request(), carrier.opened(request))
    assert len(found.clients) == 3
  carrier.close()
  thread.join(20)
  assert not thread.is_alive() and not logs


def test_a_site_says_why_it_refuses_and_an_end_is_an_end(tmp_path, ends):
  federation, logs = Federation(tmp_path), []
  engine = _client(ends, federation, 'site 0', logs)
  engine.send('round', b'no message')
  header, content = engine.read(10**6)
  assert header == {'kind': 'refused', 'size': 0}  # Why is the site's own matter.
  assert not content and not federation.vectors
  assert len(logs) == 1 and 'message must begin' in logs[0]
  own, engine = ends()
  engine.send('engine', name='one')
  carrier = pipes.LeaderPipes(own, lambda request: None, 10)
  engine._writes.close()
  with pytest.raises(OSError, match='the engine ended the run'):
    list(carrier.uploads(b'message', ['site 0']))
  carrier.close()


@pytest.mark.parametrize('content', [
    b'\xff\xff\xff\xff', b'\x00\x00\x00\x02[]', b'\x00\x00\x00\x0c{"size": 99}', b'\x00\x00\x00\x02{]'])
def test_what_is_no_frame_is_refused(ends, content):
  own, engine = ends()
  engine._writes.write(content)
  engine._writes.close()
  with pytest.raises(ValueError, match='must send frames of at most 10 bytes'):
    own.read(10)


def test_the_engine_hears_of_the_end_of_a_party_by_its_last_line(bridge):
  say = 'import sys; print("error: no policy", file=sys.stderr); print("more", file=sys.stderr)'
  party = bridge.Party([sys.executable, '-c', say])
  with pytest.raises(bridge.Ended, match='error: no policy'):
    party.receive()
  assert party.end() == 0
  party = bridge.Party([sys.executable, '-c', 'import sys; sys.stdin.read()'])
  with pytest.raises(bridge.Ended, match='the engine ends the run'):
    party.receive(lambda: True)
  assert party.end() == 0
  echo = ('import sys; r, w = sys.stdin.buffer, sys.stdout.buffer\n'
          'w.write(r.read(4 + 45 + 3)); w.flush()')
  party = bridge.Party([sys.executable, '-c', echo])
  party.send('upload', b'abc', name='site')
  frame = party.receive()
  assert frame.kind == 'upload' and frame.content == b'abc'
  party.end()


def test_the_adapter_is_of_the_standard_library_and_the_engine_alone():
  for path in _BRIDGE.parent.glob('*.py'):
    text = path.read_text(encoding='utf-8')
    imported = {line.split()[1].split('.')[0] for line in text.splitlines()
                if line.startswith(('import ', 'from '))}
    assert imported <= {*sys.stdlib_module_names, 'nvflare', 'pipelines_nvflare'}, path
  assert 'nvflare' not in _BRIDGE.read_text(encoding='utf-8').replace('pipelines_nvflare', '')
  components = (_BRIDGE.parent / 'components.py').read_text(encoding='utf-8')
  assert f'_FORMAT = {messages._FORMAT!r}\n' in components

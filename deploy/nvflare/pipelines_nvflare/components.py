"""NVFlare's part at the server and at the sites: it carries messages, and no more.

The commands of the parties are in `local/tff_pipelines.json` of each start-up kit, which
its own administrator writes; a job has the agreement, and no code.
"""

import json
import os
import pathlib
import tempfile
import threading
import time

import nvflare
from nvflare.apis.controller_spec import Task, TaskCompletionStatus
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.filter import ContentBlockedException, Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import make_reply, Shareable

from pipelines_nvflare import bridge

ROUND, MESSAGE, UPLOAD, REASON = 'tff_pipelines_round', 'message', 'upload', 'reason'
# All that a site says of why it sends nothing: its own log has the words.
REFUSED, ENDED = REASONS = 'refused by the site', 'the site\'s process ended'
_LOCAL = 'tff_pipelines.json'
# First bytes of a message of the protocol.
_FORMAT = b'TFP1'


def _local(fl_ctx) -> dict:
  """The configuration of a start-up kit's own administrator."""
  workspace = fl_ctx.get_engine().get_workspace()
  path = pathlib.Path(workspace.get_site_config_dir()) / _LOCAL
  return json.loads(path.read_text(encoding='utf-8'))


def _started(fl_ctx, agreement: str) -> bridge.Party:
  """The process of this party, for a job's agreement."""
  local = _local(fl_ctx)
  handle, path = tempfile.mkstemp(suffix='.json')
  with os.fdopen(handle, 'w', encoding='utf-8') as file:
    file.write(agreement)
  return bridge.Party([
      *local['command'], '--engine=pipes', f'--agreement={path}',
      f'--approve={",".join(local["approved"])}'], local.get('folder'))


class SiteExecutor(Executor):
  """A site's: hands each round's message to the site's own process."""

  def __init__(self, agreement: str):
    """Takes the text of the agreement, by which the process checks everything."""
    super().__init__()
    self._agreement, self._party = agreement, None

  def handle_event(self, event_type: str, fl_ctx) -> None:
    if event_type in (EventType.END_RUN, EventType.ABORT_TASK) and self._party:
      self._party.end()
      self._party = None

  def execute(self, task_name: str, shareable: Shareable, fl_ctx, abort_signal) -> Shareable:
    if task_name != ROUND:
      return make_reply(ReturnCode.TASK_UNKNOWN)
    try:
      if self._party is None:
        self._party = _started(fl_ctx, self._agreement)
        self._party.receive(lambda: abort_signal.triggered)  # It is ready.
      self._party.send('round', shareable[MESSAGE])
      frame = self._party.receive(lambda: abort_signal.triggered)
    except (bridge.Ended, OSError, ValueError, KeyError) as error:
      self.log_error(fl_ctx, f'nothing is sent: {error}')
      self._party = self._party and self._party.end() and None
      return self._nothing(ReturnCode.EXECUTION_EXCEPTION, ENDED)
    if frame.kind != 'upload':
      for line in self._party.said[-1:]:
        self.log_error(fl_ctx, f'nothing is sent: {line}')
      return self._nothing(ReturnCode.EXECUTION_RESULT_ERROR, REFUSED)
    return Shareable({UPLOAD: frame.content})

  def _nothing(self, code: str, reason: str) -> Shareable:
    reply = make_reply(code)
    reply[REASON] = reason
    return reply


class UploadsOnly(Filter):
  """A site's filter that no job can leave out, by the first bytes of what leaves.

  A guard against mistakes: which classes a job may name, and that it brings no code, is
  what keeps out who means harm.

  For `task_result_filters` of the site's privacy policy.
  """

  def process(self, shareable: Shareable, fl_ctx) -> Shareable:
    content = {key: value for key, value in shareable.items()
               if not str(key).startswith('__')}
    if set(content) <= {REASON} and content.get(REASON, REFUSED) in REASONS:
      return shareable
    upload = content.pop(UPLOAD, None)
    if content or not isinstance(upload, bytes) or upload[:4] != _FORMAT:
      raise ContentBlockedException('a result may have a message of the protocol alone')
    return shareable


class LeaderController(Controller):
  """The server's: sends what the leader's process says, and hands it what sites answer."""

  def __init__(self, agreement: str, round_deadline: int = 120):
    """Takes the text of the agreement, and the seconds that a round waits for sites."""
    super().__init__(task_check_period=0.05)
    self._agreement, self._deadline = agreement, round_deadline
    self._party, self._lock = None, threading.Lock()

  def start_controller(self, fl_ctx) -> None:
    self._party = _started(fl_ctx, self._agreement)

  def stop_controller(self, fl_ctx) -> None:
    if self._party is not None:
      code = self._party.end()
      for line in self._party.said:
        self.log_info(fl_ctx, line)
      self.log_info(fl_ctx, f'the leader ended with code {code}')

  def control_flow(self, abort_signal, fl_ctx) -> None:
    is_over = lambda: abort_signal.triggered
    try:
      self._party.receive(is_over)  # It is ready.
      self._party.send('engine', name=f'NVFlare {nvflare.__version__}')
      while (frame := self._party.receive(is_over)).kind == 'round':
        self._round(frame, abort_signal, fl_ctx)
        self._party.send('end')
    except bridge.Ended as error:
      if not abort_signal.triggered:
        self.system_panic(f'the leader has ended: {error}', fl_ctx)

  def _round(self, frame: bridge.Frame, abort_signal, fl_ctx) -> None:
    answered = set()

    def received(client_task, fl_ctx) -> None:
      name, result = client_task.client.name, client_task.result
      with self._lock:
        answered.add(name)
        if isinstance(upload := result.get(UPLOAD), bytes):
          self._party.send('upload', upload)
        else:
          self.log_error(fl_ctx, f'{name} sends nothing: {result.get(REASON)!a:.100}')
      client_task.result = None  # Memory of the round.

    clients = frame.header['clients']
    task = Task(ROUND, Shareable({MESSAGE: frame.content}), timeout=self._deadline,
                result_received_cb=received)
    self.broadcast(task, fl_ctx, targets=clients, min_responses=len(clients))
    while task.completion_status is None and not abort_signal.triggered:
      missing = set(clients) - answered
      if not missing or all(map(self._is_gone, missing)):
        break
      time.sleep(0.02)
    if task.completion_status is None:
      self.cancel_task(task, TaskCompletionStatus.CANCELLED, fl_ctx)

  def _is_gone(self, name: str) -> bool:
    return self.get_client_disconnect_time(name) is not None

  def process_result_of_unknown_task(self, client, task_name, client_task_id, result,
                                     fl_ctx) -> None:
    del result  # Late: the round is over.
    self.log_info(fl_ctx, f'{client.name} was late')

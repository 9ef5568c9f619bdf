"""Slices computed by actors of Ray, on this machine or on a cluster.

Ray comes with requirements-ray.txt; nothing else in the project imports it. It
executes the pickles that it is sent, so any process that reaches its ports without a
token runs code on its machines: docs/clusters.md.
"""

from collections.abc import Sequence
from concurrent import futures
import contextlib
import dataclasses
import functools
import importlib
import ipaddress
import os
import pathlib
import pickle
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any
import warnings

import grpc
from tff_pipelines.simulation import proofs, ray_actor, transports

# Seconds in which all workers must start: they import TensorFlow, and hash the data.
_START = 600.0
_LOOPBACK = '127.0.0.1'
# Seconds in which nodes of a cluster must join.
_JOIN = 60.0
# Seconds in which the head of a cluster must answer.
_ANSWER = 20.0
# A request that every server of a cluster's head answers.
_CHECK_ALIVE = '/ray.rpc.NodeInfoGcsService/CheckAlive'

# In the environment of a private instance's processes.
_MARK = 'TFF_PIPELINES_RAY'
# Run by `python -S -c MARK`: ends the processes with a mark when this one is gone. Of
# Ray's, some outlive a driver that is killed, and one that is stopped hears nothing.
_WATCHER = r'''
import glob, os, shutil, signal, sys, time
for name in ("SIGINT", "SIGTERM", "SIGHUP"):
  signal.signal(getattr(signal, name), signal.SIG_IGN)
sys.stdin.buffer.read()
mark, folder = sys.argv[1].encode(), sys.argv[1].partition("=")[2]
for _ in range(50):
  left = 0
  for path in glob.glob("/proc/[0-9]*"):
    try:
      with open(path + "/environ", "rb") as file:
        if mark in file.read().split(b"\0"):
          os.kill(int(path[6:]), signal.SIGKILL)
          left += 1
    except OSError:
      pass
  if not left:
    break
  time.sleep(0.1)
shutil.rmtree(folder, ignore_errors=True)
'''


def _imported() -> Any:
  """The module `ray`, which reads the environment at its import; ValueError if none."""
  os.environ['RAY_USAGE_STATS_ENABLED'] = '0'
  # Its own exporters would listen.
  os.environ.setdefault('RAY_enable_metrics_collection', '0')
  try:
    return importlib.import_module('ray')
  except ImportError as error:
    raise ValueError(
        f'engine=ray needs Ray, which can\'t be imported ({error}): python -m pip '
        'install --no-deps --require-hashes -r requirements-ray.txt') from None


def check_settings(address: str | None) -> None:
  """Checks an address, HOST:PORT of a head, or None; starts nothing.

  Raises ValueError if Ray is not installed, the address has another form, or it is not
  of the loopback and there is no token.
  """
  if address:
    if (match := re.fullmatch(r'\[?([^\s/\[\]]+?)\]?:(\d{1,5})', address)) is None:
      raise ValueError(f'engine_address must be HOST:PORT, found {address!r}')
    if not _is_loopback(match[1]) and _token() is None:
      raise ValueError(
          f'engine_address={address} is not of the loopback, so its cluster must demand '
          'a token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH')
  _imported()


def check(address: str | None) -> None:
  """Checks the settings, and asks a cluster's head without and with the token.

  Raises ValueError as `check_settings`, and if a cluster elsewhere accepts requests
  without a token, or refuses ours; OSError if nothing like a head answers.
  """
  check_settings(address)
  if not address:
    return
  token, host = _token(), address.rpartition(':')[0].strip('[]')
  with _channel(address) as channel:

    def answers(*metadata: tuple[str, str]) -> bool:
      try:
        channel.unary_unary(_CHECK_ALIVE)(b'', timeout=_ANSWER, metadata=metadata)
        return True
      except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
          return False
        raise OSError(f'engine_address={address} does not answer as the head of a Ray '
                      f'cluster: {error.code().name}, {error.details()}') from None

    # Before Ray itself asks with the token.
    if answers():
      if not _is_loopback(host):
        raise ValueError(f'engine_address={address} takes requests without a token: '
                         'start its head and its nodes with RAY_AUTH_MODE=token')
    elif token is None:
      raise ValueError(f'engine_address={address} demands a token, and there is none')
    elif not answers(('authorization', f'Bearer {token}')):
      raise ValueError(f'engine_address={address} refuses the token')


def _is_loopback(host: str) -> bool:
  with contextlib.suppress(ValueError):
    return ipaddress.ip_address(host).is_loopback
  return host == 'localhost'


def _token() -> str | None:
  """The token with which Ray asks; None without one."""
  if os.environ.get('RAY_AUTH_MODE') != 'token':
    return None
  if token := os.environ.get('RAY_AUTH_TOKEN'):
    return token.strip()
  path = pathlib.Path(os.environ.get('RAY_AUTH_TOKEN_PATH') or '~/.ray/auth_token')
  with contextlib.suppress(OSError):
    return path.expanduser().read_text(encoding='utf-8').strip() or None
  return None


def _channel(address: str) -> grpc.Channel:
  """A channel to a cluster's head, by TLS if the environment says so to Ray."""
  if os.environ.get('RAY_USE_TLS', '0').lower() not in ('1', 'true'):
    return grpc.insecure_channel(address)
  files = []
  for name in ('CA_CERT', 'SERVER_KEY', 'SERVER_CERT'):
    path = os.environ.get(f'RAY_TLS_{name}', '')
    if not os.path.isfile(path):
      raise ValueError(f'RAY_USE_TLS needs RAY_TLS_{name} to name a file, found {path!r}')
    files.append(pathlib.Path(path).read_bytes())
  return grpc.secure_channel(address, grpc.ssl_channel_credentials(*files))


@dataclasses.dataclass
class _Worker:
  """Attributes: the actor; the request that it has; what it knows; its memory."""

  actor: Any
  pending: futures.Future = dataclasses.field(default_factory=futures.Future)
  known: frozenset[str] = frozenset()
  memory: transports.Memory = dataclasses.field(default_factory=transports.Memory)


def _one_line(error: BaseException) -> str:
  return ' '.join(str(error).split())[:500]


def _fail(future: futures.Future, error: BaseException) -> None:
  """Gives a future an error of ours, unless it has a result or an error."""
  cause = getattr(error, 'cause', error)
  if isinstance(cause, transports.SliceFailedError):
    error = transports.SliceFailedError(cause.kind, cause.detail)
  elif not isinstance(error, transports.WorkerLostError):
    error = transports.WorkerLostError(f'{type(error).__name__}: {_one_line(error)}')
  with contextlib.suppress(futures.InvalidStateError):
    future.set_exception(error)


def _pass_on(future: futures.Future, memory: transports.Memory,
             answered: futures.Future) -> None:
  if (error := answered.exception()) is not None:
    _fail(future, error)
    return
  result, told = answered.result()
  memory.record(*told)
  with contextlib.suppress(futures.InvalidStateError):
    future.set_result(result)


class RayTransport(transports.Transport):
  """Workers that are actors of Ray.

  Computations and arrays are put into the object store once, and fetched from there by
  each worker that lacks them: `bytes_sent` counts one copy. Partial results travel
  there, too. A worker whose memory has grown is replaced before its next slice.
  """

  def __init__(self, num_workers: int = 0, address: str | None = None, *,
               data: Sequence[proofs.DataProof] = ()):
    """Starts the workers, and checks that they agree with this process.

    A private instance of Ray listens on the loopback only, demands a token of its own,
    and ends with this process, however that ends. It must be started in a thread that
    lives as long as it.

    Args:
      num_workers: >= 0; 0 for as many as the cores of the machine, or the CPUs of the
        cluster, allow.
      address: HOST:PORT of the head of a cluster, of which this machine must be a
        node; None for a private instance on this machine.
      data: The data that workers read themselves.

    Raises ValueError as `check`, and if a worker disagrees (proofs.MismatchError);
    OSError if there is no cluster, or workers can't be started.
    """
    self.num_workers, self.bytes_sent, self._data = num_workers, 0, tuple(data)
    self._references: dict[str, Any] = {}
    self._workers: dict[int, _Worker] = {}
    self._watcher: subprocess.Popen | None = None
    self._at_end = contextlib.ExitStack()
    if not address:
      os.environ['RAY_AUTH_MODE'] = 'token'
      os.environ.setdefault('RAY_AUTH_TOKEN', secrets.token_hex(32))
    check(address)
    self._ray = _imported()
    self._is_ours = self._closed = False
    try:
      if address:
        self._connect(address)
      else:
        self.num_workers = num_workers or os.cpu_count() or 1
        self._start_private()
      self._start(range(self.num_workers))
    except BaseException:
      self.close()
      raise

  def _start_private(self) -> None:
    folder = tempfile.mkdtemp(prefix='ray-')  # Its mode is 0700.
    self._watcher = subprocess.Popen(
        [sys.executable, '-S', '-c', _WATCHER, f'{_MARK}={folder}'],
        stdin=subprocess.PIPE, start_new_session=True)
    os.environ[_MARK] = folder
    try:
      self._init(
          address='local', _node_ip_address=_LOOPBACK, include_dashboard=False,
          num_cpus=self.num_workers, _temp_dir=os.path.join(folder, 'ray'),
          # Partial sums stay in memory.
          _system_config={'automatic_object_spilling_enabled': False})
    finally:
      del os.environ[_MARK]

  def _connect(self, address: str) -> None:
    try:
      self._init(address=address)
    except (RuntimeError, ConnectionError, self._ray.exceptions.RayError) as error:
      raise OSError(
          f'engine_address={address} can\'t be used: {_one_line(error)}') from None
    # Nodes may join later than the head.
    deadline, needed = time.monotonic() + _JOIN, max(1, self.num_workers)
    while (cpus := int(self._ray.cluster_resources().get('CPU', 0))) < needed:
      if time.monotonic() > deadline:
        raise OSError(f'engine_address={address} must have {needed} CPUs for '
                      f'local_workers, found {cpus}')
      time.sleep(0.2)
    self.num_workers = self.num_workers or cpus

  def _init(self, **arguments: Any) -> None:
    """Connects to Ray, without its handler of SIGTERM and its messages."""
    if self._ray.is_initialized():
      raise ValueError('engine=ray can\'t be used where Ray is connected already')
    self._is_ours = True
    # Ray has read the environment when it was imported, which may be long ago.
    raylet = importlib.import_module('ray._raylet')
    raylet.Config.initialize('')
    raylet.AuthenticationTokenLoader.instance().reset_cache()
    # It prints deaths of workers, which are reported here as errors.
    ray_worker = self._ray._private.worker  # pylint: disable=protected-access
    former, ray_worker.print_to_stdstream = (
        ray_worker.print_to_stdstream, lambda *_, **__: None)
    self._at_end.callback(setattr, ray_worker, 'print_to_stdstream', former)
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if in_main else None
    try:
      with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        self._ray.init(log_to_driver=False, logging_level='error', **arguments)
    finally:
      if handler is not None:
        signal.signal(signal.SIGTERM, handler)

  def _start(self, workers: Sequence[int]) -> None:
    """Starts workers, and checks their facts."""
    ray = self._ray
    create = ray.remote(ray_actor.Actor).options(
        num_cpus=1, max_restarts=0, max_task_retries=0,
        scheduling_strategy='SPREAD').remote
    nonce = secrets.token_bytes(proofs.NONCE_BYTES)
    for worker in workers:
      self._workers[worker] = _Worker(create())
    asked = [self._workers[worker].actor.facts.remote(nonce, self._data)
             for worker in workers]
    wanted = proofs.facts(nonce, self._data, in_worker=False)
    try:
      answers = ray.get(asked, timeout=_START)
    except ray.exceptions.GetTimeoutError:
      raise transports.WorkerLostError(
          f'{len(workers)} workers of Ray did not start within {_START:g} seconds, with '
          f'{ray.available_resources().get("CPU", 0):g} CPUs free') from None
    except ray.exceptions.RayError as error:
      raise transports.WorkerLostError(
          f'a worker of Ray can\'t start: {_one_line(error)}') from None
    for worker, found in zip(workers, answers):
      proofs.check(f'worker {worker} of Ray', found, wanted)

  def submit(self, worker: int, request: transports.Request) -> futures.Future:
    future = futures.Future()
    try:
      if self._workers[worker].memory.has_grown:
        self.replace(worker)
      one = self._workers[worker]
      lacking = request.lacking(one.known).contents
      references = {digest: self._references.get(digest) or self._ray.put(content)
                    for digest, content in lacking.items()}
      # Arrays of former rounds leave the object store.
      self._references = {
          digest: reference
          for digest, reference in {**self._references, **references}.items()
          if digest in request.contents or digest.startswith(transports.COMPUTATION)}
      serialized = pickle.dumps(dataclasses.replace(request, contents={}))
      answer = one.actor.run.remote(
          serialized, frozenset(request.contents), list(references), *references.values())
    except (transports.WorkerLostError, self._ray.exceptions.RayError) as error:
      _fail(future, error)
      return future
    one.known, one.pending = request.known(one.known), future
    self.bytes_sent += len(serialized) + sum(
        memoryview(content).nbytes for content in lacking.values())
    answer.future().add_done_callback(functools.partial(_pass_on, future, one.memory))
    return future

  def replace(self, worker: int) -> None:
    self._end(worker)
    try:
      self._start([worker])
    except proofs.MismatchError as error:
      raise transports.WorkerLostError(str(error)) from None

  def _end(self, worker: int) -> None:
    if (one := self._workers.pop(worker, None)) is not None:
      with contextlib.suppress(self._ray.exceptions.RayError):
        self._ray.kill(one.actor, no_restart=True)
      _fail(one.pending, transports.WorkerLostError('the worker was ended'))

  def close(self) -> None:
    if self._closed:
      return
    self._closed = True
    processes = []
    if self._is_ours:
      for worker in list(self._workers):
        self._end(worker)
      if (node := self._ray._private.worker._global_node) is not None:  # pylint: disable=protected-access
        processes = [one.process for several in node.all_processes.values()
                     for one in several]
      self._ray.shutdown()
    # Ray's files stay beyond the interpreter's end.
    self._at_end.close()
    if self._watcher is not None:
      self._watcher.communicate()
    for process in processes:
      process.wait()  # It has ended, but Ray does not ask.

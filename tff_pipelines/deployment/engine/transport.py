"""Messages over gRPC with mutual TLS; sites open connections, and listen nowhere.

The leader listens for sites, the helper for the leader. A site asks for the message of
the next round and waits, then uploads. Peers are known by the very certificate that they
pinned; all that is signed is checked by the parties' state machines in any case.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
import contextlib
import queue
import threading
import time

import grpc

from tff_pipelines.deployment.engine import tls
from tff_pipelines.deployment import client as client_lib, messages

_LEADER, _HELPER = 'tff_pipelines.Leader', 'tff_pipelines.Helper'
# Seconds that a site waits for a round before it asks again, and between attempts.
_POLL, _BACKOFF = 20.0, (0.2, 5.0)
# Seconds without a call after which a site is gone, and seconds between looks.
_GONE, _LOOK = 15.0, 0.2
# Calls of a party at a time: one that was left behind, and one that is new.
_CALLS = 2
# Seconds after which the operator learns whom a round waits for.
_SAID = 10.0
_AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
# Bytes of a message in addition to its vector: fields of up to a thousand uploads.
_FIELDS = 2**22
_OVER = grpc.StatusCode.OUT_OF_RANGE


def _options(most: int) -> list[tuple[str, int]]:
  return [('grpc.max_receive_message_length', most + _FIELDS),
          ('grpc.max_send_message_length', most + _FIELDS),
          ('grpc.keepalive_time_ms', 30_000), ('grpc.so_reuseport', 0),
          ('grpc.ssl_target_name_override', tls.SERVER_NAME)]


@contextlib.contextmanager
def _served(service: str, methods: Mapping[str, Callable], address: str, *,
            key: bytes, certificate: bytes, peers: Mapping[str, str], most: int
            ) -> Iterator[str]:
  """Serves methods of (name of the peer, request, context); yields host:port.

  `peers` are names and certificates of who may connect; `most` is as for `_options`.
  """
  names = {_content(pem): name for name, pem in peers.items()}
  calls, lock = dict.fromkeys(peers, 0), threading.Lock()

  def handler(method):
    def handle(request, context):
      pem, = context.auth_context().get('x509_pem_cert', [b''])
      if (name := names.get(_content(pem.decode('ascii', 'replace')))) is None:
        context.abort(grpc.StatusCode.UNAUTHENTICATED, 'unknown certificate')
      with lock:
        if calls[name] >= _CALLS:
          context.abort(grpc.StatusCode.UNAVAILABLE, 'too many calls of this party')
        calls[name] += 1
      try:
        return method(name, request, context)
      finally:
        with lock:
          calls[name] -= 1

    return grpc.unary_unary_rpc_method_handler(handle)

  server = grpc.server(
      futures.ThreadPoolExecutor((_CALLS + 1) * len(peers) + 4), options=_options(most),
      handlers=[grpc.method_handlers_generic_handler(service, {
          name: handler(method) for name, method in methods.items()})])
  try:
    port = server.add_secure_port(address, grpc.ssl_server_credentials(
        [(key, certificate)], ''.join(peers.values()).encode('ascii'), True))
  except RuntimeError:
    raise OSError(f'can\'t listen on {address}: it may be in use by another '
                  'leader or helper; give another with listen') from None
  server.start()
  try:
    yield f'{address.rpartition(":")[0]}:{port}'
  finally:
    server.stop(1.0).wait()


def _content(pem: str) -> str:
  """A certificate's text without white space, which servers may change."""
  return ''.join(pem.split())


def _channel(address: str, *, key: bytes, certificate: bytes, server: str,
             most: int) -> grpc.Channel:
  """A channel to a server whose certificate is pinned."""
  return grpc.secure_channel(address, grpc.ssl_channel_credentials(
      server.encode('ascii'), key, certificate), _options(most))


def _patiently(call: Callable, request: bytes, seconds: float) -> bytes:
  """Calls until the server is there; grpc.RpcError if it is not after `seconds`."""
  end, pause = time.monotonic() + seconds, _BACKOFF[0]
  while True:
    try:
      return call(request, timeout=max(0.1, end - time.monotonic()))
    except grpc.RpcError as error:
      if error.code() not in _AGAIN or time.monotonic() + pause > end:
        raise
    time.sleep(pause)
    pause = min(2 * pause, _BACKOFF[1])


class LeaderTransport:
  """The leader's: a `rounds.Carrier` to sites and helper, while `serving`."""

  def __init__(self, *, key: bytes, certificate: bytes, sites: Mapping[str, str],
               helper: tls.Endpoint, deadline: float, most: int,
               log: Callable[[str], None] = lambda line: None):
    """Initializes the transport.

    Args:
      key, certificate: The leader's own, PEM.
      sites: Name of a client -> its certificate.
      helper: Certificate and address of the helper.
      deadline: Seconds that a round waits for sites, and for the helper.
      most: The largest number of bytes of a vector or a model.
      log: Takes lines about sites that a round waits for.
    """
    self._log = log
    self._own = dict(key=key, certificate=certificate)
    self._sites, self._helper, self._deadline = sites, helper, deadline
    self._most, self._changed = most, threading.Condition()
    self._message, self._waited_for, self._over = b'', set(), False
    self._uploads: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    # Site -> when it last called; those that wait for a message, and that have it.
    self._seen, self._asking, self._fetched = {}, set(), set()
    self._began = time.monotonic()

  @contextlib.contextmanager
  def serving(self, address: str) -> Iterator[str]:
    """Listens for sites within the block; yields host:port."""
    self._began = time.monotonic()
    with _served(_LEADER, {'Next': self._next, 'Upload': self._upload}, address,
                 peers=self._sites, most=self._most, **self._own) as listening:
      try:
        yield listening
      finally:
        self._over = True
        self._wake()

  def uploads(self, message: bytes, clients: Sequence[str]) -> Iterator[bytes]:
    """As of `rounds.Carrier`."""
    self._uploads, start = queue.SimpleQueue(), time.monotonic()
    with self._changed:
      self._message, self._waited_for = message, set(clients)
      self._fetched.clear()
      self._changed.notify_all()
    count, looked = 0, start
    try:
      while count < len(clients) and time.monotonic() < start + self._deadline:
        try:
          yield self._uploads.get(timeout=_LOOK)
          count += 1
        except queue.Empty:
          # Sites that are gone are not waited for; they may come back in time.
          with self._changed:
            waited_for = sorted(self._waited_for - self._fetched)
            if all(map(self._is_gone, self._waited_for)):
              break
          if waited_for and time.monotonic() > looked + _SAID:
            looked = time.monotonic()
            self._log(f'waiting for {", ".join(waited_for)}, up to {self._deadline:g} s')
    finally:
      with self._changed:
        self._message, self._waited_for = b'', set()

  def _is_gone(self, name: str) -> bool:
    """Whether a site neither waits nor computes; one that never came has the deadline."""
    end = (self._seen[name] + _GONE if name in self._seen else
           self._began + self._deadline)
    return name not in self._asking | self._fetched and time.monotonic() > end

  def _wake(self) -> None:
    with self._changed:
      self._changed.notify_all()

  def opened(self, request: bytes) -> bytes | None:
    """As of `rounds.Carrier`."""
    return opened(request, self._helper, self._deadline, most=self._most, **self._own)

  def _next(self, name: str, request: bytes, context: grpc.ServicerContext) -> bytes:
    del request  # Unused.
    context.add_callback(self._wake)
    with self._changed:
      self._asking.add(name)
      self._changed.wait_for(
          lambda: self._over or name in self._waited_for or not context.is_active(),
          timeout=_POLL)
      self._asking.discard(name)
      if self._over:
        context.abort(_OVER, 'the run is over')
      if not context.is_active():  # Its connection broke while it waited.
        return b''
      self._seen[name] = time.monotonic()
      if name not in self._waited_for:
        return b''
      self._fetched.add(name)
      return self._message

  def _upload(self, name: str, request: bytes, context: grpc.ServicerContext) -> bytes:
    with self._changed:
      if name not in self._waited_for:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, 'no round waits for this site')
      self._waited_for.discard(name)
      self._seen[name] = time.monotonic()
      self._uploads.put(request)
    return b''


def opened(request: bytes, helper: tls.Endpoint, deadline: float, *, key: bytes,
           certificate: bytes, most: int, method: str = 'Open') -> bytes | None:
  """The answer of the helper at an endpoint; None if none comes in `deadline` seconds.

  `method` is Open; Agreement, for the digest of its agreement; or Over, for its end.
  """
  with _channel(helper.address, server=helper.certificate, most=most, key=key,
                certificate=certificate) as channel:
    try:
      return _patiently(channel.unary_unary(f'/{_HELPER}/{method}'), request, deadline)
    except grpc.RpcError:
      return None


@contextlib.contextmanager
def helper_serving(answer: Callable[[bytes], bytes], address: str, *, key: bytes,
                   certificate: bytes, leader: str, most: int, digest: str = '',
                   over: Callable[[], None] = lambda: None) -> Iterator[str]:
  """Answers requests of the leader, by its certificate; yields host:port.

  `digest` is that of its agreement, and `over` is called when the leader ends the run.
  """
  one_at_a_time = threading.Lock()

  def ended(name, request, context):
    del name, request, context  # Unused.
    over()
    return b''

  def opened(name, request, context):
    del name, context  # Unused.
    with one_at_a_time:
      return answer(request)

  agreed = lambda name, request, context: digest.encode('ascii')
  with _served(_HELPER, {'Open': opened, 'Agreement': agreed, 'Over': ended}, address,
               key=key, certificate=certificate, peers={'leader': leader},
               most=most) as listening:
    yield listening


def take_part(client: client_lib.Client, leader: tls.Endpoint, *, key: bytes,
              certificate: bytes, most: int, patience: float,
              log: Callable[[str], None]) -> None:
  """Answers the rounds of a run until it is over.

  Args:
    client: The site's state machine.
    leader: Certificate and address of the leader.
    key, certificate: The site's own, PEM.
    most: The largest number of bytes of a vector or a model.
    patience: Seconds without the leader after which grpc.RpcError is raised.
    log: Takes lines about rounds that were refused or did not arrive.
  """
  with _channel(leader.address, key=key, certificate=certificate,
                server=leader.certificate, most=most) as channel:
    ask, send = (channel.unary_unary(f'/{_LEADER}/{name}') for name in ('Next', 'Upload'))
    while True:
      try:
        message = _patiently(ask, b'', patience)
      except grpc.RpcError as error:
        if error.code() == _OVER:
          return
        if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
          raise
        continue
      if not message:
        continue
      try:
        upload = client.answer(message)
      except messages.MessageError as error:
        log(f'refused: {error}')
        time.sleep(_BACKOFF[1])  # The leader may send the same again.
        continue
      try:
        _patiently(send, upload, patience)
      except grpc.RpcError as error:
        log(f'upload did not arrive: {error.code().name.lower()}')

"""The protocol over gRPC with mutual TLS, on the loopback of this machine."""

import contextlib
import dataclasses
import threading
import time

import grpc
import numpy as np
import pytest

from tests.deployment.federation import Federation
from tff_pipelines.deployment.engine import tls, transport
from tff_pipelines.deployment import identities, messages

MOST = 10**6


class Network:
  """A federation whose parties are threads."""

  def __init__(self, folder, stack, deadline=20.0, **changes):
    self.federation, self.stack, self.logs = Federation(folder, **changes), stack, []
    names = ['leader', 'helper', *self.federation.identities]
    self.keys = {name: dict(zip(('key', 'certificate'), tls.new(name))) for name in names}
    address = stack.enter_context(transport.helper_serving(
        lambda request: self.federation.helper().answer(request), 'localhost:0',
        leader=self.pem('leader'), most=MOST, **self.keys['helper']))
    self.leader = transport.LeaderTransport(
        sites={name: self.pem(name) for name in self.federation.identities},
        helper=self.endpoint('helper', address, self.federation.helper_keys),
        deadline=deadline, most=MOST, **self.keys['leader'])
    self.address = stack.enter_context(self.leader.serving('localhost:0'))

  def pem(self, name):
    return self.keys[name]['certificate'].decode()

  def endpoint(self, name, address, keys):
    return tls.Endpoint.signed(name, name, self.keys[name]['certificate'], address, keys)

  def site(self, name, keys=None):
    """Starts a site."""
    thread = threading.Thread(target=transport.take_part, args=(
        self.federation.client(name), self.endpoint(
            'leader', self.address, self.federation.leader_keys)), kwargs=dict(
                most=MOST, patience=5.0, log=self.logs.append,
                **self.keys[keys or name]), daemon=True)
    thread.start()
    return thread

  def round(self, index, history=None):
    own = self.federation.round(index, history=history)
    for upload in self.leader.uploads(own.message, list(self.federation.identities)):
      assert own.take(upload), own.refused
    request = own.request()
    return request and own.finish(request, self.leader.opened(request))


@pytest.fixture(name='stack')
def _stack():
  with contextlib.ExitStack() as stack:
    yield stack


def test_rounds_are_opened_whoever_leaves_and_all_sites_end_with_the_run(tmp_path, stack):
  network = Network(tmp_path, stack, deadline=6.0)
  names = list(network.federation.identities)
  threads = [network.site(name) for name in names[:3]]
  found = network.round(1)  # The fourth site is not there: noise in its place.
  assert list(found.clients) == names[:3]
  threads.append(network.site(names[3]))
  found = network.round(2)
  total = sum(network.federation.vectors[name, 2].astype(np.int64) for name in names)
  np.testing.assert_array_equal(found.total, total % 2**18)
  stack.close()
  for thread in threads:
    thread.join(20)
    assert not thread.is_alive()
  assert not network.logs


def test_only_certificates_that_were_pinned_are_let_in(tmp_path, stack):
  network = Network(tmp_path, stack)
  own, stranger = network.keys['site 0'], dict(zip(('key', 'certificate'), tls.new('site 0')))
  # A leader's certificate is none of a site; a site's none of the helper's peer.
  for keys, address, server, method in (
      (stranger, network.address, 'leader', 'Leader/Next'),
      (network.keys['leader'], network.address, 'leader', 'Leader/Next'),
      (own, network.leader._helper.address, 'helper', 'Helper/Open'),
      (own, network.address, 'helper', 'Leader/Next')):
    with transport._channel(address, server=network.pem(server), most=MOST,
                            **keys) as channel:
      with pytest.raises(grpc.RpcError) as error:
        channel.unary_unary(f'/tff_pipelines.{method}')(b'', timeout=5)
      assert error.value.code() in (grpc.StatusCode.UNAVAILABLE,
                                    grpc.StatusCode.UNAUTHENTICATED)
  with grpc.insecure_channel(network.address) as channel:
    with pytest.raises(grpc.RpcError):
      channel.unary_unary('/tff_pipelines.Leader/Next')(b'', timeout=5)


def test_messages_beyond_the_limit_and_uploads_of_no_round_are_refused(tmp_path, stack):
  network = Network(tmp_path, stack)
  with transport._channel(network.address, server=network.pem('leader'), most=10**8,
                          **network.keys['site 0']) as channel:
    send = channel.unary_unary('/tff_pipelines.Leader/Upload')
    for content, code in ((b'x', grpc.StatusCode.FAILED_PRECONDITION),
                          (bytes(10**7), grpc.StatusCode.RESOURCE_EXHAUSTED)):
      with pytest.raises(grpc.RpcError) as error:
        send(content, timeout=10)
      assert error.value.code() == code


def test_an_endpoint_is_signed_by_its_party():
  keys, other = identities.Identity.new(), identities.Identity.new()
  endpoint = tls.Endpoint.signed('leader', 'leader', tls.new('leader')[1], 'host:1', keys)
  assert tls.Endpoint.from_json(vars(endpoint)) == endpoint
  endpoint.check(keys.public)
  # A key for seals that is another's is not signed by the party either.
  sealing = dataclasses.replace(
      keys.public, seal=identities.Identity.new(seals=True).public.seal)
  for public, changed in ((other.public, endpoint), (sealing, endpoint), *(
      (keys.public, dataclasses.replace(endpoint, **{field: 'host:2'}))
      for field in ('address', 'role', 'name'))):
    with pytest.raises(messages.MessageError, match='not signed by it'):
      changed.check(public)


def test_a_site_with_many_calls_keeps_no_other_out(tmp_path, stack):
  network = Network(tmp_path, stack)
  with transport._channel(network.address, server=network.pem('leader'), most=MOST,
                          **network.keys['site 0']) as channel:
    ask = channel.unary_unary('/tff_pipelines.Leader/Next')
    calls = [ask.future(b'', timeout=30) for _ in range(40)]
    end = time.monotonic() + 20
    while sum(call.done() for call in calls) < 38 and time.monotonic() < end:
      time.sleep(0.05)
    codes = [call.code() for call in calls if call.done()]
    assert codes == [grpc.StatusCode.UNAVAILABLE] * 38
    threads = [network.site(name) for name in list(network.federation.identities)[1:]]
    assert len(network.round(1).clients) == 3
  stack.close()
  for thread in threads:
    thread.join(20)
    assert not thread.is_alive()

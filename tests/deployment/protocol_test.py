"""The two-server protocol: sums are right, and what is not agreed to is refused."""

import dataclasses
import secrets
import threading

import numpy as np
import pytest
from scipy import stats

from benchmarks import two_servers
from tests.deployment import schedules
from tests.deployment.federation import Federation, params_of
from tff_pipelines.deployment import agreements, identities, messages, vectors
from tff_pipelines.deployment.agreements import Agreement

SITES = schedules.SITES


@pytest.fixture(name='federation')
def _federation(tmp_path):
  return Federation(tmp_path)


def _collected(federation, names=None, index=1, **round_):
  """A round with the uploads of these clients."""
  own = federation.round(index, **round_)
  for name in federation.identities if names is None else names:
    assert own.take(federation.client(name).answer(own.message)), own.refused
  return own


def _signed(total, bits):
  return np.where(total >= 2**(bits - 1), total - 2**bits, total)


def test_the_opened_sum_is_that_of_all_and_its_answer_is_kept(federation):
  own = _collected(federation)
  request = own.request()
  answer = federation.helper().answer(request)
  found = own.finish(request, answer)
  total = sum(federation.vectors[name, 1].astype(np.int64) for name in SITES)
  np.testing.assert_array_equal(found.total, total % 2**18)
  assert list(found.clients) == SITES and found.history.shape == (0, 16)
  # A helper that crashed after it answered says the same again, and nothing else.
  assert federation.helper().answer(request) == answer
  for path in federation.folder.rglob('*'):
    assert path.is_dir() or path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize('reporting', [2, 3])
def test_noise_of_clients_that_leave_is_the_helpers(tmp_path, reporting):
  # To the others a leader that never asks a client is one whose client left.
  federation = Federation(tmp_path, dimension=5000, noise_multiplier=4.0)
  params = federation.agreement.params
  own = _collected(federation, SITES[:reporting])
  request = own.request()
  found = own.finish(request, federation.helper().answer(request))
  total = sum(federation.vectors[name, 1].astype(np.int64)
              for name in SITES[:reporting])
  noise = _signed((found.total - total) % 2**18, 18)
  missing = params.total_noise_variance * (4 - reporting) / 4
  assert noise.var() == pytest.approx(missing, rel=5 * (2 / len(noise))**0.5)
  assert abs(noise.mean()) < 5 * (missing / len(noise))**0.5
  # All are there: no noise is added to theirs.
  assert federation.agreement.least(4) == 2


def test_rows_of_bands_are_opened_and_no_sum(tmp_path):
  column = (3, 2, 1)
  federation = Federation(tmp_path, column=column, bits=20, rounds=6, sampling='turns',
                          population=12)
  history, sums, size = None, {}, federation.agreement.params.padded_dimension
  for index in (1, 2, 4, 5):
    own = _collected(federation, index=index, history=history)
    request = own.request()
    found = own.finish(request, federation.helper().answer(request))
    both = sum(federation.vectors[name, index].astype(np.int64) for name in SITES)
    noisy, sums[index] = np.split(both, 2)
    row = noisy + 2 * sums[index] + sum(
        weight * sums.get(index - j, 0) for j, weight in ((1, 2), (2, 1)))
    np.testing.assert_array_equal(found.total, row % 2**20)
    history = found.history
    if index == 2:  # The next round is not opened: its sum counts as zero.
      history = np.concatenate([np.zeros((1, size), np.uint32), history])[:2]
    # A server's own share of a sum is not the sum.
    assert not np.array_equal(found.history[0], sums[index] % 2**20)


def _refused(call, message):
  with pytest.raises(messages.MessageError, match=message):
    call()


def test_a_client_answers_what_it_agreed_to_once_and_nothing_else(federation):
  first = federation.round()
  federation.client('site 0').answer(first.message)
  for index in (1, 1):
    _refused(lambda: federation.client('site 0').answer(federation.round(
        index, model=b'another').message), 'no round is answered twice')
  answer = federation.client('site 1').answer
  other = federation.client('site 1', program='cd' * 32).answer
  _refused(lambda: other(first.message), 'another agreement')
  for selected in (SITES[:3], []):
    _refused(lambda: answer(federation.round(selected=selected).message),
             'cohort_size must be 4, as was agreed')
  _refused(lambda: answer(federation.round(6).message), r'round must be in \[1, 5\]')
  forger = Federation(federation.folder / 'forger')
  forged = agreements.described(
      federation.agreement, 1, 4, b'', forger.leader_keys).to_bytes()
  _refused(lambda: answer(forged), 'not signed by the leader')
  _refused(lambda: answer(first.message[:-1] + b'x'), 'model is not the one')
  _refused(lambda: answer(first.message + bytes(1000)), 'at most 1000 bytes')
  _refused(lambda: answer(first.message[:40]), 'be whole')
  _refused(lambda: answer(b'HTTP' + first.message), 'must begin with')
  _refused(lambda: federation.client(
      'site 1', allow=lambda _: _raise('no')).answer(first.message),
           'the site refuses: no')
  assert federation.client('site 1').answered == []
  with pytest.raises(ValueError, match='in the roster with its own key'):
    federation.identities['site 2'] = identities.Identity.new()
    federation.client('site 2')


def _raise(text):
  raise ValueError(text)


def test_a_varying_cohort_is_believed_up_to_the_plans(tmp_path):
  federation = Federation(tmp_path, 40, varies=True, cohort_size=4, population=1000,
                          sampling='poisson')
  assert 4 < federation.agreement.believed < 40
  names = list(federation.identities)
  federation.client(names[0]).answer(federation.round(selected=names[:4]).message)
  _refused(lambda: federation.client(names[1]).answer(
      federation.round(selected=names).message), 'cohort_size must be at most')


def test_the_leader_refuses_uploads_that_are_not_of_its_clients(federation):
  own, other = federation.round(), federation.round(2)
  upload = federation.client('site 0').answer(own.message)
  late = federation.client('site 1').answer(other.message)
  changed = bytearray(upload)
  changed[-1] ^= 1
  fields = messages.read(upload, 'upload', most_payload=10**6).fields
  swapped = messages.Message('upload', {**fields, 'client': 'site 2'}).to_bytes()
  unknown = messages.Message('upload', {**fields, 'client': 'nobody'}).to_bytes()
  for content, reason in (
      (bytes(changed), 'not the one it signed'), (late, 'answers another round'),
      (swapped, 'not signed by it'), (unknown, 'not in the roster'),
      (upload[:-1], 'not the one it signed'), (upload + b'x', 'payload must have')):
    assert not own.take(content)
    assert reason in own.refused[-1][1]
  assert own.take(upload) and not own.take(upload)
  assert 'reported before' in own.refused[-1][1] and own.request() is None


def test_the_helper_opens_one_set_of_enough_clients_a_round(federation):
  own = _collected(federation)
  def refusal(fields, signer=federation.leader_keys):
    fields = {**fields, 'signature': signer.sign('open', messages.canonical(
        [fields['round'], fields['uploads']]))}
    answer = federation.helper().answer(messages.Message('open', fields).to_bytes())
    return messages.read(answer, 'refused').fields['reason']

  request = own.request()
  fields = messages.read(request, 'open').fields
  uploads = fields['uploads']
  assert 'not signed by the leader' in refusal(fields, federation.helper_keys)
  assert '2 to 4 clients, found 1' in refusal({**fields, 'uploads': uploads[:1]})
  assert 'in a set once' in refusal({**fields, 'uploads': [uploads[0]] * 3})
  assert 'not signed by it' in refusal({**fields, 'uploads': [
      uploads[0], {**uploads[1], 'sealed': uploads[0]['sealed']}]})
  assert 'must be in [1, 5]' in refusal({**fields, 'round': agreements.described(
      federation.agreement, 0, 4, b'', federation.leader_keys).fields})
  kept = federation.helper().answer(request)
  assert 'was opened: one set a round' in refusal({**fields, 'uploads': uploads[:3]})
  # The same round by another description, and an earlier one.
  again = federation.round(model=b'another')
  assert 'one set a round' in refusal({**fields, 'round': messages.read(
      again.message, 'round', most_payload=100).fields, 'uploads': []})
  assert federation.helper().answer(request) == kept
  _refused(lambda: own.finish(own.request() + b' ', kept), "not the helper's")
  _refused(lambda: own.finish(request, kept[:-1]), "not the helper's")
  bad = messages.Message('refused', {'reason': 'no', 'clients': ['nobody']}).to_bytes()
  _refused(lambda: own.finish(request, bad), "the helper refuses: 'no'")


def test_a_client_whose_seed_is_not_its_own_is_left_out(federation):
  own = federation.round()
  for name in SITES[:3]:
    own.take(federation.client(name).answer(own.message))
  upload = messages.read(federation.client('site 3').answer(own.message), 'upload',
                         most_payload=10**6)
  foreign = messages.read(own.request(), 'open').fields['uploads'][0]['sealed']
  fields = {**upload.fields, 'sealed': foreign}
  fields['signature'] = federation.identities['site 3'].sign(
      'upload', agreements.signed_upload(fields))
  assert own.take(messages.Message('upload', fields, upload.payload).to_bytes())
  request = own.request()
  assert own.finish(request, federation.helper().answer(request)) is None
  assert own.refused[-1][0] == 'site 3' and own.reported == 3
  request = own.request()
  assert list(own.finish(request, federation.helper().answer(request)).clients) == SITES[:3]


def test_shares_are_uniform_whatever_the_vector():
  bits, zero = 6, np.zeros(2**16, np.int32)
  for vector in (zero, zero + 5):
    share = vectors.unpacked(vectors.shared(vector, bytes(range(32)), bits), 2**16, bits)
    counts = np.bincount(share, minlength=2**bits)
    assert 1e-4 < stats.chisquare(counts).pvalue
    mask = vectors.expanded(bytes(range(32)), 2**16) & np.uint32(2**bits - 1)
    np.testing.assert_array_equal((share - mask) % 2**bits, vector)
  # The test sees a value that is a fifth more frequent.
  assert stats.chisquare(counts + 200 * (np.arange(64) == 5)).pvalue < 1e-3


@pytest.mark.parametrize('bits', [2, 8, 16, 17, 18, 19, 20, 24, 30])
@pytest.mark.parametrize('length', [1, 7, 64])
def test_vectors_survive_their_bytes(bits, length):
  vector = np.random.default_rng(bits).integers(2**bits, size=length, dtype=np.uint32)
  content = vectors.packed(vector, bits)
  assert len(content) == vectors.packed_size(length, bits)
  np.testing.assert_array_equal(vectors.unpacked(content, length, bits), vector)
  _refused(lambda: vectors.unpacked(content + b'x', length, bits), 'bytes')
  if bits in (2, 30):
    _refused(lambda: vectors.unpacked(b'\xff' * len(content), length, bits), 'below')


def test_an_agreement_is_read_as_it_was_written_and_checked(federation):
  value = federation.agreement.to_json()
  assert Agreement.from_json(value).digest == federation.agreement.digest
  with pytest.raises(ValueError, match='shares of noise'):
    Agreement.from_json({**value, 'params': {**value['params'], 'noise_multiplier': 0.0}})
  with pytest.raises(ValueError, match='key of its own'):
    value['roster']['helper']['sign'] = value['roster']['leader']['sign']
    Agreement.from_json(value)
  assert params_of(4, min_honest_fraction=1.0, assumed_colluders=0).params().has_shares
  for fraction, colluders, least in ((0.5, 0, 5), (0.5, 2, 7), (0.8, 1, 9), (0.01, 0, 1)):
    federation = Federation(federation.folder, 10, min_honest_fraction=fraction,
                            assumed_colluders=colluders)
    assert federation.agreement.least(10) == least


@pytest.mark.parametrize('content', [
    b'', b'TFP1', b'TFP1\0\0\0\x02{}', b'TFP1\xff\xff\xff\xff{}', b'TFP1\0\0\0\x01{',
    b'TFP1\0\0\0\x0f{"kind":"open"}', b'TFP1\0\0\0\x10{"kind": "open"}'])
def test_malformed_messages_are_refused(federation, content):
  _refused(lambda: messages.read(content, 'open'), 'must|may|bytes')
  reply = messages.read(federation.helper().answer(content), 'refused')
  assert reply.fields['reason']


def test_keys_are_for_their_owner_alone(tmp_path):
  keys = identities.Identity.new(seals=True)
  keys.write(tmp_path / 'keys.json')
  assert identities.Identity.read(tmp_path / 'keys.json').public == keys.public
  with pytest.raises(ValueError, match='not overwritten'):
    keys.write(tmp_path / 'keys.json')
  (tmp_path / 'keys.json').chmod(0o644)
  with pytest.raises(ValueError, match='owner alone'):
    identities.Identity.read(tmp_path / 'keys.json')
  sealed = keys.public.sealed(b'seed', b'round 1')
  assert keys.opened(sealed, b'round 1') == b'seed'
  assert keys.opened(sealed, b'round 2') is None and keys.opened(b'x', b'') is None


def test_no_schedule_opens_a_client_twice():
  schedules.run(25)


def test_costs_are_measured(capsys):
  assert two_servers.main(['--quick']) == 0
  assert capsys.readouterr().out.count('| 256 |') == 2


def test_no_secret_is_in_a_message_or_a_file_that_others_read(federation, monkeypatch):
  seeds, sent = [], []
  draw = secrets.token_bytes
  monkeypatch.setattr(secrets, 'token_bytes',
                      lambda size: seeds.append(draw(size)) or seeds[-1])
  own = federation.round()
  for name in SITES:
    sent.append(federation.client(name).answer(own.message))
    own.take(sent[-1])
  request = own.request()
  sent += [own.message, request, federation.helper().answer(request)]
  sent += [path.read_bytes() for path in federation.folder.rglob('*') if path.is_file()]
  assert len(seeds) == 4
  bits = federation.agreement.params.bits
  for seed, name in zip(seeds, SITES):
    vector = federation.vectors[name, 1]
    mask = vectors.expanded(seed, len(vector)) & np.uint32(2**bits - 1)
    for secret in (seed, seed.hex().encode(), vector.tobytes(), mask.tobytes(),
                   *(vectors.packed(x, bits) for x in (vector.view(np.uint32), mask))):
      assert not any(secret in content for content in sent)


def test_a_client_answers_no_more_often_than_its_event_counts(tmp_path):
  federation = Federation(tmp_path, rounds=12)
  federation.agreement = dataclasses.replace(
      federation.agreement, apart=3, most_answers=3)
  answer = lambda index: federation.client('site 0').answer(
      federation.round(index).message)
  answer(2)
  for index, message in ((2, 'no round is answered twice'), (4, '3 rounds after 2')):
    with pytest.raises(messages.MessageError, match=message):
      answer(index)
  answer(5)
  path = tmp_path / 'site 0' / 'answered'
  path.write_bytes(path.read_bytes() + b'\0\0')  # Killed as it wrote.
  answer(9)
  assert federation.client('site 0').answered == [2, 5, 9]
  with pytest.raises(messages.MessageError, match='3 rounds are answered, which is all'):
    answer(12)


def test_two_helpers_on_one_folder_open_one_set(tmp_path):
  federation = Federation(tmp_path)
  own = federation.round()
  requests = []
  for name in federation.identities:
    own.take(federation.client(name).answer(own.message))
    if own.reported >= 3:
      requests.append(own.request())
  answers = []
  threads = [threading.Thread(target=lambda request=request: answers.append(
      federation.helper().answer(request))) for request in requests * 3]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  kinds = [messages.read(one, 'opened', 'refused', most_payload=10**6).kind
           for one in answers]
  assert kinds.count('opened') == 3  # The same request each time.


def test_a_helper_that_refuses_in_another_form_ends_nothing(tmp_path):
  federation = Federation(tmp_path)
  own = federation.round()
  for name in federation.identities:
    own.take(federation.client(name).answer(own.message))
  for clients in ([['a']], [None, 3]):
    answer = messages.Message('refused', {'reason': '\ud800', 'clients': clients})
    with pytest.raises(messages.MessageError, match='the helper refuses'):
      own.finish(own.request(), answer.to_bytes())


@pytest.mark.parametrize('changes', [
    dict(study='a\nb'), dict(run=''), dict(unit='unit'), dict(apart=0), dict(most_answers=0)])
def test_terms_that_are_none_are_refused(tmp_path, changes):
  with pytest.raises(ValueError, match='must be|at least 1'):
    dataclasses.replace(Federation(tmp_path).agreement, **changes)

"""Tests of tff_pipelines.simulation.proofs: what differs is named."""

import dataclasses

import pytest

from tff_pipelines.simulation import proofs

NONCE = b'n' * proofs.NONCE_BYTES


@dataclasses.dataclass(frozen=True)
class _Data:
  content: bytes
  name: str = 'file of clients'

  def digest(self, *, in_worker):
    if in_worker and not self.content:
      raise ValueError('x.sqlite does not exist')
    return self.content


def test_the_same_process_agrees_with_itself_for_each_nonce():
  data = [_Data(b'a')]
  wanted = proofs.facts(NONCE, data, in_worker=False)
  proofs.check('worker 0', proofs.facts(NONCE, data), wanted)
  other = proofs.facts(b'o' * proofs.NONCE_BYTES, data)
  assert {name for name in wanted if wanted[name] != other[name]} == {'file of clients'}
  assert {'NumPy', 'Python', 'TensorFlow', 'project sources', 'CPU features'} < set(wanted)


@pytest.mark.parametrize('name, there, message', [
    ('NumPy', '1.26.4', r'worker 3 differs from this process in NumPy: 1\.26\.4 there, '),
    ('project sources', 'f' * 64, 'in project sources: ffffffff'),
    ('CPU features', 'avx sse', 'in CPU features: sse there, avx2 fma here'),
    ('CPU features', 'avx', 'in CPU features: fewer there, avx2 fma here'),
    ('file of clients', 'x.sqlite does not exist',
     'in file of clients: x.sqlite does not exist there')])
def test_a_worker_that_differs_is_refused_by_name(name, there, message):
  wanted = {**proofs.facts(NONCE, [_Data(b'a')], in_worker=False),
            'CPU features': 'avx avx2 fma'}
  with pytest.raises(proofs.MismatchError, match=message) as raised:
    proofs.check('worker 3', {**wanted, name: there}, wanted)
  assert '\n' not in str(raised.value)


def test_data_that_a_worker_cannot_read_are_its_answer_and_an_error_here():
  assert proofs.facts(NONCE, [_Data(b'')])['file of clients'] == 'x.sqlite does not exist'
  assert len(proofs.facts(NONCE, [_Data(b'')], in_worker=False)['file of clients']) == 64


def test_features_with_which_floats_are_computed_are_taken():
  text = 'processor: 0\nflags\t\t: fpu sse4_2 avx512f avx2 fma amx_tile rdrand\nx: 1\n'
  assert proofs.cpu_features(text) == ['amx_tile', 'avx2', 'avx512f', 'fma', 'sse4_2']
  assert proofs.cpu_features('nothing') != []

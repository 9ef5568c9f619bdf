"""ChaCha20 against published vectors, its random bits and keys."""

import numpy as np
import pytest
import tensorflow as tf

from aggregators import chacha

KEY = np.array([3, -5], np.int64)
_VECTORS = [  # RFC 8439, section 2.3.2, and appendix A.1, test vectors 1 and 2.
    (bytes(range(32)), 1, '000000090000004a00000000',
     '10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e'
     'd2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e'),
    (bytes(32), 0, '00' * 12,
     '76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7'
     'da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586'),
    (bytes(32), 1, '00' * 12,
     '9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed'
     '29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f'),
    # draft-strombergson-chacha-test-vectors-01, TC1, 128 bits, 20 rounds.
    (bytes(16), 0, '00' * 12,
     '89670952608364fd00b2f90936f031c8e756e15dba04b8493d00429259b20f46'
     'cc04f111246b6c2ce066be3bfb32d9aa0fddfbc12123d4b9e44f34dca05a103f')]


@pytest.mark.parametrize('key, counter, nonce, block', _VECTORS)
def test_blocks_are_the_published_ones(key, counter, nonce, block):
  result = chacha.blocks(
      tf.constant(np.frombuffer(key, '<u4')), tf.constant([7, counter], tf.uint32),
      tf.constant(np.frombuffer(bytes.fromhex(nonce), '<u4'))).numpy()
  np.testing.assert_array_equal(result[:, 1], np.frombuffer(bytes.fromhex(block), '<u4'))


def _block(counter, nonce):
  """The block of the key [3, -5], from the block function alone."""
  return chacha.blocks(
      tf.constant(KEY.view(np.uint32)), tf.constant([counter], tf.uint32),
      tf.constant(nonce, tf.uint32)).numpy()[:, 0]


def test_children_are_blocks_of_a_nonce_of_their_own():
  for index in (0, 5, 2**32 - 1, 2**32, 3 * 2**32 + 7):
    wanted = _block(index % 2**32, [1, index // 2**32, 0])[:4].view(np.int64)
    np.testing.assert_array_equal(chacha.derive(tf.constant(KEY), index), wanted)
  several = chacha.split(tf.constant(KEY), 6)
  np.testing.assert_array_equal(several[5], chacha.derive(tf.constant(KEY), 5))
  assert len({tuple(key.numpy()) for key in several}) == 6
  np.testing.assert_array_equal(chacha.children(tf.constant(KEY), 2, 6), several[2:])


def test_random_bits_are_all_of_the_stream_and_none_twice():
  count = 16 * 128 * 4  # Four pieces.
  result = chacha.random_bits(tf.constant(KEY), [count]).numpy().view(np.uint32)
  blocks = [_block(i, [0, 0, 0]) for i in (0, 255, 256, 511)]
  for block in blocks:
    assert set(block) <= set(result)
  assert len(set(result)) > count - 5  # By chance 0.008 pairs are expected.
  # The bits of a call that fits a piece are those of the stream too.
  np.testing.assert_array_equal(
      chacha.random_bits(tf.constant(KEY), [16]).numpy().view(np.uint32), blocks[0])


@pytest.mark.parametrize('dtype', [tf.int32, tf.int64])
@pytest.mark.parametrize('shape', [[5], [4096], [4097], [3, 3000]])
def test_random_bits_are_the_same_in_pieces_and_compiled(shape, dtype):
  key = tf.constant(KEY)
  plain = chacha.random_bits(key, shape, dtype).numpy()
  assert plain.shape == tuple(shape) and plain.dtype == dtype.as_numpy_dtype
  np.testing.assert_array_equal(plain, chacha.random_bits_in_pieces(key, shape, dtype))
  np.testing.assert_array_equal(plain, tf.function(
      lambda k: chacha.random_bits_in_pieces(k, shape, dtype), jit_compile=True)(key))

"""ChaCha20 against the vectors of RFC 8439."""

import numpy as np
import tensorflow as tf

from aggregators import chacha

# RFC 8439, section 2.3.2.
_KEY = np.frombuffer(bytes(range(32)), '<u4')
_NONCE = np.frombuffer(bytes.fromhex('000000090000004a00000000'), '<u4')
_BLOCK = np.frombuffer(bytes.fromhex(
    '10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e'
    'd2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e'), '<u4')
# RFC 8439, appendix A.1, test vectors 1 and 2: key and nonce zero.
_ZERO_BLOCKS = [np.frombuffer(bytes.fromhex(text), '<u4') for text in (
    '76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7'
    'da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586',
    '9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed'
    '29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f')]


def test_block_function_gives_the_published_block():
  found = chacha.blocks(
      tf.constant(_KEY, tf.uint32), tf.constant([1], tf.uint32),
      tf.constant(_NONCE, tf.uint32)).numpy()
  np.testing.assert_array_equal(found[:, 0], _BLOCK)


def test_counters_are_blocks_of_one_stream():
  zero_key, zero_nonce = tf.zeros([8], tf.uint32), tf.zeros([3], tf.uint32)
  found = chacha.blocks(zero_key, tf.constant([0, 1], tf.uint32), zero_nonce)
  for i, block in enumerate(_ZERO_BLOCKS):
    np.testing.assert_array_equal(found.numpy()[:, i], block)


def test_compiled_words_are_the_same_words():
  key = tf.constant([3, -5], tf.int64)
  plain = chacha.words(key, 1000).numpy()
  compiled = tf.function(
      lambda k: chacha.words(k, 1000), jit_compile=True)(key).numpy()
  np.testing.assert_array_equal(plain, compiled)


def test_words_of_different_keys_differ_and_are_balanced():
  first = chacha.words(tf.constant([1, 2], tf.int64), 2**16).numpy()
  second = chacha.words(tf.constant([1, 3], tf.int64), 2**16).numpy()
  assert np.mean(first == second) < 1e-3
  bits = np.unpackbits(first.view(np.uint8))
  # 2^21 bits: five standard deviations of their mean are 0.0017.
  assert abs(bits.mean() - 0.5) < 0.0018

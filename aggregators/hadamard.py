"""Orders of Hadamard matrices: powers of two, and 12, 20 and 28 times them.

A rotation needs a matrix of entries 1 and -1 with orthogonal rows, and none of any other
kind: all bounds on rotated coordinates hold as for the Walsh-Hadamard matrix. With
Kronecker products of these orders and of two of them, a vector is padded by at most a
quarter, where powers of two double it. No TensorFlow here.
"""

import functools
import math

import numpy as np
from scipy import linalg

# The orders that are no powers of two, each four times an odd prime.
ORDERS = (12, 20, 28)
# The least power of two that is left of an order with one and with two such factors:
# shorter ones take longer to transform than they save.
_LEAST_POWERS = 2**6, 2**8


@functools.cache
def matrix(order: int) -> np.ndarray:
  """The Hadamard matrix of a power of two or one of ORDERS; float32 [order, order].

  It is symmetric, with a first row of ones, and so its own inverse times `order`. By
  Sylvester, or by Paley's constructions of 1933: of order p + 1 for a prime p = 3 modulo
  4, with rows in the order that makes it symmetric, and of 2 (p + 1) for one of 1 modulo
  4. ValueError for other orders.
  """
  if order not in ORDERS:
    return linalg.hadamard(order, np.float32)
  prime = order - 1 if order != 28 else 13
  places = np.arange(prime)
  characters = np.where(np.isin(places, np.square(places) % prime), 1, -1)
  core = np.ones((prime + 1, prime + 1))
  if prime % 4 == 3:
    characters[0] = -1
    core[1:, 1:] = characters[np.add.outer(places, places) % prime]
    return core.astype(np.float32)
  core[0, 0] = characters[0] = 0
  core[1:, 1:] = characters[np.subtract.outer(places, places) % prime]
  result = np.kron(core, [[1, 1], [1, -1]]) + np.kron(np.eye(prime + 1), [[1, -1], [-1, -1]])
  return (result * result[0] * result[:, :1]).astype(np.float32)


def factors(length: int) -> tuple[int, ...]:
  """The factors of ORDERS, the smallest first, in the order that is this length.

  The rest is a power of two. ValueError if the length is no such order.
  """
  odd = length // (length & -length)
  result = []
  for order in ORDERS:
    while odd % (order // 4) == 0:
      odd //= order // 4
      result.append(order)
  if odd > 1 or length % math.prod(result):
    raise ValueError('the length must be a power of two, or one times factors of 12, 20 '
                     f'and 28, found {length}')
  return tuple(result)


@functools.cache
def padded(dimension: int) -> int:
  """The smallest order of at least `dimension` >= 1 coordinates."""
  products = [1]
  lengths = [1 << (dimension - 1).bit_length()]
  for least in _LEAST_POWERS:
    products = [product * order for product in products for order in ORDERS]
    lengths += [product * max(least, 1 << (-(-dimension // product) - 1).bit_length())
                for product in products]
  return min(lengths)


def name(length: int) -> str:
  """An order as a product, such as 20 * 2^18; of a power of two 2^20."""
  small = factors(length)
  power = (length // math.prod(small)).bit_length() - 1
  return ' * '.join([*map(str, small), f'2^{power}'])

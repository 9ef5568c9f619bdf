"""Cost of the two-server protocol: a client, the leader and the helper.

  python -m benchmarks.two_servers [--quick] [--clients=100]

Processor time of what the protocol adds, apart from training and noise: a client's
sharing, sealing and signing, the bytes of its upload over those of its plain vector; the
leader's checks and sum, and the helper's. One round without drop-outs, with plain rows
and with bands.
"""

import argparse
from collections.abc import Sequence
import pathlib
import sys
import tempfile
import time

import numpy as np

from tff_pipelines.accounting.guarantees import mechanisms
from tff_pipelines.deployment import agreements, client, helper, identities, leader

BITS = 18


def measure(count: int, dimension: int, column: tuple[int, ...]) -> dict[str, float]:
  """Milliseconds and bytes of one round of `count` clients."""
  mechanism = mechanisms.SumMechanism(
      mechanism='skellam', noise_multiplier=1.0, rounds=2, cohort_size=count,
      population=count * len(column), bits=BITS, dimension=dimension, clip=1.0,
      sampling='turns', column=column)
  keys = {f'client {i}': identities.Identity.new() for i in range(count)}
  own, other = identities.Identity.new(), identities.Identity.new(seals=True)
  agreement = agreements.Agreement(
      run='run', study='costs', program='00' * 32, params=mechanism.params(), rounds=2,
      cohort_size=count, event=mechanism.round_event(1).to_json(),
      roster=identities.Roster(own.public, other.public, {
          name: one.public for name, one in keys.items()}))
  params, spent = agreement.params, dict.fromkeys(('client', 'leader', 'helper'), 0.0)
  vector = np.random.default_rng(0).integers(
      2**BITS, size=agreement.length, dtype=np.int32)
  with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    history = np.zeros((len(column) - 1, params.padded_dimension), np.uint32)
    round_ = leader.Round(agreement, own, 1, list(keys), b'', history)
    for name, one in keys.items():
      (folder / name).mkdir()
      party = client.Client(name, agreement, one, lambda *_: vector, folder / name,
                            most_model=0, allow=lambda _: None)
      start = time.process_time()
      upload = party.answer(round_.message)
      middle = time.process_time()
      taken = round_.take(upload)
      spent['client'] += middle - start
      spent['leader'] += time.process_time() - middle
      assert taken, round_.refused
    start = time.process_time()
    request = round_.request()
    middle = time.process_time()
    answer = helper.Helper(agreement, other, folder).answer(request)
    end = time.process_time()
    found = round_.finish(request, answer)
    spent['helper'] = end - middle
    spent['leader'] += middle - start + time.process_time() - end
  expected = count * vector.astype(np.int64)[:params.padded_dimension] % 2**BITS
  assert len(column) > 1 or np.array_equal(found.total, expected)
  return {'client, ms': 1000 * spent['client'] / count,
          'upload over the plain vector': len(upload) / (
              params.padded_dimension * BITS / 8),
          'leader, s': spent['leader'], 'helper, s': spent['helper']}


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the script with these flags, those of the command line by default."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--clients', type=int, default=100)
  parser.add_argument('--quick', action='store_true', help='few clients, short vectors')
  flags = parser.parse_args(arguments)
  sizes = (2**8,) if flags.quick else (2**16, 2**20)
  print('| coordinates | bands | client, ms | upload over the plain vector | leader, s | '
        'helper, s |\n' + '|---' * 6 + '|')
  for dimension in sizes:
    for column in ((1,), (2, 1)):
      found = measure(5 if flags.quick else flags.clients, dimension, column)
      print(f'| {dimension:,} | {len(column)} | ' + ' | '.join(
          f'{value:.3g}' if name != 'upload over the plain vector' else f'{value:.3f}'
          for name, value in found.items()) + ' |', flush=True)
  return 0


if __name__ == '__main__':
  sys.exit(main())

"""Times of things that are compared, taken in turns, and the rows made of them.

  python -m benchmarks.measure FILE...    the tables of --json=FILE, as Markdown
"""

import collections
import dataclasses
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from typing import Callable, Mapping, Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """One line of a table.

  Attributes:
    name: What was measured.
    sizes: What it was measured on.
    ours: Our number, in `unit`.
    peer: The number that it is compared with, in `unit`; None if there is none.
    unit: Of both.
    target: The ratio asked for; None if none was.
    smaller_is_met: Whether the target is met by ratios below it.
  """

  name: str
  sizes: str
  ours: float
  peer: float | None
  unit: str
  target: float | None = None
  smaller_is_met: bool = False

  @property
  def ratio(self) -> float | None:
    """peer / ours: how many times faster (or smaller) ours is."""
    if self.peer is None or self.ours <= 0:
      return None
    return self.peer / self.ours

  @property
  def met(self) -> bool | None:
    if self.target is None or self.ratio is None:
      return None
    if self.smaller_is_met:
      return self.ratio <= self.target
    return self.ratio >= self.target


@dataclasses.dataclass(frozen=True, kw_only=True)
class Times:
  """Attributes: wall and cpu, seconds of each call; cpu is that of all processes
  of the benchmark together, and hardly depends on what else the machine does."""

  wall: list[float] = dataclasses.field(default_factory=list)
  cpu: list[float] = dataclasses.field(default_factory=list)

  def net(self, base: 'Times') -> tuple[float, float]:
    """Medians of what is above measurements of the same turns: wall, cpu."""
    return tuple(
        statistics.median(s - b for s, b in zip(mine, other))
        for mine, other in ((self.wall, base.wall), (self.cpu, base.cpu)))

  def medians(self) -> tuple[float, float]:
    return statistics.median(self.wall), statistics.median(self.cpu)


def descendants() -> list[int]:
  """This process and all processes under it."""
  children = collections.defaultdict(list)
  for name in os.listdir('/proc'):
    if name.isdigit():
      try:
        with open(f'/proc/{name}/stat', encoding='utf-8') as file:
          parent = int(file.read().rpartition(')')[2].split()[1])
      except OSError:  # It ended meanwhile.
        continue
      children[parent].append(int(name))
  found = [os.getpid()]
  for pid in found:
    found.extend(children[pid])
  return found


def cpu_seconds(pids: Sequence[int]) -> float:
  """Processor time that these processes used so far."""
  ticks = 0
  for pid in pids:
    try:
      with open(f'/proc/{pid}/stat', encoding='utf-8') as file:
        fields = file.read().rpartition(')')[2].split()
    except OSError:
      continue
    ticks += int(fields[11]) + int(fields[12])
  return ticks / os.sysconf('SC_CLK_TCK')


def peak_bytes(worker: bool) -> int:
  """The largest resident size so far of this process, or of its TFF workers."""
  peak = 0
  for pid in descendants() if worker else [os.getpid()]:
    try:
      with open(f'/proc/{pid}/status', encoding='utf-8') as file:
        fields = dict(line.split(':', 1) for line in file)
    except OSError:
      continue
    if not worker or fields['Name'].strip().startswith('worker_binary'):
      peak = max(peak, int(fields['VmHWM'].split()[0]) * 1024)
  return peak


def in_turns(functions: Mapping[str, Callable[[], object]], repeats: int,
             warm_ups: int = 2) -> dict[str, Times]:
  """Times of each call, every function once per turn.

  What disturbs the machine for a while then disturbs all of them alike.
  """
  for _ in range(warm_ups):
    for function in functions.values():
      function()
  times = {name: Times() for name in functions}
  pids = descendants()
  for _ in range(repeats):
    for name, function in functions.items():
      gc.collect()
      cpu = cpu_seconds(pids)
      start = time.perf_counter()
      function()
      times[name].wall.append(time.perf_counter() - start)
      times[name].cpu.append(cpu_seconds(pids) - cpu)
  return times


def machine() -> dict[str, object]:
  """What a table must say about where it was measured."""
  model = platform.processor()
  try:
    with open('/proc/cpuinfo', encoding='utf-8') as file:
      model = next(
          line.split(':')[1].strip() for line in file if line.startswith('model name'))
  except (OSError, StopIteration):
    pass
  commit = subprocess.run(
      ['git', 'rev-parse', '--short', 'HEAD'], check=False, text=True,
      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.strip()
  return dict(cpu=model, cores=os.cpu_count(), commit=commit or None,
              date=time.strftime('%Y-%m-%d'),
              load=' '.join(f'{load:.1f}' for load in os.getloadavg()))


def show(row: Row) -> None:
  """Prints a row as soon as it is there."""
  peer = '' if row.peer is None else f'{row.peer:11.3f}'
  ratio = '' if row.ratio is None else f'{row.ratio:7.2f}'
  target = ''
  if row.target is not None:
    target = f"{'<=' if row.smaller_is_met else '>='} {row.target:g} " + (
        'met' if row.met else 'NOT MET')
  print(f'{row.name:<34} {row.sizes:<24} {row.ours:11.3f} {peer:>11} {ratio:>7} '
        f'{row.unit:<17} {target}'.rstrip(), flush=True)


def heading() -> None:
  described = ', '.join(f'{k}: {v}' for k, v in machine().items())
  print(described)
  print(f"{'name':<34} {'sizes':<24} {'ours':>11} {'peer':>11} {'ratio':>7} unit",
        flush=True)


def read(path: str) -> list[Row]:
  """The rows that `write` wrote."""
  with open(path, encoding='utf-8') as file:
    found = json.load(file)['rows']
  return [
      Row(name=r['name'], sizes=r['sizes'], ours=r['ours'], peer=r['peer'],
          unit=r['unit'], target=r['target'],
          smaller_is_met=r['smaller_is_met']) for r in found]


def write(rows: Sequence[Row], path: str | None) -> None:
  """Writes the rows as JSON, if there is a path."""
  if not path:
    return
  found = [dict(name=r.name, sizes=r.sizes, ours=r.ours, peer=r.peer,
                ratio=r.ratio, unit=r.unit, target=r.target,
                smaller_is_met=r.smaller_is_met, met=r.met)
           for r in rows]
  with open(path, 'w', encoding='utf-8') as file:
    json.dump(dict(machine=machine(), rows=found), file, indent=1)
    file.write('\n')


def markdown(path: str) -> str:
  """The table that `write` wrote, for a document."""
  with open(path, encoding='utf-8') as file:
    found = json.load(file)
  lines = [', '.join(f'{k} {v}' for k, v in found['machine'].items()), '',
           '| what | sizes | ours | peer | ratio | unit | target |',
           '|---|---|---|---|---|---|---|']
  for row in found['rows']:
    numbers = ('' if row[name] is None else f'{row[name]:.4g}'
               for name in ('ours', 'peer', 'ratio'))
    target = ''
    if row['target'] is not None:
      target = (f"{'at most' if row['smaller_is_met'] else 'at least'} "
                f"{row['target']:g}: {'met' if row['met'] else 'not met'}")
    lines.append(f"| {row['name']} | {row['sizes']} | {' | '.join(numbers)} | "
                 f"{row['unit']} | {target} |")
  return '\n'.join(lines) + '\n'


if __name__ == '__main__':
  print('\n'.join(markdown(path) for path in sys.argv[1:]))

"""Times of compared functions, measured alternately, and the rows of their table.

  python -m benchmarks.measure FILE...    the tables of --json=FILE, as Markdown
"""

import collections
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """One line of a table.

  Attributes:
    name: Name of the measurement.
    sizes: Sizes of its input.
    ours: Our number, in `unit`.
    peer: The peer's number, in `unit`; None if there is none.
    unit: Unit of both.
    target: Ratio to be met; None for none.
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
    """peer / ours: the factor by which ours is faster (or smaller)."""
    if self.peer is None or self.ours <= 0:
      return None
    return self.peer / self.ours

  @property
  def met(self) -> bool | None:
    if self.target is None or self.ratio is None:
      return None
    return (self.ratio <= self.target if self.smaller_is_met else
            self.ratio >= self.target)

  def describe_target(self) -> str:
    """The target and whether it is met; empty without one."""
    if self.target is None:
      return ''
    return (f'{"at most" if self.smaller_is_met else "at least"} {self.target:g}: '
            f'{"met" if self.met else "not met"}')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Times:
  """Times of calls, in seconds.

  Attributes:
    wall: Elapsed time of each call.
    cpu: Processor time of each call, of all processes of the benchmark together; it
      hardly depends on what else the machine does.
  """

  wall: list[float] = dataclasses.field(default_factory=list)
  cpu: list[float] = dataclasses.field(default_factory=list)

  def net(self, base: 'Times') -> tuple[float, float]:
    """Medians of the differences to another function's times: wall, cpu."""
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
  pids = [os.getpid()]
  for pid in pids:
    pids.extend(children[pid])
  return pids


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

  A disturbance of the machine then affects all of them alike.
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
  """The machine and the version that a table was measured on."""
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
  """Prints a row as soon as it is measured."""
  peer = '' if row.peer is None else f'{row.peer:.3f}'
  ratio = '' if row.ratio is None else f'{row.ratio:.2f}'
  print(f'{row.name:<34} {row.sizes:<24} {row.ours:11.3f} {peer:>11} {ratio:>7} '
        f'{row.unit:<17} {row.describe_target()}'.rstrip(), flush=True)


def heading() -> None:
  """Prints the machine and the columns' names."""
  print(', '.join(f'{k}: {v}' for k, v in machine().items()))
  print(f"{'name':<34} {'sizes':<24} {'ours':>11} {'peer':>11} {'ratio':>7} unit",
        flush=True)


def read(path: str) -> list[Row]:
  """The rows that `write` wrote."""
  with open(path, encoding='utf-8') as file:
    rows = json.load(file)['rows']
  names = [field.name for field in dataclasses.fields(Row)]
  return [Row(**{name: row[name] for name in names}) for row in rows]


def write(rows: Sequence[Row], path: str | None) -> None:
  """Writes the rows as JSON, if there is a path."""
  if not path:
    return
  values = [{**dataclasses.asdict(row), 'ratio': row.ratio, 'met': row.met}
            for row in rows]
  with open(path, 'w', encoding='utf-8') as file:
    json.dump(dict(machine=machine(), rows=values), file, indent=1)
    file.write('\n')


def markdown(path: str) -> str:
  """The table that `write` wrote, for a document."""
  with open(path, encoding='utf-8') as file:
    of_machine = json.load(file)['machine']
  lines = [', '.join(f'{k} {v}' for k, v in of_machine.items()), '',
           '| what | sizes | ours | peer | ratio | unit | target |',
           '|---|---|---|---|---|---|---|']
  for row in read(path):
    numbers = ' | '.join('' if number is None else f'{number:.4g}'
                         for number in (row.ours, row.peer, row.ratio))
    lines.append(f'| {row.name} | {row.sizes} | {numbers} | {row.unit} | '
                 f'{row.describe_target()} |')
  return '\n'.join(lines) + '\n'


def main(arguments: Sequence[str] | None = None) -> None:
  paths = sys.argv[1:] if arguments is None else arguments
  print('\n'.join(markdown(path) for path in paths))


if __name__ == '__main__':
  main()

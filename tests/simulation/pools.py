"""Transports for tests: a part of a pool of workers, and workers that are threads."""

from concurrent import futures

from tff_pipelines.simulation import transports


class Part(transports.Transport):
  """The first workers of another transport, which this one leaves open."""

  def __init__(self, whole: transports.Transport, num_workers: int):
    self._whole, self.num_workers = whole, num_workers
    self.submit, self.replace = whole.submit, whole.replace

  submit = replace = None  # Those of the whole.

  def close(self):
    pass


class Threads(transports.Transport):
  """Workers in this process, whose answers a test may drop or hold back.

  Attributes:
    requests: Pairs of a worker and its request, in the order of their submission.
    replaced: Workers in the order in which they were replaced.
    fate: (worker, request, runner) -> result; may raise what a transport raises.
  """

  def __init__(self, num_workers, fate=lambda worker, request, run: run()):
    self.num_workers, self.fate = num_workers, fate
    self.requests, self.replaced = [], []
    self._runners = [transports.Runner() for _ in range(num_workers)]
    self._known = [frozenset()] * num_workers
    self._threads = futures.ThreadPoolExecutor(num_workers)

  def submit(self, worker, request):
    self.requests.append((worker, request))
    sent = request.lacking(self._known[worker])
    self._known[worker] = request.known(self._known[worker])
    runner, digests = self._runners[worker], frozenset(request.contents)
    return self._threads.submit(
        self.fate, worker, request, lambda: runner.run(sent, digests))

  def replace(self, worker):
    self.replaced.append(worker)
    self._runners[worker] = transports.Runner()
    self._known[worker] = frozenset()

  def close(self):
    self._threads.shutdown(wait=False)

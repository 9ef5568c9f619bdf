"""The part of `ray_transport` that lives in a worker's process.

Ray keeps the class in the driver beyond the interpreter's end, and with it all that
this module imports: so it imports nothing before it is used.
"""


class Actor:
  """Computes requests; Ray executes one call at a time."""

  def __init__(self):
    import os  # pylint: disable=g-import-not-at-top
    # TensorFlow's own messages have values of the data.
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
    from tff_pipelines.simulation import transports  # pylint: disable=g-import-not-at-top
    self._runner = transports.Runner()

  def facts(self, nonce, data):
    """Returns `proofs.facts` of this process."""
    from tff_pipelines.simulation import proofs  # pylint: disable=g-import-not-at-top
    return proofs.facts(nonce, data)

  def run(self, serialized, digests, lacking, *contents):
    """The result of a request, and `transports.condition` of this process."""
    import dataclasses, pickle  # pylint: disable=g-import-not-at-top,multiple-imports
    from tff_pipelines.simulation import transports  # pylint: disable=g-import-not-at-top
    request = dataclasses.replace(
        pickle.loads(serialized), contents=dict(zip(lacking, contents)))
    return self._runner.run(request, digests), transports.condition()

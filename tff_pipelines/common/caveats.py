"""Caveats: sentences that belong to a guarantee, each under a short name."""

MAX_NAME_LENGTH = 40


class Caveat(str):
  """A sentence that a reader of a guarantee must know.

  It is a string, its whole text: compared, hashed, printed, written to JSON and
  pickled as such. Read back, it is text without a name.

  Attributes:
    name: A few words, at most `MAX_NAME_LENGTH` characters, for a list of caveats on
      one line.
  """

  name: str

  def __new__(cls, name: str, text: str) -> 'Caveat':
    """Raises ValueError if one is empty or no text, or the name is too long."""
    for argument, value in (('name', name), ('text', text)):
      if not isinstance(value, str) or not value:
        raise ValueError(f'{argument} must be a non-empty string, found {value!r}')
    if len(name) > MAX_NAME_LENGTH:
      raise ValueError(f'name must have at most {MAX_NAME_LENGTH} characters, found '
                       f'{name!r}')
    caveat = super().__new__(cls, text)
    caveat.name = name
    return caveat

  def __copy__(self, memo: dict | None = None) -> 'Caveat':
    return self  # Immutable.

  __deepcopy__ = __copy__

  def __reduce__(self) -> tuple:
    return str, (str(self),)


PARTIAL_SUMS = Caveat('partial sums on a cluster', 'secure aggregation: simulated: '
                      'workers and object store of Ray have updates and partial sums '
                      'with less noise than planned: no epsilon holds against who runs '
                      'or reaches the cluster')

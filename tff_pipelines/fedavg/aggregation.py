"""Aggregations of the user's own in the trainer.

    result = api.train(TrainSettings(...), aggregation=factory, event=event)

The event describes what one sum of all selected clients reveals; without one nothing is
guaranteed. That the factory releases no more is the user's to prove.
"""

from collections.abc import Callable
import dataclasses
import inspect
import json
from typing import Any

import tensorflow_federated as tff

from tasks import checks, custom
from tff_pipelines.accounting.events import base

_FACTORIES = (tff.aggregators.UnweightedAggregationFactory,
              tff.aggregators.WeightedAggregationFactory)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Aggregation:
  """An aggregation and its accounting.

  Attributes:
    name: Name in reports; a run is resumed with the same.
    factory: A factory of TFF whose result is the mean update: it is not divided. One
      that is weighted gives each client the weight 1. If it has `set_cohort_size`, that
      is called with the number of selected clients before each round.
    event: Event of one sum before clients are sampled; None if it is not accounted.

  Raises ValueError if factory or event are none.
  """

  name: str
  factory: Any
  event: base.Event | None = None

  def __post_init__(self):
    if not isinstance(self.factory, _FACTORIES):
      raise ValueError('aggregation must be a factory of tff.aggregators, found '
                       f'{type(self.factory).__name__}')
    if self.event is not None:
      base.check_event(event=self.event)
      self.event.replace_one()  # Clients can't be sampled for any other.
      if self.event.has_shares():
        raise ValueError('event must have no shares of clients\' noise, whose dropouts '
                         f'and participants count: use mechanism, found {self.event}')

  @property
  def stated_event(self) -> str | None:
    """The event as JSON."""
    return self.event and json.dumps(self.event.to_json(), sort_keys=True)


def build(given: str | Aggregation, **options: Any) -> Aggregation:
  """The aggregation of a setting: an object, or 'module:function'.

  The keyword-only arguments of the function that have names of `options` receive these.
  Raises ValueError for anything else.
  """
  if isinstance(given, Aggregation):
    return given
  function = _function(given)
  arguments = {name: options[name] for name in checks.keywords(function)[0]
               if name in options}
  try:
    inspect.signature(function).bind(**arguments)
  except TypeError as error:
    raise ValueError(f'aggregation={given}: arguments must have defaults, or be '
                     f'keyword-only and some of {", ".join(options)}: {error}') from None
  result = function(**arguments)
  factory, event = result if isinstance(result, tuple) and len(result) == 2 else (
      result, None)
  return Aggregation(name=given, factory=factory, event=event)


def source(given: str | Aggregation) -> dict[str, str] | None:
  """The source of a function, as `custom.source_of`; None for an object."""
  return custom.source_of(given, _function(given)) if isinstance(given, str) else None


def _function(name: str) -> Callable[..., Any]:
  if not custom.is_name(name):
    raise ValueError(f'aggregation must be module:function, found {name!r}')
  return custom.find(name, 'aggregation')

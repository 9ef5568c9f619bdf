"""All privacy events, under one name, and their way back from JSON.

A ladder for the reader: `CentralGaussian(noise_multiplier=1.0)` is one release;
`PoissonSampled(event=..., sampling_rate=0.03)` one release from a random
cohort; `SelfComposed(event=..., count=1500)` the training run.
"""

from tff_pipelines.accounting import base
from tff_pipelines.accounting import combinators
from tff_pipelines.accounting import local_events
from tff_pipelines.accounting import sum_events
from tff_pipelines.accounting import vote_events

Event = base.Event

DistributedSkellam = sum_events.DistributedSkellam
DistributedDiscreteGaussian = sum_events.DistributedDiscreteGaussian
CentralSkellam = sum_events.CentralSkellam
CentralGaussian = sum_events.CentralGaussian
SkellamCount = sum_events.SkellamCount

Vote = vote_events.Vote
NoisyGradients = sum_events.NoisyGradients

Nfdp = local_events.Nfdp
PostProcessing = local_events.PostProcessing
Piecewise = local_events.Piecewise
Duchi = local_events.Duchi
LocalLaplace = local_events.LocalLaplace
LocalGaussian = local_events.LocalGaussian
LocalDiscreteGaussian = local_events.LocalDiscreteGaussian
LocalAnswers = local_events.LocalAnswers

NoPrivacy = combinators.NoPrivacy
PoissonSampled = combinators.PoissonSampled
FixedSizeSampled = combinators.FixedSizeSampled
SelfComposed = combinators.SelfComposed
Composed = combinators.Composed
Together = combinators.Together

from_json = base.from_json

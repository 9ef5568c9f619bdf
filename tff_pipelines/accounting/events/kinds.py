"""All privacy events, under one name, and their way back from JSON.

A ladder for the reader: `CentralGaussian(noise_multiplier=1.0)` is one release;
`PoissonSampled(event=..., sampling_rate=0.03)` one release from a random
cohort; `SelfComposed(event=..., count=1500)` the training run.
"""

# pylint: disable=unused-import,g-multiple-import,g-importing-member
from tff_pipelines.accounting.events.attended import Attended, Coin
from tff_pipelines.accounting.events.base import Event, from_json
from tff_pipelines.accounting.events.combinators import (
    Composed, NoPrivacy, SelfComposed, Together)
from tff_pipelines.accounting.events.local_events import (
    Duchi, LocalAnswers, LocalDiscreteGaussian, LocalGaussian, LocalLaplace, Nfdp,
    Piecewise, PostProcessing, SubsetSelection)
from tff_pipelines.accounting.events.preliminary import (
    EvaluationRelease, PreliminaryRelease)
from tff_pipelines.accounting.events.records import SampledRecords
from tff_pipelines.accounting.events.sampled import PoissonGroup, PoissonSampled
from tff_pipelines.accounting.events.sized import EpochSampled, FixedSizeSampled
from tff_pipelines.accounting.events.sum_events import (
    CentralGaussian, CentralSkellam, DistributedDiscreteGaussian,
    DistributedSkellam, SkellamCount)
from tff_pipelines.accounting.events.turns import OneRowKnown, TurnSampled
from tff_pipelines.accounting.events.voting import Vote

"""Former name of `tff_pipelines.fedavg.process`."""

import warnings

from tff_pipelines.fedavg.process import *  # pylint: disable=wildcard-import,unused-wildcard-import

warnings.warn(
    'tff_pipelines.algorithms.fedavg is now called tff_pipelines.fedavg.process',
    DeprecationWarning, stacklevel=2)

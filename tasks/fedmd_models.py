"""Former name of `tasks.models.fedmd`."""

import warnings

from tasks.models.fedmd import *  # pylint: disable=wildcard-import,unused-wildcard-import

warnings.warn('tasks.fedmd_models is now called tasks.models.fedmd',
              DeprecationWarning, stacklevel=2)

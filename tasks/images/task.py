"""Task: the class of an image of any size, grey or in colour.

Batches are those of tasks.images.data. EMNIST is the case of 28 x 28 grey characters,
with its own sources and models.
"""

from tasks.images import data as data_lib
from tasks.models import classifiers

MODELS = classifiers.MODELS

_task = data_lib.ImageTask(
    name='images', models=MODELS, own={'embedded': data_lib.embedded},
    breakdown=lambda names: {'kind': 'class', 'names': names})
SOURCES, options_of = _task.sources, _task.options
load, open_raw = _task.load, _task.open_raw
build, serving = _task.build, _task.serving

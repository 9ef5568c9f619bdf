"""Stands for the package where a program is started by its path, and found here."""

import os
import sys

if __name__ == 'tff_pipelines':  # Python searched this folder, not the one above.
  _HERE = os.path.dirname(os.path.realpath(__file__))
  sys.path = [os.path.dirname(_HERE), *(
      entry for entry in sys.path if os.path.realpath(entry) != _HERE)]
  del sys.modules[__name__]
  import tff_pipelines  # pylint: disable=unused-import,import-self

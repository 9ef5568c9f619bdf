"""Trains without a trusted server; the commands are in `deployment.engine.entry`."""

import sys

from tff_pipelines.deployment.engine.entry import main

if __name__ == '__main__':
  sys.exit(main())

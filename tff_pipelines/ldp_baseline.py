"""Former name of `python -m tff_pipelines.ldp_baselines`."""

from tff_pipelines.experiment import cli

if __name__ == '__main__':
  cli.moved('tff_pipelines.ldp_baseline', 'tff_pipelines.ldp_baselines')

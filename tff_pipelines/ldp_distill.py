"""Former name of `python -m tff_pipelines.ldp`."""

from tff_pipelines.experiment import cli

if __name__ == '__main__':
  cli.moved('tff_pipelines.ldp_distill', 'tff_pipelines.ldp.__main__')

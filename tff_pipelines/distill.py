"""Former name of `python -m tff_pipelines.fedmd`."""

from tff_pipelines.experiment import cli

if __name__ == '__main__':
  cli.moved('tff_pipelines.distill', 'tff_pipelines.fedmd.__main__')

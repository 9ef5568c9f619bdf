"""Estimates the mean of clients' vectors privately, over many settings.

  python -m tff_pipelines.estimate_mean
  python -m tff_pipelines.estimate_mean --num_clients=100,1000 --dimension=250 \\
      --bits=10,12,14,16,18,20 --epsilon=1,2,3,4,5,6,7,8 --repeats=20 \\
      --allow_degenerate --output_dir=out/figures/mean_estimation

Distributed mean estimation as in arXiv 2110.04995, section 5.1: n vectors on a
sphere in d dimensions, one release, the error of the estimate against epsilon
and the bits of a coordinate, alongside the Gaussian mechanism.

Every setting is calibrated before anything runs, then really executed: each
client's vector is clipped, rotated, rounded and noised, and added modulo 2^bits.
The output folder gets results.csv, results.json, mean_estimation.png, a privacy
ledger, a summary and a report. A finished setting is not run again: the same
command continues a sweep that was stopped, another one adds to it.
"""

from tff_pipelines.experiment import cli
from tff_pipelines.mean.settings import MeanSettings

main = cli.program(__name__, MeanSettings, 'tff_pipelines.mean.run:MeanExperiment')

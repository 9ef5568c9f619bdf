"""Distributed mean estimation: figure 4 of arXiv 2110.04995."""

from benchmarks.results.rows import Row

ROWS = (Row(
    name='mean/figure-4', label='errors by mechanism, bits, epsilon and clients',
    program='estimate_mean', seeds=(0,), seeded=(), keep='results.json', flags=dict(
        num_clients='10,100,1000', dimension='250', bits='10,12,14,16,18,20',
        epsilon='1,2,3,4,5,6,7,8', repeats=20, allow_degenerate=True)),)

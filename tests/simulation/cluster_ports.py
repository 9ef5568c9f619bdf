"""Ports of a node of Ray, as docs/clusters.md and deploy/ choose them."""

HEAD = 6379
FLAGS = ('--node-manager-port=6380', '--object-manager-port=6381',
         '--runtime-env-agent-port=6382', '--min-worker-port=10002',
         '--max-worker-port=10101')
# Reached by other nodes; and those that are open, too.
BETWEEN_NODES = frozenset({HEAD, 6380, 6381, *range(10002, 10102)})
OTHERS = frozenset({6382, 10001})

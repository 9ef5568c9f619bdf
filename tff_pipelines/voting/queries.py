"""The choice of the public records that agents are asked about.

It depends on public records alone, so it costs no privacy.
"""

import numpy as np

CHOICES = ('random', 'spread')


def choose(features: np.ndarray, count: int, choice: str,
           seed: int) -> np.ndarray:
  """Indices of the queries.

  Args:
    features: float [n, d] of all public records.
    count: Q in [1, n].
    choice: 'random'; or 'spread', the records nearest to the centres of as many
      clusters, so that few answers speak for all records.
    seed: >= 0.

  Returns:
    int64 [Q], distinct, sorted.

  Raises:
    ValueError: If there are fewer public records than queries.
  """
  if not 1 <= count <= len(features):
    raise ValueError(
        f'queries must be from 1 to the {len(features)} public records, found '
        f'{count}')
  if choice not in CHOICES:
    raise ValueError(
        f'query_choice must be one of {", ".join(CHOICES)}, found {choice!r}')
  if choice == 'random' or count == len(features):
    chosen = np.random.default_rng(seed).permutation(len(features))[:count]
    return np.sort(chosen)
  # scikit-learn takes a second to import.
  from sklearn import cluster  # pylint: disable=g-import-not-at-top
  found = cluster.KMeans(count, n_init=4, random_state=seed).fit(features)
  distances = ((features - found.cluster_centers_[found.labels_])**2).sum(axis=1)
  # The first of each cluster in the order of distances is its medoid.
  order = np.argsort(distances, kind='stable')
  _, first = np.unique(found.labels_[order], return_index=True)
  chosen = order[first]
  if chosen.size < count:  # Clusters that stayed empty: records are repeated.
    others = np.setdiff1d(np.arange(len(features)), chosen)
    chosen = np.concatenate([chosen, others[:count - chosen.size]])
  return np.sort(chosen)

"""The tables, figures, algorithms and baselines of the papers, and what answers them.

A claim is a row of a table, a curve of a figure, an algorithm or a baseline. It has the
rows of our experiments that answer it, or a reason why it can't be had, or both: then
our rows are of the nearest setting that can be had. `page` is docs/papers.md.

Numbers are those of the papers' texts, where figures have no readings; formulas that
the texts lost are taken from arXiv 2102.06387, which the first paper follows.
"""

from collections.abc import Iterator, Mapping
import dataclasses

SECTIONS = ('emnist', 'emnist62', 'shakespeare', 'tags', 'words', 'mean', 'accounting',
            'voting', 'fedmd', 'ldp')
# Key -> title, number at arXiv, what to know of its text, and a figure of ours.
PAPERS = {
    'skellam': {
        'title': 'The Skellam mechanism for differentially private federated '
                 'learning',
        'arxiv': '2110.04995',
        'note': 'The text has no values of the axes: the numbers of clients of figure '
                '4, and the bits and ε of figures 4 and 5, are ours.',
        'figure': '![Epsilon by accounting alone: composition, and the grid of one '
                  'count and of vectors](figures/accounting.png)'},
    'voting': {
        'title': 'Voting-based approaches for differentially private federated learning',
        'arxiv': '2010.04851', 'note': '± of the paper is left out.'},
    'fedmd': {
        'title': 'Federated model distillation with noise-free differential privacy',
        'arxiv': '2009.05537',
        'note': 'Places are those of the later version; the earlier one has the same '
                'numbers.'},
    'ldp': {
        'title': 'Locally differentially private distributed deep learning via '
                 'knowledge distillation',
        'arxiv': '2202.02971',
        'note': 'From notes on the paper, which have one table and no figure.'}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
  """One result of a paper.

  Attributes:
    paper: Key of PAPERS.
    place: Table, figure, algorithm or section. Of FedMD's two versions it is that of
      the later one, unless it says so.
    what: Method and data, in ten words at most.
    setting: Setting of the paper.
    printed: Accuracy in per cent, or another number if it says so; None if the text
      has none.
    printed_epsilon: Epsilon; None if the text has none.
    rows: Experiments that answer it, 'section/row', the nearest one first.
    reason: Data, features or size that its own setting needs and that are missing here;
      None if nothing is.
    command: Command that runs it where that is there; None if no program does.
    describes: Whether it is a description, without any result.
    mistake: Errors and omissions of the paper, separated by semicolons; None if
      nothing is known.
  """

  paper: str
  place: str
  what: str
  setting: str
  printed: str | None = None
  printed_epsilon: str | None = None
  rows: tuple[str, ...] = ()
  reason: str | None = None
  command: str | None = None
  describes: bool = False
  mistake: str | None = None


def _rows(section: str, *names: str) -> tuple[str, ...]:
  return tuple(f'{section}/{name}' for name in names)


# The Skellam mechanism.

EPSILONS = (1, 2, 4, 8, 16)
BITS = (14, 16, 18)
MEAN_CLIENTS = (10, 100, 1000)
MEAN_BITS = (10, 12, 14, 16, 18, 20)
_DIRECT = ('the direct bound of its reference [49] is not in the text; ours is the '
           'tight epsilon of one release, composed by advanced composition')
_FIXED = ('the published code samples cohorts of a fixed size and accounts for them by '
          'the bound for Poisson sampling')
_MECHANISMS = {'gaussian': 'central Gaussian', 'skellam': 'Skellam',
               'discrete_gaussian': 'DDGauss', 'skellam_central': 'central Skellam'}


def _grid(section: str, mechanism: str, bits: int | None) -> tuple[str, ...]:
  """Rows of a mechanism in a section, by epsilon."""
  is_main = mechanism != 'discrete_gaussian' and bits in (None, 18)
  if section == 'emnist':
    epsilons = EPSILONS if is_main else (
        4,) if mechanism == 'discrete_gaussian' and bits != 18 else (1, 4, 16)
  elif bits not in (None, 18) and (section == 'words' or (
      section == 'emnist62' and mechanism == 'discrete_gaussian')):
    epsilons = ()
  else:
    epsilons = (2, 8) if is_main and section in ('shakespeare', 'tags') else (8,)
  middle = '' if bits is None else f'-{bits}'
  return _rows(section, *(f'{mechanism}{middle}-{epsilon}' for epsilon in epsilons))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Panel:
  """A panel of figure 5: its data, our sections, and the flags of its own setting."""

  place: str
  data: str
  setting: str
  sections: tuple[str, ...]
  reason: str
  flagfile: str
  gaussian: str
  mistake: str

  def command(self, mechanism: str, bits: int | None) -> str:
    start = 'python -m tff_pipelines.train '
    if bits is None:  # The file names bits, which a Gaussian does not have.
      return f'{start}--mechanism=gaussian {self.gaussian}'
    return f'{start}--flagfile={self.flagfile} --mechanism={mechanism} --bits={bits}'


_PANELS = (
    _Panel(
        place='Figure 5, left', data='EMNIST',
        setting='3,400 writers, 100 a round, 1,500 rounds, clip 0.03, batch 20, rates '
                '0.032 and 1, CNN of a million weights, last 100 rounds',
        sections=('emnist', 'emnist62'),
        reason='the 3,400 writers of federated EMNIST; ours are 539 writers of MNIST '
               'and 318 writers of 62 classes',
        flagfile='emnist', mistake=_FIXED,
        gaussian='--task=emnist --data_source=official --model=cnn_1m --epsilon=10 '
                 '--delta=0.000294117647 --clip=0.03 --cohort_size=100 '
                 '--sampling=poisson --rounds=1500 --client_learning_rate=0.032 '
                 '--client_batch_size=20 --server_learning_rate=1.0 '
                 '--server_momentum=0.9'),
    _Panel(
        place='Figure 5, middle', data='Shakespeare',
        setting='715 roles, 100 a round, 1,200 rounds, batch 4, rates 1 and 0.32, LSTM '
                'of 820,522 weights, epsilon of a hypothetical population',
        sections=('shakespeare',),
        reason="TFF's 715 roles, and days of training; ours are 1,206 roles of 37 "
               'plays with a small LSTM',
        flagfile='shakespeare',
        mistake=f'{_FIXED}; epsilon is of a hypothetical population, not of the '
                'clients that there are',
        gaussian='--task=shakespeare --data_source=official --model=lstm_256 '
                 '--sequence_length=80 --epsilon=10 --delta=0.00139860139 --clip=0.5 '
                 '--cohort_size=100 --sampling=poisson --rounds=1200 '
                 '--client_learning_rate=1.0 --client_batch_size=4 '
                 '--server_learning_rate=0.32 --server_momentum=0.9'),
    _Panel(
        place='Figure 5, right', data='Stack Overflow',
        setting='next word, 342,477 users, 100 a round, 1,600 rounds, batch 16, rates '
                '0.5 and 1, LSTM of 4,050,748 weights, 256 examples of a user',
        sections=('words', 'tags'),
        reason="TFF's 342,477 users, and weeks of training; ours are 5,499 users with "
               'small models of next words and of tags',
        flagfile='stackoverflow_word', mistake=_FIXED,
        gaussian='--task=stackoverflow_word --data_source=official --model=lstm_670 '
                 '--vocabulary_size=10000 --sequence_length=20 '
                 '--max_examples_per_client=256 --epsilon=10 '
                 '--delta=0.00000291990411 --clip=0.3 --cohort_size=100 '
                 '--sampling=poisson --rounds=1600 --client_learning_rate=0.5 '
                 '--client_batch_size=16 --server_learning_rate=1.0 '
                 '--server_momentum=0.9'))


def _skellam(place: str, what: str, setting: str, **values) -> Claim:
  return Claim(paper='skellam', place=place, what=what, setting=setting, **values)


def _accounting() -> Iterator[Claim]:
  setting = 'one count of sensitivity 1, epsilon over the number of releases'
  for name, label in (
      ('skellam_pld', 'Skellam, PLD'), ('skellam_rdp', 'Skellam, RDP'),
      ('gaussian', 'Gaussian'), ('discrete_gaussian', 'discrete Gaussian'),
      ('skellam_advanced', 'Skellam, direct bound, advanced composition')):
    yield _skellam(
        'Figure 1', label, setting, rows=_rows('accounting', f'composition-{name}'),
        reason=_DIRECT if name == 'skellam_advanced' else None)
  for panel in ('left', 'right'):
    for name, label in (
        ('gaussian_analytic', 'Gaussian, analytic'), ('gaussian_rdp', 'Gaussian, RDP'),
        ('skellam_pld', 'Skellam, PLD'), ('skellam_rdp', 'Skellam, RDP'),
        ('skellam_direct', 'Skellam, direct bound'),
        ('discrete_gaussian', 'discrete Gaussian, central'),
        ('ddgauss', 'DDGauss, shares of clients')):
      yield _skellam(
          f'Figure 2, {panel}', label,
          'one query of sensitivity 1, epsilon over the scale of the grid; noise and '
          'clients are lost from the text',
          rows=() if name == 'skellam_direct' else _rows(
              'accounting', f'scalar-{panel}-{name}'),
          reason=_DIRECT.partition(';')[0] if name == 'skellam_direct' else None)
  for panel, setting in (
      ('left', 'a simple setting of vectors, one release'),
      ('right', 'federated EMNIST: 2^20 coordinates, 100 of 3,400, 1,500 rounds')):
    for name in ('gaussian', 'skellam', 'discrete_gaussian'):
      yield _skellam(
          f'Figure 3, {panel}', f'{_MECHANISMS[name]}, several scales', setting,
          rows=_rows('accounting', f'vector-{panel}-{name}'))


def _mean() -> Iterator[Claim]:
  for clients in MEAN_CLIENTS:
    setting = (f'{clients:,} vectors on a sphere, 250 coordinates, norm 10, delta '
               '1e-5, 10 data sets, squared error over epsilon')
    yield _skellam(
        'Figure 4', f'analytic Gaussian, {clients:,} clients', setting,
        rows=_rows('mean', f'n{clients}-gaussian', f'n{clients}-gaussian_rdp'))
    for bits in MEAN_BITS:
      yield _skellam(
          'Figure 4', f'Skellam, {bits} bits, {clients:,} clients', setting,
          rows=_rows('mean', f'n{clients}-skellam-{bits}'))


def _learning() -> Iterator[Claim]:
  for panel in _PANELS:
    for mechanism in ('gaussian', 'skellam', 'discrete_gaussian'):
      for bits in (None,) if mechanism == 'gaussian' else BITS:
        rows = [row for section in panel.sections
                for row in _grid(section, mechanism, bits)]
        label = '' if bits is None else f', {bits} bits'
        yield _skellam(
            panel.place, f'{_MECHANISMS[mechanism]}{label}, {panel.data}',
            panel.setting, rows=tuple(rows), reason=panel.reason,
            command=panel.command(mechanism, bits), mistake=panel.mistake)
  yield _skellam(
      'Section 4', 'Skellam noise of a trusted server',
      'described, no experiment', rows=_rows('emnist', 'skellam_central-18-8'))
  yield _skellam(
      'Algorithm 1', 'aggregation by the distributed Skellam mechanism',
      'rotation, conditional rounding, shares of noise, sum modulo 2^b',
      rows=_rows('mean', 'n100-skellam-16') + _rows('emnist', 'skellam-18-8'))


# Voting.

_SVHN = ('3,000 SVHN images for each of 140 agents; the file here has 1,000 images, for '
         '10 agents')
_SIGMA = ('with the noise of algorithm 1, the printed sigma = 0.06 and one agent in '
          'twenty sampled, one round alone has an epsilon above 160 at delta = 1e-3')
_STAR = ('it follows from the vote counts, which are private, and which a run neither '
         'releases nor keeps')
_THEOREM_7 = ("theorem 7 has 8 where its lemma gives 16 in the second exponent, and "
              "needs the event's probability under the neighbour")
_CELEBA = ('CelebA, whose terms forbid passing it on; labels that do not exclude each '
           'other are in the library (VotingParams.attributes), not in a program')
_KNN = ('the bound for one record uses a sensitivity of sqrt(2/k), where the argument '
        'gives sqrt(2)/k; k is 5% of the private records, and not public')
_OFFICE_EPSILON = ('delta is not stated; by its own bound 206 queries, sigma = 15 and '
                   'k = 50 have an epsilon of 0.84 at delta = 1e-4, not 3.9')
_ALEXNET = 'features of AlexNet trained on ImageNet; ours are SURF words'
_RESNET = 'features of ResNet50 trained on ImageNet'
_DOMAINNET = 'DomainNet, 12,891 images of fruit, and networks trained on ImageNet'


def _voting(place: str, what: str, setting: str, **values) -> Claim:
  return Claim(paper='voting', place=place, what=what, setting=setting, **values)


def _vote(task: str, flags: str) -> str:
  return f'python -m tff_pipelines.vote --task={task} {flags}'


def _star(what: str, epsilon: str, noise: int | None, setting: str) -> Claim:
  return _voting(
      'Table 1', what, setting, printed_epsilon=epsilon, mistake=_THEOREM_7,
      reason=_STAR if noise else f'{_STAR}; its noise is not stated',
      command='python -m tff_pipelines.account --query=data_dependent '
      f'--mechanism=ae_vote --votes=votes.npz --noise_stddev={noise} --delta=1e-3'
      if noise else None)


def _table_1() -> Iterator[Claim]:
  place = 'Table 1'
  digits = ('140 agents with 3,000 SVHN and 60 with 1,000 MNIST digits, 3,000 public '
            'USPS digits, AlexNet, delta 1e-3')
  common = '--data_path=$DATA_DIR --svhn_clients=140 '
  own = '--queries=500 --delta=1e-3 --clients_see=records '
  for what, printed, epsilon, rows, flags, mistake in (
      ('FedAvg, digits to USPS', '87.6', None, ('digits-fedavg',),
       '--algorithm=fedavg', None),
      ('FedAvg + DA, digits to USPS', '86.9', None, ('digits-fedavg-da',), None, None),
      ('DP-FedAvg, digits to USPS', '76.3', '3.7', ('digits-dp_fedavg',),
       '--algorithm=dp_fedavg --epsilon=3.7 --delta=1e-3', _SIGMA),
      ('DP-FedAvg + DA, digits to USPS', '71.2', '3.6', ('digits-dp_fedavg-da',), None,
       _SIGMA),
      ('AE-DPFL, 500 queries, sigma 25, digits to USPS', '83.8', '3.6',
       ('digits-ae', 'digits-ae-features'), own + '--noise_stddev=25',
       'by its own conversion 500 queries and sigma = 25 have an epsilon of 3.73, not '
       '3.6'),
      ('AE-DPFL + DA, 500 queries, sigma 30, digits to USPS', '92.5', '2.8',
       ('digits-ae-da',), '--queries=500 --delta=1e-3 --noise_stddev=30 '
       '--adversarial_strength=0.3',
       'by its own conversion 500 queries and sigma = 30 have an epsilon of 3.05, not '
       '2.8')):
    yield _voting(
        place, what, digits, printed=printed, printed_epsilon=epsilon,
        rows=_rows('voting', *rows), reason=_SVHN, mistake=mistake,
        command=None if flags is None else _vote('digits', common + flags))
  yield _star('data-dependent epsilon of AE-DPFL, digits', '2.7', 25, digits)
  yield _star('data-dependent epsilon of AE-DPFL + DA, digits', '2.1', 30, digits)
  for what, printed, epsilon, mistake in (
      ('FedAvg, CelebA', '84.9', None, None),
      ('DP-FedAvg, CelebA', '83.2', '4.0', _SIGMA),
      ('AE-DPFL, CelebA', '85.0', '4.0', 'by its own conversion 600 queries, 4 '
       'attributes and sigma = 50 have an epsilon of 4.13, not 4.0')):
    yield _voting(
        place, what, '300 agents, 600 public images, 40 attributes, 4 votes of an '
        'agent, sigma 50, AlexNet, delta 1e-3', printed=printed,
        printed_epsilon=epsilon, reason=_CELEBA, mistake=mistake)
  mnist = ('100 agents with 600 records of 6 digits, 3,000 public test digits, '
           'delta 1e-3')
  for what, printed, epsilon, rows, mistake in (
      ('FedAvg, MNIST', '97.8', None, ('mnist-fedavg',), None),
      ('DP-FedAvg, MNIST', '84.2', '4.3',
       ('mnist-dp_fedavg', 'mnist-dp_fedavg-features'), _SIGMA),
      ('AE-DPFL, MNIST', '95.1', '4.3',
       ('mnist-ae', 'mnist-ae-own', 'mnist-ae-random'), None)):
    yield _voting(place, what, mnist, printed=printed, printed_epsilon=epsilon,
                  rows=_rows('voting', *rows), mistake=mistake)
  yield _star('data-dependent epsilon of AE-DPFL, MNIST', '4.3', None, mnist)


def _figure_2() -> Iterator[Claim]:
  records, agents = (50, 100, 200, 400, 600), (50, 100, 200, 400, 800)
  for method, name in (('AE-DPFL', 'ae'), ('DP-FedAvg', 'dp_fedavg')):
    start = f'ablation-{name}-'
    yield _voting(
        'Figure 2a', f'{method} by records of an agent, MNIST',
        '100 agents, 1,000 public digits, epsilon 5, delta 1e-3, 50 to 600 records',
        printed_epsilon='5',
        rows=_rows('voting', *(f'{start}records{count}' for count in records)))
    yield _voting(
        'Figure 2b', f'{method} by number of agents, MNIST',
        '600 records each, duplicated beyond 100 agents, epsilon 5, delta 1e-3',
        printed_epsilon='5', rows=_rows('voting', *(
            # A hundred agents with 600 records are in both panels.
            f'{start}records600' if count == 100 else f'{start}agents{count}'
            for count in agents)))


def _table_2() -> Iterator[Claim]:
  # Method, and for Webcam and DSLR accuracy, epsilon, and end of the rows' names.
  alexnet = (
      ('FedAvg', ('90.5', None, ('fedavg',)), ('96.8', None, ('fedavg',))),
      ('DP-FedAvg', ('28.1', '46.6', ('dp_fedavg',)), ('48.2', '47.1', ('dp_fedavg',))),
      ('DP-FedSGD', ('32.6', '4.1', ('dp_fedsgd',)), ('48.3', '4.0', ('dp_fedsgd',))),
      ('DP-FedSGD, larger epsilon', ('75.2', '12.4', ('dp_fedsgd-12',)),
       ('83.7', '7.9', ('dp_fedsgd-8',))),
      ('kNN-DPFL, sigma 15', ('75.4', '3.9', ('knn', 'knn-15')),
       ('84.3', '3.7', ('knn', 'knn-15'))))
  resnet = (
      ('FedAvg', ('96.5', None, ()), ('97.8', None, ())),
      ('DP-FedSGD', ('25.8', '4.0', ()), ('42.7', '3.9', ())),
      ('kNN-DPFL, sigma 25', ('86.3', '2.8', ()), ('91.9', '2.0', ())))
  for network, noise, reason, table in (
      ('AlexNet', 15, _ALEXNET, alexnet), ('ResNet50', 25, _RESNET, resnet)):
    for method, *targets in table:
      for (target, queries), (printed, epsilon, rows) in zip(
          (('webcam', 206), ('dslr', 109)), targets):
        knn = 'kNN' in method
        yield _voting(
            'Table 2', f'{method}, {network}, Office to {target}',
            'three domains are the agents, 70% of the fourth public, one image the '
            'unit', printed=printed, printed_epsilon=epsilon,
            rows=_rows('voting', *(f'office-{target}-{row}' for row in rows)),
            reason=reason, mistake=_OFFICE_EPSILON if knn else None,
            command=_features(f'office_{target}_{network.lower()}', method, epsilon, (
                f'--queries={queries} --noise_stddev={noise / 50} --neighbours=50')))


def _features(file: str, method: str, epsilon: str | None, knn: str) -> str:
  """Command of a run on features of a network in a file, the agents its writers."""
  algorithm = {'FedAvg': 'fedavg', 'DP-FedAvg': 'dp_fedavg'}.get(
      method, 'knn' if 'kNN' in method else 'dp_fedsgd')
  flags = [f'--data_path=$DATA_DIR/{file}.npz --algorithm={algorithm}',
           '--public_fraction=0.7']
  if algorithm == 'knn':
    flags.append(f'{knn} --delta=1e-4')
  elif epsilon is not None:
    flags.append(f'--epsilon={epsilon} --delta=1e-4')
  return _vote('npz', ' '.join(flags))


def _table_3() -> Iterator[Claim]:
  targets = (('clipart', 656), ('painting', 1591), ('real', 2297))
  for method, *results in (
      ('FedAvg', ('81.8', None), ('72.8', None), ('82.0', None)),
      ('DP-FedSGD', ('44.2', '4.4'), ('42.6', '4.6'), ('39.1', '4.3')),
      ('DP-FedSGD, larger epsilon', ('55.6', '11.6'), ('60.0', '14.6'),
       ('55.1', '11.9')),
      ('kNN-DPFL, sigma 35', ('55.8', '4.4'), ('61.2', '4.7'), ('55.5', '4.2'))):
    for (target, queries), (printed, epsilon) in zip(targets, results):
      yield _voting(
          'Table 3', f'{method}, DomainNet to {target}',
          'five domains are the agents, seven classes, ResNet50 for kNN-DPFL, AlexNet '
          'for DP-FedSGD, delta 1e-4', printed=printed, printed_epsilon=epsilon,
          reason=_DOMAINNET, command=_features(
              f'domainnet_{target}', method, epsilon,
              f'--queries={queries} --noise_stddev=0.35 --neighbours=100'))


def _voting_claims() -> Iterator[Claim]:
  yield from _table_1()
  yield from _figure_2()
  yield from _table_2()
  yield from _table_3()
  for place, what, setting, rows, mistake in (
      ('Algorithm 1', 'DP-FedAvg', 'clipped updates, Gaussian shares',
       ('mnist-dp_fedavg',), _SIGMA),
      ('Algorithm 2', 'AE-DPFL', 'votes of own models, Gaussian shares, argmax',
       ('mnist-ae',), _THEOREM_7),
      ('Algorithm 3', 'kNN-DPFL', 'votes of nearest records, Gaussian shares, argmax',
       ('office-webcam-knn',), _KNN),
      ('Section 2.2', 'DP-FedSGD, baseline', 'noisy gradients, one iteration a round',
       ('office-webcam-dp_fedsgd',), None),
      ('Section 2.1', 'FedAvg, baseline', 'no privacy', ('mnist-fedavg',), None),
      ('Section 5.1', 'domain adaptation by adversarial training, baseline',
       "agents see the server's unlabelled records",
       ('digits-ae-da', 'digits-fedavg-da', 'digits-dp_fedavg-da'), None)):
    yield _voting(place, what, setting, rows=_rows('voting', *rows), mistake=mistake)
  for place, what in (
      ('Figure 1', 'structure of the four methods'),
      ('Figure 3', 'images of DomainNet'),
      ('Table 4', 'numbers of images of DomainNet, 12,891 in all'),
      ('Table 5', 'numbers of images of Office-Caltech-10, 2,533 in all')):
    yield _voting(place, what, 'a description', describes=True)


# FedMD.

TASKS = {'cifar': 'CIFAR', 'mnist_letters': 'FEMNIST'}
_DATA = {
    'cifar': 'all 50,000 public images of CIFAR-10; ours are 12,000',
    'mnist_letters': 'the letters of FEMNIST, 28,800; ours are 8,690 pen strokes drawn '
                     'as images'}
_DECIMAL = 'epsilon is printed in decimal logarithms'
_EIGHTEEN = f'{_DECIMAL}; epsilon and delta of k = 16 are the values of k = 18'
_RESTATED = ('74.40 at k = 16 is none of the three accuracies that table 3 has for ten '
             'parties')
_FULL = (f'{_DECIMAL}; for added or removed records a draw of as many as there are '
         'has no such guarantee')


def _fedmd(place: str, what: str, setting: str, **values) -> Claim:
  return Claim(paper='fedmd', place=place, what=what, setting=setting, **values)


def _party(place: str, task: str, what: str, setting: str, row: str, flags: str = '',
           more: tuple[str, ...] = (), **values) -> Claim:
  """A claim that is answered by rows of benchmarks.results.fedmd."""
  source = ' --cache_dir=$CACHE_DIR' if task == 'mnist_letters' else ''
  return _fedmd(
      place, f'{what}, {TASKS[task]}', setting, reason=_DATA[task],
      rows=_rows('fedmd', *(f'{task}-{name}' for name in (row, *more))),
      command=f'python -m tff_pipelines.fedmd --task={task} --data_path=$DATA_DIR'
      f'{source} {flags}'.rstrip(), **values)


def _fedmd_table_2() -> Iterator[Claim]:
  common = '10 parties, 20 rounds of 5,000 public records, 20, 2 and 1 epochs'
  for task, records, np, centralized, draws in (
      ('mnist_letters', 2880, '96.15', '98.00', (
          (16, '80.64', '0.0027'), (60, '88.06', '0.0090'), (300, '93.56', '0.0452'),
          (2880, '96.63', '0.4342'))),
      ('cifar', 300, '86.88', '88.83', (
          (16, '74.40', '0.0260'), (60, '81.58', '0.0867'), (120, '83.57', '0.1734'),
          (300, '87.38', '0.4336')))):
    setting = f'{records:,} records of a party; {common}'
    yield _party('Table 2', task, 'FedMD-NP', setting, 'np', '--mode=np '
                 '--knowledge=softmax --revisit_epochs=1', printed=np,
                 printed_epsilon='infinite')
    yield _party('Table 2', task, 'Centralized', setting, 'centralized',
                 '--mode=centralized', printed=centralized, printed_epsilon='infinite')
    rows = {16: 'k16-softmax-10', 60: 'k60-with', records: 'kall'}
    if task == 'mnist_letters':
      rows[300] = 'k300-with'
    for k, printed, epsilon in draws:
      mistake = _EIGHTEEN if k == 16 else _FULL if k == records else _DECIMAL
      if (task, k) == ('cifar', 16):
        mistake = f'{_EIGHTEEN}; {_RESTATED}'
      size = '' if k == records else f'--subset_size={k} '
      yield _party(
          'Table 2', task, f'FedMD-NFDP, k = {k}', setting, rows.get(k, f'k{k}'),
          f'{size}--knowledge=softmax --revisit_epochs=1', printed=printed,
          printed_epsilon=epsilon, mistake=mistake)


def _fedmd_tables() -> Iterator[Claim]:
  yield from _fedmd_table_2()
  short = 'neither k nor epsilon is stated; k = 16 by the numbers of table 2'
  for task, parties, accuracies in (
      ('mnist_letters', 5, ('74.99', '75.02', '75.58')),
      ('mnist_letters', 10, ('80.74', '80.64', '81.58')),
      ('cifar', 5, ('69.79', '70.02', '70.01')),
      ('cifar', 10, ('74.55', '74.88', '75.12'))):
    for kind, printed in zip(('logits', 'softmax', 'argmax'), accuracies):
      yield _party(
          'Table 3', task, f'{kind}, {parties} parties', short,
          f'k16-{kind}-{parties}', f'--subset_size=16 --knowledge={kind} '
          f'--num_clients={parties} --revisit_epochs=1', printed=printed)
  for task, iid, noniid in (
      ('mnist_letters', '81.58', '78.36'), ('cifar', '75.12', '53.18')):
    for split, row, printed in (('iid', '10', iid), ('noniid', 'noniid', noniid)):
      yield _party(
          'Table 4', task, f'argmax, 10 parties, {split}', short, f'k16-argmax-{row}',
          f'--subset_size=16 --knowledge=argmax --split={split} --revisit_epochs=1',
          printed=printed)
  for task, k, accuracies in (('mnist_letters', 300, ('93.56', '93.63')),
                              ('cifar', 60, ('81.58', '81.13'))):
    for how, flag, printed in zip(
        ('with', 'without'), ('', ' --noreplacement'), accuracies):
      yield _party(
          'Table 5', task, f'k = {k}, {how} replacement', '10 parties',
          f'k{k}-{how}', f'--subset_size={k} --knowledge=softmax --revisit_epochs=1'
          f'{flag}', printed=printed)


def _fedmd_figures() -> Iterator[Claim]:
  parts = '3 draws of a party, n records divided over N parties'
  for place, what, name, readings in (
      ('Figure 2a', 'epsilon of FedMD-NFDP by parties', 'nfdp', ('-3', '-2')),
      ('Figure 2b', 'delta of FedMD-NFDP by parties', 'nfdp', ('-3', '-2'))):
    for task, n, reading in zip(('mnist_letters', 'cifar'), ('28,800', '3,000'),
                                readings):
      yield _fedmd(
          place, f'{what}, {TASKS[task]}', f'{parts}, n = {n}',
          printed=f'log10 ≈ {reading} at N = 10',
          rows=_rows('accounting', f'{name}-parties-{task}'))
  for task in ('mnist_letters', 'cifar'):
    yield _fedmd(
        'Figure 2c', f'noise of FedMD-LDP by parties, {TASKS[task]}',
        f'100,000 queries at the epsilon and delta of {parts}',
        printed='log10 ≈ 4 to 7', rows=_rows('accounting', f'ldp-parties-{task}'),
        mistake='the formula of the noise leaves its factor c2 open')
    yield _party(
        'Figure 2d', task, 'accuracy by number of parties', 'k is not stated',
        'k16-softmax-10', '--subset_size=16 --knowledge=softmax --num_clients=2 '
        '--revisit_epochs=1', more=tuple(f'k16-softmax-{n}' for n in (5, 2, 1)))
    panel = 'a' if task == 'mnist_letters' else 'b'
    yield _party(
        f'Figure 3{panel}', task, 'accuracy of each party by rounds',
        '10 parties, 20 rounds, k is not stated', 'kall',
        '--knowledge=softmax --revisit_epochs=1', more=('k16-softmax-10',))
  for panel, what in (('a', 'epsilon'), ('b', 'delta')):
    for how in ('with', 'without'):
      yield _fedmd(
          f'Figure 4{panel}', f'{what} by draws, {how} replacement',
          'n = 100, published theorems', rows=_rows('accounting', f'nfdp-n100-{how}'),
          mistake='both theorems hold with epsilon 0 at the same delta, which is '
                  'the chance that a record is drawn')


def _fedmd_claims() -> Iterator[Claim]:
  yield from _fedmd_tables()
  yield from _fedmd_figures()
  yield _fedmd(
      'Algorithm 1', 'FedMD-NFDP', 'first training, then digest, revisit, predict',
      rows=_rows('fedmd', 'cifar-k60-with'),
      mistake='as listed, parties predict on the records of this round and digest '
              'the mean of that on the records of the next one')
  rows = {'mnist_letters': ('ldp-softmax',),
          'cifar': ('ldp-softmax', 'ldp-argmax', 'ldp-logits', 'ldp-digest')}
  for task, (first, *more) in rows.items():
    yield _party(
        'Section 5.2', task, 'FedMD-LDP at the budget of FedMD-NFDP',
        'Gaussian noise on every shared prediction', first,
        '--mode=ldp --subset_size=60 --knowledge=softmax --diagnostics',
        more=tuple(more), printed='close to random guess')
  early = 'Earlier version, text'
  yield _fedmd(
      early, 'DP-FedAvg of Geyer et al., MNIST', '100 clients, 20 rounds',
      printed='78', printed_epsilon='8', rows=_rows('voting', 'mnist-dp_fedavg-8'))
  for what, setting, printed, epsilon in (
      ('local noise of Bhowmick et al., MNIST', 'over 200 rounds', None, '500'),
      ('local noise of Bhowmick et al., CIFAR-10', 'over 200 rounds', None, '5000'),
      ('LDP-FL of Sun et al., MNIST', '100 clients', '96.24', '1'),
      ('LDP-FL of Sun et al., Fashion-MNIST', '100 clients', '86.26', '4'),
      ('LDP-FL of Sun et al., CIFAR-10', '500 clients', '61.46', '10')):
    yield _fedmd(
        early, what, setting, printed=printed, printed_epsilon=epsilon,
        reason='cited from another paper, whose mechanism, local noise on weights, is '
               'not part of this project')
  yield _fedmd('Figure 1a', 'overview of FedMD-LDP', 'a description', describes=True)
  yield _fedmd('Figure 1b', 'overview of FedMD-NFDP', 'a description', describes=True)
  for task in ('MNIST and letters', 'CIFAR'):
    for split in ('iid', 'noniid'):
      yield _fedmd('Table 1', f'public and private data, {task}, {split}',
                   'a description', describes=True)


# LDP-DL, of which there are notes only.

_UNSAID = 'the notes do not say what epsilon is of, nor the owners and networks'
_SUBSET = 'all 60,000 images of CIFAR-10, and the networks; ours are 15,000 images'
_LDP_DATA = {'mnist': 'MNIST', 'fashion_mnist': 'Fashion-MNIST', 'cifar10': 'CIFAR-10'}


def _ldp(place: str, what: str, setting: str, **values) -> Claim:
  return Claim(paper='ldp', place=place, what=what, setting=setting, **values)


def _ldp_command(task: str, flags: str, program: str = 'ldp') -> str | None:
  """The command for data of which a part is here; None for complete ones."""
  if task != 'cifar10':
    return None
  return (f'python -m tff_pipelines.{program} --task={task} '
          f'--data_path=$DATA_DIR/cifar10.npz {flags}')


def _ldp_table(task: str, answers: tuple[str, str],
               baselines: Mapping[str, tuple[str | None, str]]) -> Iterator[Claim]:
  data, reason = _LDP_DATA[task], _SUBSET if task == 'cifar10' else None
  for epsilon, printed in zip((5, 8), answers):
    kinds = ['ldp-query', 'ldp-total'] + (
        ['ldp-crowd', 'ldp-split'] if task == 'mnist' else []) + ['krr']
    yield _ldp(
        'Table 1', f'LDP-DL, epsilon {epsilon}, {data}', 'piecewise mechanism',
        printed=printed, printed_epsilon=str(epsilon), reason=reason, mistake=_UNSAID,
        rows=_rows('ldp', *(f'{task}-{kind}-{epsilon}' for kind in kinds)),
        command=_ldp_command(
            task, '--num_clients=50 --clients_per_query=50 --answers_per_client=1000 '
            f'--max_queries=1000 --epsilon_per_query={epsilon}'))
  for name, results in baselines.items():  # An empty number is a dash in the table.
    label = name.replace('_', '-').upper()
    for epsilon, printed in zip((5, 8), results):
      if printed is not None:
        yield _ldp(
            'Table 1', f'{label}, epsilon {epsilon}, {data}', 'baseline',
            printed=printed or None, printed_epsilon=str(epsilon) if printed else None,
            reason=reason, rows=_rows('ldp', f'{task}-{name}-{epsilon}'),
            command=_ldp_command(task, f'--algorithm={name} --epsilon={epsilon}',
                                 'ldp_baselines'))
  for name, label in (('duchi', "Duchi's"), ('laplace', 'the Laplace')):
    yield _ldp(
        'Experiments', f'LDP-DL with {label} mechanism, {data}',
        'named in the notes, without numbers', reason=reason,
        rows=_rows('ldp', *(f'{task}-{name}-{epsilon}' for epsilon in (5, 8))),
        command=_ldp_command(
            task, f'--mechanism={name} --num_clients=50 --clients_per_query=50 '
            '--answers_per_client=1000 --max_queries=1000 --epsilon_per_query=5'))


def _ldp_claims() -> Iterator[Claim]:
  yield from _ldp_table('cifar10', ('77.5', '79.7'), {
      'dp_sgd': (None, '73.0'), 'pate': ('73.6', '76.0'), 'dp_fl': ('75.9', '78.7')})
  yield from _ldp_table('mnist', ('98.1', '98.8'), {
      'dp_sgd': (None, '97.00'), 'pate': ('97.7', '98.2'), 'dp_fl': ('96.4', '97.2')})
  yield from _ldp_table('fashion_mnist', ('83.4', '85.7'), {
      'dp_sgd': (None, ''), 'pate': ('81.5', '84.7'), 'dp_fl': ('82.6', '83.6')})
  for place, what in (('Algorithm 2', 'piecewise mechanism, one dimension'),
                      ('Algorithm 3', 'piecewise mechanism, several dimensions')):
    yield _ldp(place, what, 'one soft label of an owner',
               rows=_rows('ldp', 'mnist-ldp-total-5'))
  yield _ldp(
      'Equation 5', 'active sampling of queries',
      'queries of the smallest mean margin under the student',
      rows=_rows('ldp', 'curve-active', 'curve-random', 'refined-active',
                 'refined-random'),
      mistake='the mean margin is divided by m - 1, where there are k classes')


CLAIMS = (*_accounting(), *_mean(), *_learning(), *_voting_claims(), *_fedmd_claims(),
          *_ldp_claims())


def claim(paper: str, place: str, row: str) -> Claim | None:
  """Returns the claim that a row answers best; None if it answers none there."""
  for item in CLAIMS:
    if (item.paper, item.place, item.rows[:1]) == (paper, place, (row,)):
      return item
  return None


# The page.

_NOT_RUN = ('', 'not run yet')


def _line(*cells: str | None) -> str:
  return f'| {" | ".join(cell or "–" for cell in cells)} |'


def _header(*names: str) -> list[str]:
  return [_line(*names), '|' + '---|' * len(names)]


def _printed(item: Claim) -> str | None:
  epsilon = item.printed_epsilon
  if epsilon is None:
    return item.printed
  return f'{item.printed} (ε {epsilon})' if item.printed else f'ε {epsilon}'


def _results(paper: str, verdicts: Mapping[str, tuple[str, str]]) -> list[str]:
  """The table of what a paper's claims come to; a claim's further rows follow it."""
  lines = _header('place', 'what', 'setting', 'printed', 'our row', 'found', 'verdict')
  for item in CLAIMS:
    cells = (item.place, item.what, item.setting, _printed(item))
    for row in item.rows if item.paper == paper else ():
      lines.append(_line(*cells, f'`{row}`', *verdicts.get(row, _NOT_RUN)))
      cells = ('〃',) * len(cells)
  return lines


def _mistakes(paper: str) -> list[str]:
  """A list of what is wrong in a paper, each with where."""
  places = {}
  for item in CLAIMS:
    if item.paper == paper and item.mistake is not None:
      for mistake in item.mistake.split('; '):
        places.setdefault(mistake, {})[item.place] = None
  return [f'* {", ".join(where)}: {mistake}.' for mistake, where in places.items()]


def page(verdicts: Mapping[str, tuple[str, str]]) -> str:
  """Returns docs/papers.md.

  Args:
    verdicts: Row -> what was found, and what that says of the claim. A row that is
      missing is shown as not run yet.
  """
  parts = [
      '# The papers, claim by claim\n\nEvery row of every table, every curve of every '
      'figure, every algorithm and every baseline of the four papers, with what '
      'answers it here. Accuracies are in per cent. Curves have no printed numbers '
      'unless the text of the paper states one; a dash means that there is none. '
      'Generated from `benchmarks/results/papers.py`.\n\n'
      'A verdict compares our interval with the printed number as if that were exact. '
      'Data, models and sizes differ, as the tables of each page say, so it is about '
      'what was reached and not about methods. Where our ε is larger than the '
      'paper\'s, or the paper prints none, only "worse" is said. Our ε is against '
      'observers, with the neighbours that the page of the row states; the FedMD '
      'paper\'s are decimal logarithms, 2.3 times smaller than ours. `tags` answers for '
      'next words with another task: recall among five tags.']
  for key, paper in PAPERS.items():
    parts.append(f'## {paper["title"]}\n\narXiv {paper["arxiv"]}. '
                 f'{paper["note"]}')
    parts.append('\n'.join(_results(key, verdicts)))
    parts += filter(None, [paper.get('figure')])
    if mistakes := _mistakes(key):
      parts.append('\n'.join(['What is wrong in the paper, or not said:', '', *mistakes]))
    if described := [f'{item.place} ({item.what})' for item in CLAIMS
                     if item.paper == key and item.describes]:
      parts.append(f'Descriptions without results: {"; ".join(described)}.')
  lines = _header('paper', 'place', 'what', 'what its own setting needs', 'command')
  lines += [_line(PAPERS[item.paper]['arxiv'], item.place, item.what, item.reason,
                  item.command and f'`{item.command}`')
            for item in CLAIMS if item.reason is not None]
  parts.append(
      '## What can\'t be had here\n\nSettings whose data, features or size are not '
      'there, and the command that runs them where they are. `$DATA_DIR` is the folder '
      'of the data files, `$CACHE_DIR` that of TFF\'s federated data sets.')
  parts.append('\n'.join(lines))
  return '\n\n'.join(parts) + '\n'

"""The table of the README: a few rows of every section."""

from benchmarks.results import pages
from benchmarks.results.pages import Comparison, Table

# Task -> rows and their names there.
_ROWS = {
    'Digits of 539 writers': {
        'emnist/none': 'no privacy',
        'emnist/gaussian-8': 'central Gaussian, Poisson sampling',
        'emnist/skellam-18-8': 'Skellam, 18 bits, Poisson sampling',
        'emnist/rows-skellam-8': '**Skellam, correlated noise (default)**',
        'emnist/rows-skellam-4': '**Skellam, correlated noise**',
        'emnist/rows-skellam-2': '**Skellam, correlated noise**'},
    'Next character, 1,206 roles of Shakespeare': {
        'shakespeare/none': 'no privacy',
        'shakespeare/skellam-18-8': 'Skellam, 18 bits, Poisson sampling',
        'shakespeare/rows-skellam-8': '**Skellam, correlated noise**'},
    'Tags (recall at 5), 5,499 users of Stack Overflow': {
        'tags/none': 'no privacy',
        'tags/skellam-18-8': 'Skellam, 18 bits, Poisson sampling',
        'tags/rows-skellam-8': '**Skellam, correlated noise**'},
    'Votes of 100 agents, MNIST': {
        'voting/mnist-ae': 'AE-DPFL',
        'voting/mnist-dp_fedavg-student': 'DP-FedAvg, the same features and student',
        'voting/mnist-dp_fedavg': 'DP-FedAvg, CNN',
        'voting/mnist-fedavg': 'FedAvg, CNN, no privacy'},
    'Local privacy of 1,000 owners, MNIST': {
        'ldp/mnist-krr-5': 'k-ary randomized response, one answer',
        'ldp/mnist-dp_fl-5': 'DP-FL, secure aggregation',
        'ldp/mnist-dp_sgd-5': 'DP-SGD, ε of a record, trusted curator'},
    'Distillation of ten parties, CIFAR': {
        'fedmd/cifar-np': 'FedMD, no privacy',
        'fedmd/cifar-kall': '300 draws of 300 records, ε of a record: δ this large is no '
                            'privacy',
        'fedmd/cifar-centralized': 'all records in one place'}}
_COMPARED = (
    Comparison(one='emnist/skellam-18-8', other='emnist/gaussian-8',
               words='Skellam against the central Gaussian, ε = 8: digits'),
    Comparison(one='shakespeare/skellam-18-8', other='shakespeare/gaussian-8',
               words='Skellam against the central Gaussian, ε = 8: characters'),
    Comparison(one='tags/skellam-18-8', other='tags/gaussian-8',
               words='Skellam against the central Gaussian, ε = 8: tags'),
    *(Comparison(one=f'{task}/rows-skellam-{epsilon}',
                 other=f'{task}/skellam-18-{epsilon}', words='Correlated noise against '
                 f'Poisson sampling, ε = {epsilon} against observers: {words}')
      for task, epsilon, words in (('emnist', 8, 'digits'), ('shakespeare', 8, 'characters'),
                                   ('tags', 8, 'tags'), ('tags', 2, 'tags'))),
    Comparison(one='voting/mnist-ae', other='voting/mnist-dp_fedavg-student',
               words='Voting against DP-FedAvg with the same features and student'),
    Comparison(one='voting/mnist-ae', other='voting/mnist-dp_fedavg',
               words='Voting against DP-FedAvg of a CNN'),
    Comparison(one='voting/ablation-letters-ae-records600',
               other='voting/ablation-letters-dp_fedavg-records600',
               words='Voting against DP-FedAvg, both on public features: letters, 600 '
                     'records an agent'))


TABLES = (Table(page='../README.md', mark='results', render=pages.brief(_ROWS, _COMPARED),
                rows=[name for rows in _ROWS.values() for name in rows]),)

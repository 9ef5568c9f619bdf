"""What docs/clusters.md and deploy/ name exists, and both name the same."""

import importlib.util
import pathlib
import re
import shlex

import pytest

from tests.docs import pages
from tests.simulation import cluster_ports
from tff_pipelines.deployment.engine import settings
from tff_pipelines.experiment import cli

# It comes with Ray, which `make test` installs.
yaml = pytest.importorskip('yaml', reason='requirements-ray.txt is not installed')

DEPLOY = pages.ROOT / 'deploy'
PAGE = (pages.DOCS / 'clusters.md').read_text(encoding='utf-8')
COMPOSE = yaml.safe_load((DEPLOY / 'compose.yaml').read_text(encoding='utf-8'))
SERVICES = COMPOSE['services']


def _options():
  scripts = pytest.importorskip('ray.scripts.scripts')
  return {name: parameter.type for parameter in scripts.start.params
          for name in parameter.opts}


def _starts():
  """Arguments of each `ray start`: of the page, and of the services."""
  lines = [line for block in pages.blocks(PAGE)
           for line in re.sub(r'\\\n', ' ', block.text).splitlines()]
  lines += [service['command'] for service in SERVICES.values()]
  return [shlex.split(line.partition('ray start ')[2])
          for line in lines if 'ray start ' in line]


def test_every_flag_of_ray_start_exists():
  options, starts = _options(), _starts()
  assert len(starts) == 5
  for arguments in starts:
    for argument in arguments:
      name, equals, value = argument.partition('=')
      assert name in options
      if equals and value.isdigit():
        options[name].convert(value, None, None)


def test_all_nodes_open_the_ports_that_the_policy_and_the_page_name():
  for arguments in _starts():
    assert set(cluster_ports.FLAGS) <= set(arguments)
  policy = yaml.safe_load((DEPLOY / 'network-policy.yaml').read_text(encoding='utf-8'))
  (ingress,), (egress,) = policy['spec']['ingress'], policy['spec']['egress']
  assert ingress['ports'] == egress['ports']
  assert ingress['from'] == egress['to'] == [{'podSelector': policy['spec']['podSelector']}]
  allowed = {port for entry in ingress['ports']
             for port in range(entry['port'], entry.get('endPort', entry['port']) + 1)}
  assert allowed == cluster_ports.BETWEEN_NODES
  table = PAGE.partition('## Ports')[2]
  for port in (6379, 6380, 6381, 6382, 10001, 10002, 10101):
    assert re.search(rf'\b{port}\b', table)


def test_every_file_that_deployment_names_exists_or_is_made_by_the_page():
  made = ('./token', './tls', './data', './roster', './runs')
  for secret in COMPOSE['secrets'].values():
    assert secret['file'].startswith(made)
  ignored = (pages.ROOT / '.gitignore').read_text(encoding='utf-8').split()
  for path in made:
    assert f'deploy{path.strip(".")}' in PAGE
    assert any(f'deploy{path.strip(".")}'.strip('/') == one.strip('/') for one in ignored)
  for name, service in SERVICES.items():
    build = service['build']
    assert (DEPLOY / build['context'] / build['dockerfile']).samefile(
        DEPLOY / 'Dockerfile')
    assert set(service['secrets']) == set(COMPOSE['secrets'])
    for value in service['environment'].values():
      assert value.removeprefix('/run/secrets/') in COMPOSE['secrets'] or (
          not value.startswith('/'))
    source = service['volumes'][0].split(':')[0]
    assert source == ('./roster' if name == 'head' else './data')
  for path in re.findall(r'deploy/[\w./-]+', PAGE):
    assert (pages.ROOT / path).exists() or f'./{path[7:]}'.startswith(made), path


def test_the_image_is_made_of_files_that_exist_and_its_program_runs(capsys):
  text = (DEPLOY / 'Dockerfile').read_text(encoding='utf-8')
  lines = [line for line in text.splitlines() if line and not line.startswith('#')]
  assert lines[0] == 'FROM python:3.11-slim'
  copied = {name for line in lines if line.startswith('COPY')
            for name in line.split()[1:-1]}
  sent = (DEPLOY / 'Dockerfile.dockerignore').read_text(encoding='utf-8').split()
  assert sent[0] == '*' and {f'!{name}' for name in copied} == {
      line for line in sent if line.startswith('!')}
  for name in copied:
    assert (pages.ROOT / name).exists()
  *installs, _ = [line for line in lines if line.startswith('RUN')]
  for line in installs:
    assert line.startswith('RUN pip install --no-cache-dir --no-deps ')
    assert {name for name in re.findall(r'-r (\S+)', line)} <= copied
  command = eval(lines[-1].removeprefix('CMD '))  # pylint: disable=eval-used
  assert command[:3] == ['python', '-m', 'tff_pipelines']
  from tff_pipelines import __main__ as console  # pylint: disable=g-import-not-at-top
  assert console.main(command[3:]) == 0 and 'train' in capsys.readouterr().out


def test_code_is_read_from_no_volume_but_from_a_home_of_the_user_alone():
  image = {}
  for line in (DEPLOY / 'Dockerfile').read_text(encoding='utf-8').splitlines():
    name, _, value = line.partition(' ')
    image[name] = value  # The last of each.
  home = re.search(r'\bHOME=(\S+)', image['ENV'])[1]
  assert image['WORKDIR'] == home  # Python finds modules in the current folder.
  assert image['USER'] == '${UID}:${GID}'
  assert shlex.split(image['RUN']) == [
      'install', '--directory', '--mode=0700', '--owner=${UID}', '--group=${GID}', home]
  assert not re.search('CACHE|PYTHONPATH', image['ENV'])
  for service in SERVICES.values():
    arguments = service['build']['args']
    assert f'{arguments["UID"]}:{arguments["GID"]}' == service['user']
    assert 'working_dir' not in service
    assert not {'HOME', 'XDG_CACHE_HOME', 'NUMBA_CACHE_DIR', 'PYTHONPATH'} & set(
        service['environment'])
    for volume in service['volumes']:
      mounted = pathlib.PurePosixPath(volume.split(':')[1])
      assert not pathlib.PurePosixPath(home).is_relative_to(mounted)
      assert not mounted.is_relative_to(home)
  assert home in PAGE


def test_the_command_in_the_container_is_a_training_run():
  (words,) = [words for words in pages.commands(PAGE)
              if any('=/data/' in word for word in words)]
  from tff_pipelines import train  # pylint: disable=g-import-not-at-top
  settings = cli.parsed(train.main.args[1], words[1:])
  addresses = {name: service['networks']['cluster']['ipv4_address']
               for name, service in SERVICES.items()}
  assert settings.engine_address == f'{addresses["head"]}:{cluster_ports.HEAD}'
  certified = re.search(r'certificates.sh deploy/tls (172.*)', PAGE)[1].split()
  assert certified == list(addresses.values())
  assert importlib.util.find_spec(words[0])


def test_parties_in_containers_run_commands_that_exist():
  federation = yaml.safe_load(
      (DEPLOY / 'federation.compose.yaml').read_text(encoding='utf-8'))
  services = federation['services']
  assert len(services) == 7 and set(services) >= {'leader', 'helper', 'lyon'}
  for name, service in services.items():
    program, command, verb, *flags = shlex.split(
        service['command'].replace('${APPROVE}', 'ab' * 16))
    assert (program, command) == ('tff-pipelines', 'deploy')
    assert verb == (name if name in ('leader', 'helper') else 'client')
    cli.parsed(settings.COMMANDS[verb][0], flags)
    assert service['networks'] == {
        'leader': ['sites', 'servers'], 'helper': ['servers']}.get(name, ['sites'])
    for volume in service['volumes']:
      assert volume.startswith('./federation/')
  assert all(network['internal'] for network in federation['networks'].values())

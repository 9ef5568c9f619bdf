"""Every place of the library that could run what it reads, with the rule that it keeps.

What a pickle, a module or a library says is executed when it is loaded. The places are
found in the syntax trees, those in the texts of programs that are started included. A
new one fails here until it has a reason, and SECURITY.md says what users must know.
"""

import ast
from collections.abc import Iterator
import textwrap

from tests import modules

_LIBRARY = ('aggregators', 'tasks', 'tff_pipelines')
# Modules of which every use counts.
_MODULES = ('_pickle', 'cffi', 'cloudpickle', 'code', 'codeop', 'ctypes', 'dill', 'imp',
            'importlib', 'joblib', 'jsonpickle', 'marshal', 'pickle', 'pkgutil',
            'runpy', 'shelve', 'torch', 'yaml', 'zipimport')
_BUILTINS = ('__import__', 'compile', 'eval', 'exec')
# Functions and classes that load code or graphs, and connections that unpickle.
_NAMES = frozenset((
    'CDLL', 'FileProgramStateManager', 'LoadLibrary', 'SourceFileLoader',
    'deserialize_computation', 'deserialize_keras_object', 'enable_load_extension',
    'enable_unsafe_deserialization', 'eval', 'exec_module', 'import_graph_def',
    'import_meta_graph', 'import_scoped_meta_graph', 'load', 'load_extension',
    'load_library', 'load_model', 'load_module', 'load_op_library', 'load_weights',
    'loads', 'model_from_config', 'model_from_json', 'model_from_yaml', 'py_function',
    'read_hdf', 'read_pickle', 'read_saved_model', 'recv', 'spec_from_file_location',
    'unpickle', 'unsafe_load'))
# What loads no code of these names, and their parts: functions of the project itself,
# text, registers of LLVM, and arrays, which have a rule of their own.
_HARMLESS = (*_LIBRARY, 'builder', 'importlib.metadata', 'importlib.resources', 'json',
             'numpy.load', 'pickle.HIGHEST_PROTOCOL', 'pickle.dumps')
# Functions that unpickle what they read unless they are told not to.
_ARRAYS = ('numpy.load', 'numpy.lib.format.read_array')

_OURS = 'a module of the project, which its source names'
_TABLE = 'none: a method of the project, which reads arrays'
_IN_MEMORY = 'a graph that this process has traced, or that its driver has sent'
_SOCKET = 'a socket pair, whose other end has a process that this run started'
_RAY = 'the driver of a cluster, whose members trust each other: docs/clusters.md'
_LIBC = 'the C library, which the process has loaded already'
# (module, function or class, what it uses) -> whose code it can run.
PLACES = {
    ('aggregators/native/compiling', 'instructions', 'exec'):
        'a line of names of the arguments of a function of the project',
    ('aggregators/native/kept', 'Files.load', 'pickle.loads'):
        'a file that the user or root has written, as ownership.read checks',
    ('aggregators/tff_internals', 'computation_of',
     'tensorflow_federated.framework.deserialize_computation'): _IN_MEMORY,
    ('tasks/custom', 'find', 'importlib.import_module'):
        'the user\'s own task, which --task or the run that they open names',
    ('tasks/emnist/task', '', '_task.load'): _TABLE,
    ('tasks/images/data', 'ImageTask.build', 'self.load'): _TABLE,
    ('tasks/images/task', '', '_task.load'): _TABLE,
    ('tasks/models/template', 'Template._put.call',
     'tensorflow.graph_util.import_graph_def'): _IN_MEMORY,
    ('tasks/models/template', 'Template._put.call.gradient',
     'tensorflow.graph_util.import_graph_def'): _IN_MEMORY,
    ('tasks/official', 'File.find_or_download', 'self.load'):
        'none: the name of a function of TFF, which downloads an SQLite file',
    ('tasks/registry', '_built_in', 'importlib.import_module'): _OURS,
    ('tff_pipelines/__init__', '_check', 'importlib.util.find_spec'):
        'none: it asks whether a package is installed',
    ('tff_pipelines/__main__', '_module', 'importlib.import_module'): _OURS,
    ('tff_pipelines/experiment/cli', '_imported', 'importlib.import_module'): _OURS,
    ('tff_pipelines/experiment/guarded', 'program', 'importlib.import_module'): _OURS,
    ('tff_pipelines/experiment/guarded', 'run', 'ctypes.CDLL'): _LIBC,
    ('tff_pipelines/publish/run', 'read_finished', 'importlib.import_module'): _OURS,
    ('tff_pipelines/fedavg/warm_start', '_of_keras', 'network.load_weights'):
        'arrays for a model that is there already: none, whoever wrote the file',
    ('tff_pipelines/simulation/in_process', 'Graph.__init__',
     'tensorflow.import_graph_def'): _IN_MEMORY,
    ('tff_pipelines/simulation/in_process', 'InProcessContext.give_back_memory',
     'ctypes.CDLL'): _LIBC,
    ('tff_pipelines/simulation/local_processes', '_Process.ask',
     'self._connection.recv'): _SOCKET,
    ('tff_pipelines/simulation/local_processes', 'program', 'ctypes.CDLL'): _LIBC,
    ('tff_pipelines/simulation/local_processes', 'serve', 'connection.recv'): _SOCKET,
    ('tff_pipelines/simulation/proofs', '_sources', 'importlib.util.find_spec'):
        'none: it finds the folders of the project',
    ('tff_pipelines/simulation/ray_actor', 'Actor.run', 'pickle.loads'): _RAY,
    ('tff_pipelines/simulation/ray_transport', 'RayTransport._init',
     'importlib.import_module'): 'a part of Ray, which is installed',
    ('tff_pipelines/simulation/ray_transport', '_imported', 'importlib.import_module'):
        'Ray, which is installed',
    ('tff_pipelines/fedavg/sweep', 'Run.start', 'ctypes.CDLL'): _LIBC}


def _aliases(tree):
  """Name in a module -> dotted name of what it imports."""
  result = {}
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      for alias in node.names:
        top = alias.name.split('.')[0]
        result[alias.asname or top] = alias.name if alias.asname else top
    elif isinstance(node, ast.ImportFrom) and not node.level:
      for alias in node.names:
        result[alias.asname or alias.name] = f'{node.module}.{alias.name}'
  return result


def _dotted(node, aliases):
  """The dotted name of an expression; '?' stands for what is no name."""
  if isinstance(node, ast.Attribute):
    return f'{_dotted(node.value, aliases)}.{node.attr}'
  return aliases.get(node.id, node.id) if isinstance(node, ast.Name) else '?'


def _text(node):
  """The text of a constant, with 0 for what is formatted into it; None of others."""
  if isinstance(node, ast.Constant) and isinstance(node.value, str):
    return node.value
  if isinstance(node, ast.JoinedStr):
    return ''.join(str(part.value) if isinstance(part, ast.Constant) else '0'
                   for part in node.values)
  return None


def _program(node):
  """The syntax tree of a text that is a program; None of other expressions."""
  text = _text(node)
  if text is None or 'import ' not in text:
    return None
  try:
    return ast.parse(textwrap.dedent(text))
  except SyntaxError:
    return None


def _is_loader(name):
  first, dot, _ = name.partition('.')
  if name in _BUILTINS:
    return True
  if any(f'{name}.'.startswith(f'{harmless}.') for harmless in _HARMLESS):
    return False
  return bool(dot) and (first in _MODULES or name.rpartition('.')[2] in _NAMES)


def _unpickles(call, name):
  """Whether a call reads arrays without being told, in words, to refuse objects."""
  words = {word.arg: word.value for word in call.keywords}
  if 'allow_pickle' not in words:
    return name in _ARRAYS
  return ast.unparse(words['allow_pickle']) != 'False'


def uses(tree, scope='', aliases=None) -> Iterator[tuple[str, str]]:
  """Yields (function or class, dotted name) of each use of a loader in a tree."""
  aliases = _aliases(tree) if aliases is None else aliases
  for node in ast.iter_child_nodes(tree):
    inner, name = scope, _dotted(node, aliases)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
      inner = f'{scope}.{node.name}'.strip('.')
    if (program := _program(node)) is not None:
      yield from uses(program, f'{scope} program'.strip())
    if _is_loader(name):
      yield scope, name
    if isinstance(node, ast.Call) and _unpickles(
        node, called := _dotted(node.func, aliases)):
      yield scope, f'{called}(allow_pickle)'
    if name.startswith('?'):
      yield from uses(node, inner, aliases)


def test_every_place_that_may_run_what_it_reads_has_its_reason():
  paths = [path for folder in _LIBRARY for path in (modules.ROOT / folder).rglob('*.py')]
  found = {(path.relative_to(modules.ROOT).with_suffix('').as_posix(), *use)
           for path in paths for use in uses(ast.parse(path.read_bytes()))}
  # A new place needs a reason, or another way to read.
  new, gone = sorted(found - set(PLACES)), sorted(set(PLACES) - found)
  assert (new, gone) == ([], [])

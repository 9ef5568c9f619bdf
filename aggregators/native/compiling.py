"""Compilation of the kernels: numba, and functions in LLVM's vector instructions.

Loops that must be vectorised are written with vectors of LANES numbers, which LLVM
lowers to the instructions of the processor; numba's own vectoriser is not relied on. No
optimisation may reorder a sum of floats, so results are the same on every machine.
"""

import llvmlite
from llvmlite import binding, ir
import numba
from numba import extending, types
from numba.core import caching, cgutils, registry, serialize

from aggregators.native import kept


# 32-bit numbers in a vector: one register. With two of AVX2 each, kernels run out of
# registers.
LANES = 16 if '+avx512f' in (
    registry.cpu_target.target_context.codegen().magic_tuple()[2].split(',')) else 8

INT32, INT64, DOUBLE = ir.IntType(32), ir.IntType(64), ir.DoubleType()


class _Locator(caching._InTreeCacheLocator):  # pylint: disable=protected-access
  """Takes the place of numba's search for a folder, which any user may write."""

  def get_cache_path(self):
    return kept.folder()

  def ensure_cache_path(self):
    """Does nothing: `kept.folder` is there."""


class _Code(caching.CompileResultCacheImpl):
  _locator_classes = (_Locator,)


class _Cache(caching.FunctionCache):
  """The cache of a function, in files of `kept` instead of numba's."""

  _impl_class = _Code

  def __init__(self, function):
    super().__init__(function)
    self._cache_file = kept.Files(
        self.cache_path, self._impl.filename_base,
        f'{numba.__version__} {llvmlite.__version__} {LANES}', serialize.dumps)


def jit(function):
  """Compiles a function at its first call; keeps the result on disk (`kept.Files`)."""
  compiled = numba.njit(function, nogil=True, error_model='numpy')
  if kept.folder() is not None:
    compiled._cache = _Cache(function)  # pylint: disable=protected-access
  return compiled


# LLVM merges functions of the same name.
_names: set[str] = set()


def instructions(emit):
  """Turns a function that emits LLVM's instructions into one that kernels can call.

  Compiled code has these instructions once, whatever the number of calls.

  Args:
    emit: (builder, *arguments) -> None. Arrays are passed as pointers to their first
      element, other arguments as numbers. Its `__name__` must be unique, or ValueError.
  """
  if emit.__name__ in _names:
    raise ValueError(f'instructions named {emit.__name__} are there already')
  _names.add(emit.__name__)

  def typed(context, *kinds):
    del context  # Unused.

    def codegen(context, builder, signature, values):
      arguments = [
          context.make_array(kind)(context, builder, value).data
          if isinstance(kind, types.Array) else value
          for kind, value in zip(signature.args, values)]
      builder.call(_function(builder.module, emit, [x.type for x in arguments]),
                   arguments)
      return context.get_dummy_value()

    return types.void(*kinds), codegen

  # numba reads the number of arguments from the signature.
  names = ', '.join(emit.__code__.co_varnames[1:emit.__code__.co_argcount])
  scope = {'typed': typed}
  exec(f'def {emit.__name__}(context, {names}): return typed(context, {names})', scope)  # pylint: disable=exec-used
  return extending.intrinsic(scope[emit.__name__])


def _function(module: ir.Module, emit, kinds) -> ir.Function:
  """The function of these instructions in an LLVM module; added if it is missing."""
  name = f'native_encoding_{emit.__name__}_' + '_'.join(
      str(kind).replace('*', 'p') for kind in kinds)
  if name in module.globals:
    return module.globals[name]
  function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), name)
  function.linkage = 'linkonce_odr'
  function.attributes.add('noinline')
  function.attributes.add('nounwind')
  builder = ir.IRBuilder(function.append_basic_block())
  emit(builder, *function.args)
  builder.ret_void()
  return function


def vector(kind: ir.Type, lanes: int | None = None) -> ir.VectorType:
  """The type of a vector of `lanes` numbers, LANES by default."""
  return ir.VectorType(kind, lanes or LANES)


def constant(kind: ir.Type, *numbers, lanes: int | None = None) -> ir.Constant:
  """A vector of these numbers, or of one number in all lanes."""
  lanes = lanes or LANES
  return ir.Constant(vector(kind, lanes),
                     list(numbers) if len(numbers) > 1 else list(numbers) * lanes)


def splat(builder, number):
  """A vector with one number in all LANES lanes."""
  kind = vector(number.type)
  first = builder.insert_element(ir.Constant(kind, ir.Undefined), number,
                                 ir.Constant(INT32, 0))
  return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined),
                                constant(INT32, 0))


def _place(builder, pointer, index, kind):
  return builder.bitcast(builder.gep(pointer, [index]), kind.as_pointer())


def load(builder, pointer, index, lanes: int | None = None):
  """The vector that begins at an index of an array."""
  kind = vector(pointer.type.pointee, lanes)
  result = builder.load(_place(builder, pointer, index, kind))
  result.align = kind.element.get_abi_size(binding.create_target_data(''))
  return result


def store(builder, value, pointer, index) -> None:
  """Writes a vector to an array, beginning at an index."""
  instruction = builder.store(value, _place(builder, pointer, index, value.type))
  instruction.align = value.type.element.get_abi_size(binding.create_target_data(''))


def each(builder, count, step: int):
  """A loop over 0, step, ... below `count`; see `numba.core.cgutils.for_range`."""
  return cgutils.for_range_slice(
      builder, ir.Constant(INT64, 0), count, ir.Constant(INT64, step), INT64)


def offset(builder, index, count: int):
  """index + count, for an index of 64 bits."""
  return builder.add(index, ir.Constant(INT64, count))


def shuffle(builder, first, second, lanes):
  """The vector of these lanes of two; indices of the second follow the first."""
  return builder.shuffle_vector(first, second, constant(INT32, *lanes, lanes=len(lanes)))

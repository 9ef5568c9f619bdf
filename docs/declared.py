"""Prints the declared fields of settings and parameters as JSON, for the site.

The project's Python runs it, in the root: that of the site has no NumPy.
"""

import dataclasses
import inspect
import json
import sys
import typing

sys.path.insert(0, '')
# pylint: disable=wrong-import-position
import tff_pipelines.api  # Imports all that declare, and no TensorFlow.
from tff_pipelines.common import declarations


def sections(cls):
  """Heading -> name, type, default or None, and meaning of each field of a class."""
  found, hints = {}, typing.get_type_hints(cls)
  for name, field in declarations.declared(cls).items():
    meaning = field.help
    if field.default is None and field.otherwise:
      meaning += f' None: {field.otherwise}.'
    if field.details:
      meaning += f' [{field.details}]'
    found.setdefault(field.group, []).append((
        name, inspect.formatannotation(hints[name]),
        None if field.default is declarations.REQUIRED else repr(field.default),
        meaning))
  return found


def main():
  classes = {cls for module in list(sys.modules.values())
             for cls in vars(module).values()
             if isinstance(cls, type) and dataclasses.is_dataclass(cls)}
  json.dump({f'{cls.__module__}.{cls.__qualname__}': sections(cls) for cls in classes
             if any('setting' in field.metadata for field in dataclasses.fields(cls))},
            sys.stdout)


if __name__ == '__main__':
  main()

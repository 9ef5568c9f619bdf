"""Keeps sessions of TensorFlow alive in forked children of this process.

A forked child forgets the other threads and what only they refer to. A session has
threads of its own, and must not end there. This module refers to nothing else: what
must be called at a fork lives to the interpreter's end.
"""

import os
import weakref

# Sessions that live, and their calls.
ALIVE = weakref.WeakSet()
_held = []
os.register_at_fork(before=lambda: _held.extend(alive() for alive in list(ALIVE.data)),
                    after_in_parent=_held.clear)

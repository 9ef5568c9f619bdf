"""Forks of a process in whose threads TensorFlow has sessions."""

import subprocess
import sys

from tests.simulation import pools


def test_a_forked_child_ends_no_session_of_other_threads():
  with pools.session_elsewhere():
    for _ in range(3):
      child = subprocess.Popen(
          [sys.executable, '-S', '-c', 'print(1)'], preexec_fn=lambda: None,
          stdout=subprocess.PIPE)
      assert child.communicate(timeout=60)[0] == b'1\n'

"""Forks of a process in whose threads TensorFlow has sessions."""

import subprocess
import sys
import threading

import tensorflow as tf

from tff_pipelines.simulation import forks


def test_a_forked_child_ends_no_session_of_other_threads():
  kept, begun, ended = threading.local(), threading.Event(), threading.Event()

  def hold():
    session = tf.compat.v1.Session(graph=tf.Graph(), config=tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1))
    forks.ALIVE.add(session)
    kept.session = session
    del session
    begun.set()
    ended.wait()

  thread = threading.Thread(target=hold)
  thread.start()
  begun.wait()
  try:
    for _ in range(3):
      child = subprocess.Popen(
          [sys.executable, '-S', '-c', 'print(1)'], preexec_fn=lambda: None,
          stdout=subprocess.PIPE)
      assert child.communicate(timeout=60)[0] == b'1\n'
  finally:
    ended.set()
    thread.join()

# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
"""A signal that comes while the main thread is on its way into waiting for one."""

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[3]

# Signals at each line of wait() in turn: a trace function sends one there, whose handler runs at
# once. A run whose wait has fewer lines says 'all'; one that waits for itself ends by its alarm.
PROGRAM = textwrap.dedent("""
    import os, signal, sys, threading
    from gemma_thor_ros.ros import node

    class Event(threading.Event):                        # the planted error
        told = property(threading.Event.is_set)
        tell = threading.Event.set

    make = {'End': node.End, 'Event': Event}[sys.argv[1]]
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for place in range(1, 100):
        end, lines = make(), 0
        node.take_signals(end)

        def trace(frame, event, argument):
            global lines
            if event == 'line':
                lines += 1
                if lines == place:
                    sys.settrace(None)
                    os.kill(os.getpid(), signal.SIGTERM)
            return trace

        signal.alarm(1)
        helper = threading.Timer(0.02, end.tell)         # where the wait had fewer lines
        helper.start()
        sys.settrace(trace)
        end.wait()
        sys.settrace(None)
        helper.join()
        signal.alarm(0)
        if lines < place:
            print('all', place - 1)
            break
""")


def run(kind: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, '-c', PROGRAM, kind], capture_output=True, text=True,
                          timeout=30, check=False, cwd=ROOT)


def test_a_signal_at_any_line_of_the_wait_ends_it() -> None:
    done = run('End')
    assert done.returncode == 0 and done.stdout.startswith('all '), done


def test_an_event_would_wait_for_itself() -> None:
    assert run('Event').returncode < 0

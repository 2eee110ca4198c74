"""Signs of life of a process."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time

from meshwright.train.elastic.pulse import MOST_GAP_S, Pulse, Stacks, Vitals, crashed, innermost, is_stopped


def test_another_process_is_seen_to_count() -> None:
    pulse = Pulse()
    child = os.fork()
    if not child:
        pulse.beat()
        pulse.beat()
        os._exit(0)
    os.waitpid(child, 0)
    assert pulse.count == 2


def test_a_stopped_process_is_told_from_one_that_waits() -> None:
    child = os.fork()
    if not child:
        time.sleep(60.0)
        os._exit(0)
    try:
        assert not is_stopped(child)
        os.kill(child, signal.SIGSTOP)
        os.waitpid(child, os.WUNTRACED)
        assert is_stopped(child)
        os.kill(child, signal.SIGCONT)
        os.waitpid(child, os.WCONTINUED)
        assert not is_stopped(child)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert not is_stopped(child), "a process that is gone"


def test_time_is_added_up_while_a_process_is_stopped_or_silent() -> None:
    vitals = Vitals()
    vitals.look(False, 0.2)
    for _ in range(3):
        vitals.look(True, 0.2)
    assert (round(vitals.stopped_s, 6), round(vitals.silent_s, 6)) == (0.4, 0.6)
    vitals.pulse.beat()
    vitals.look(False, 0.2)
    assert (vitals.stopped_s, vitals.silent_s) == (0.0, 0.0)


def test_the_time_in_which_the_supervisor_was_stopped_itself_does_not_count() -> None:
    vitals = Vitals()
    vitals.look(True, 0.2)
    vitals.look(True, 3600.0)
    assert vitals.stopped_s == MOST_GAP_S


def test_a_process_says_where_its_main_thread_is() -> None:
    stacks = Stacks()
    ready, ours = os.pipe()
    child = os.fork()
    if not child:
        stacks.start()
        threading.Thread(target=time.sleep, args=(60.0,), daemon=True).start()
        os.write(ours, b"1")
        time.sleep(60.0)
        os._exit(0)
    try:
        os.read(ready, 1)
        assert not stacks.read(0.0)
        stacks.ask(child)
        found = stacks.read(10.0)
        assert found.count("most recent call first") == 2
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert innermost(found).startswith('File "') and "test_a_process_says_where_its_main_thread_is" in innermost(found)
    stacks.ask(None)
    stacks.ask(child)  # it is gone


def test_a_second_question_is_not_answered_by_the_stacks_of_the_first() -> None:
    stacks = Stacks()
    ready, ours = os.pipe()
    child = os.fork()
    if not child:
        stacks.start()
        os.write(ours, b"1")
        time.sleep(60.0)
        os._exit(0)
    try:
        os.read(ready, 1)
        stacks.ask(child)
        first = stacks.read(10.0)
        os.kill(child, signal.SIGSTOP)
        os.waitpid(child, os.WUNTRACED)
        stacks.ask(child)
        assert first and not stacks.read(0.0)
        os.kill(child, signal.SIGCONT)
        assert stacks.read(10.0).count("most recent call first") == 1
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_the_innermost_call_and_the_innermost_of_ours() -> None:
    stacks = """Thread 0x1 (most recent call first):
  File "/a/threading.py", line 1 in run

Current thread 0x2 (most recent call first):
  File "/a/torch/store.py", line 2 in wait
  File "/a/meshwright/train/launch.py", line 3 in agreed
  File "/a/meshwright/train/session.py", line 4 in _train
"""
    assert innermost(stacks) == 'File "/a/torch/store.py", line 2 in wait, called at File "/a/meshwright/train/launch.py", line 3 in agreed'
    assert innermost("") == ""


def test_a_process_that_crashes_leaves_its_stacks() -> None:
    stacks = Stacks()
    child = os.fork()
    if not child:
        stacks.start()
        ctypes.string_at(0)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGSEGV
    where = crashed(stacks.read(0.0))
    assert where.startswith("File") and where.endswith(" in string_at")


def test_a_crash_is_found_whether_the_process_was_asked_before_or_after_it() -> None:
    stacks = Stacks()
    ready, ours = os.pipe()
    heard, tell = os.pipe()
    child = os.fork()
    if not child:
        stacks.start()
        os.write(ours, b"1")
        os.read(heard, 1)
        ctypes.string_at(0)
        os._exit(0)
    os.read(ready, 1)
    stacks.ask(child)
    assert stacks.read(10.0)
    os.write(tell, b"1")
    os.waitpid(child, 0)
    assert crashed(stacks.read(0.0))
    stacks.ask(None)  # as while the system still writes its memory to a disk
    assert crashed(stacks.read(0.0))


def test_the_thread_that_crashed_is_told_from_the_main_thread() -> None:
    main = 'Thread 0x2 (most recent call first):\n  File "/a/meshwright/loop.py", line 1 in train\n'
    dump = (
        'Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n  File "/b.py", line 2 in abort\n\n' + main
    )
    assert crashed(main + dump) == 'File "/b.py", line 2 in abort'
    assert innermost(main) == 'File "/a/meshwright/loop.py", line 1 in train'
    assert crashed(dump.replace("Current thread", "Thread")) == "a thread without Python calls"
    assert crashed(main) == "" and innermost("") == ""

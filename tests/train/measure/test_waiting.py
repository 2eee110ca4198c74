"""Processes that wait for a request."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time

import pytest

from meshwright.train.measure.waiting import Waiting, sees_gpu, waiting

ECHO = """
import os, pickle, sys
answers = os.fdopen(int(sys.argv[1]), "wb")
print("noise")
try:
    while True:
        pickle.dump(("heard", pickle.load(sys.stdin.buffer), os.environ.get("WORD"), int(sys.argv[2]) == os.getppid()), answers)
        answers.flush()
except EOFError:
    pass
"""


@pytest.fixture
def echo(tmp_path, monkeypatch) -> str:
    """A module that answers each request with the request."""
    (tmp_path / "echo_of_the_test.py").write_text(ECHO)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "echo_of_the_test"


def test_it_answers_what_it_is_reported_and_nothing_that_it_prints(echo):
    one = Waiting(echo, {"WORD": "given"})
    for what in ("first", {"second": 2}):
        one.send(what)
        assert pickle.load(one.answers) == ("heard", what, "given", True)
    one.end()
    assert one.process.poll() is not None and one.answers.closed


def test_one_that_has_ended_may_get_a_request_and_ended_again(echo):
    one = Waiting(echo, {})
    one.process.kill()
    one.process.wait()
    one.send("nobody hears this")
    one.end()
    one.end()
    assert one.answers.closed


def test_it_gets_its_time_to_end_of_itself(echo):
    one = Waiting(echo, {})
    assert one.process.stdin is not None
    one.process.stdin.close()  # no more requests
    started_s = time.perf_counter()
    one.end(patience_s=20.0)
    assert one.process.returncode == 0 and time.perf_counter() - started_s < 15.0


def test_those_that_nobody_took_are_ended(echo):
    with pytest.raises(ZeroDivisionError), waiting(2, echo, {}) as made:
        taken, left = made.pop(), made[0]
        raise ZeroDivisionError
    assert left.process.poll() is not None and taken.process.poll() is None
    taken.end()


def test_it_is_there_before_torch():
    code = "import sys, meshwright.train.measure.waiting; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_gpu_shows_as_a_file_of_its_number_unless_it_is_hidden(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "nvidiactl").touch()
    assert not sees_gpu(tmp_path)
    (tmp_path / "nvidia3").touch()
    assert sees_gpu(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert sees_gpu(tmp_path)
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert not sees_gpu(tmp_path)

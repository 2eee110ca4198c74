"""Jobs on this machine, with a script in the place of Python; a real one is in tests/cli/test_launch.py."""

from __future__ import annotations

import time

import pytest

from meshwright.engines.engine import CANCELLED, DONE, FAILED, RUNNING
from meshwright.engines.local import Local
from meshwright.engines.site import Site
from meshwright.errors import InputError


@pytest.fixture
def job(request_of, tmp_path):
    def made(body: str):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/bash\n{body}\n")
        python.chmod(0o755)
        request = request_of("cores", Site(python=str(python)))
        request.folder.mkdir(parents=True)
        return request, Local(request)

    return made


def ended(engine, job):
    until_s = time.monotonic() + 20
    while (state := engine.state(job)).phase == RUNNING:
        assert time.monotonic() < until_s
        time.sleep(0.02)
    return state


@pytest.mark.parametrize(
    "body, phase, reason",
    [("exit 0", DONE, "exit status 0"), ("exit 3", FAILED, "exit status 3"), ("kill -9 $$", FAILED, "it was ended by SIGKILL")],
)
def test_how_a_process_ended(job, body, phase, reason):
    request, engine = job(body)
    engine.check(request)
    state = ended(engine, engine.submit(request))
    assert (state.phase, state.reason) == (phase, reason)


def test_a_process_is_asked_to_stop(job):
    request, engine = job("trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done")
    number = engine.submit(request)
    until_s = time.monotonic() + 20
    while b"up" not in engine.read(request.folder / "output.log", 0):
        assert time.monotonic() < until_s
        time.sleep(0.02)
    engine.cancel(number)
    assert engine.state(number).phase == CANCELLED
    assert engine.read(request.folder / "output.log", 3) == b"saved\n"


def test_a_python_that_is_not_there(request_of):
    request = request_of("cores", Site(python="/no/python"))
    request.folder.mkdir(parents=True)
    with pytest.raises(InputError, match="cannot start /no/python"):
        Local(request).submit(request)


def test_a_plan_for_gpus_that_are_not_here(request_of, monkeypatch):
    monkeypatch.setattr("meshwright.engines.local.gpu_names", list)
    with pytest.raises(InputError, match="the plan needs 32 h200, and this machine has 0 GPUs"):
        Local(request_of("replicas")).check(request_of("replicas"))

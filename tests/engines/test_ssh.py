"""Jobs by an ssh that runs its commands here."""

from __future__ import annotations

import time

import pytest

from meshwright.engines.engine import CANCELLED, DONE, FAILED, RUNNING, files_of
from meshwright.engines.job_folder import write_job
from meshwright.engines.site import Site
from meshwright.engines.ssh import Ssh
from meshwright.errors import InputError

# The host is the word before the command; a host may be unreachable, or without GPUs.
SSH = """
host=${@: -2:1}
[ -e "lost.$host" ] && { echo "ssh: connect to host $host: Connection refused" >&2; exit 255; }
HOST=$host exec bash -c "${@: -1}"
"""


@pytest.fixture
def job(request_of, programs, tmp_path):
    def made(body: str, plan: str = "cores", restarts: int = 0):
        programs.add("ssh", SSH)
        programs.add("nvidia-smi", 'seq -f "GPU %g" 1 "$(cat "gpus.$HOST" 2> /dev/null || echo 8)"')
        programs.add("python", f'[ "$1" = -c ] && exit 0\n{body}')
        count = {"cores": 2, "replicas": 4}[plan]
        site = Site(python=str(programs.folder / "bin" / "python"), workdir=str(tmp_path), restarts=restarts)
        request = request_of(plan, site, hosts=tuple(f"h{i}" for i in range(count)), runs=tmp_path / "runs")
        write_job(request, files_of("ssh", request), "")
        return request, Ssh(request)

    return made


def ended(engine, job):
    until_s = time.monotonic() + 20
    while (state := engine.state(job)).phase == RUNNING:
        assert time.monotonic() < until_s
        time.sleep(0.02)
    return state


def test_every_host_runs_its_ranks(job, programs):
    request, engine = job("echo $HOST; exit 0")
    engine.check(request)
    name = engine.submit(request)
    assert name == "h[0-1]" and ended(engine, name).phase == DONE
    assert (request.folder / "output.log").read_text() == "h0\n" and (request.folder / "h1.log").read_text() == "h1\n"
    assert any("--node-rank=1" in call for call in programs.calls if call.startswith("python"))


def test_one_host_that_fails_ends_the_others(job):
    request, engine = job('[ $HOST = h1 ] && exit 4; trap "exit 0" TERM; while :; do sleep 0.05; done')
    state = ended(engine, engine.submit(request))
    assert (state.phase, state.reason) == (FAILED, "h1: exit status 4")
    assert all(process.poll() is not None for process in engine.processes.values())


@pytest.fixture
def no_pause(monkeypatch):
    monkeypatch.setattr("meshwright.engines.ssh.PAUSE_S", 0.05)


def test_a_supervisor_that_is_lost_is_started_again(job, no_pause, programs):
    body = '[ $HOST = h1 ] && { echo x >> tries; exit 1; }; while [ "$(cat tries 2> /dev/null | wc -l)" -lt 3 ]; do sleep 0.05; done'
    request, engine = job(body, restarts=2)
    assert ended(engine, engine.submit(request)).phase == DONE
    assert len((programs.folder / "tries").read_text().split()) == 3  # the first time, and twice again


def test_a_refused_supervisor_is_not_started_again_and_does_not_end_the_run(job, no_pause, programs):
    request, engine = job("[ $HOST = h1 ] && { echo x >> tries; exit 2; }; sleep 1", restarts=2)
    assert ended(engine, engine.submit(request)).phase == DONE
    assert (programs.folder / "tries").read_text() == "x\n"


@pytest.mark.parametrize("how, code, tries", [("kill -9 $$", 137, 2), ("exit 1", 1, 1), ("exit 2", 2, 1), ("exit 130", 130, 1)])
def test_the_leading_supervisor_is_started_again_if_a_signal_ended_it(job, no_pause, programs, how, code, tries):
    request, engine = job(f"[ $HOST = h0 ] && {{ echo x >> tries; {how}; }}; sleep 20", restarts=1)
    begun_s = time.monotonic()
    state = ended(engine, engine.submit(request))
    assert (state.phase, state.reason) == (FAILED, f"h0: exit status {code}")
    assert len((programs.folder / "tries").read_text().split()) == tries
    assert time.monotonic() - begun_s < 120.0


def test_a_host_that_ended_well_with_a_lost_leading_supervisor_is_started_again_with_it(job, no_pause, programs):
    first = '[ -e lost ] || { touch lost; exit 255; }; while [ "$(cat tries | wc -l)" -lt 2 ]; do sleep 0.05; done; exit 0'
    request, engine = job(f"[ $HOST = h0 ] && {{ {first}; }}; echo x >> tries; exit 0", restarts=1)
    assert ended(engine, engine.submit(request)).phase == DONE
    assert (programs.folder / "tries").read_text() == "x\nx\n"


def test_all_hosts_are_asked_to_stop(job, programs):
    request, engine = job('trap "echo $HOST >> ended; exit 0" TERM; echo $HOST >> up; while :; do sleep 0.05; done')
    name = engine.submit(request)
    until_s = time.monotonic() + 20
    while not ((programs.folder / "up").exists() and len((programs.folder / "up").read_text().split()) == 2):
        assert time.monotonic() < until_s
        time.sleep(0.02)
    engine.cancel(name)
    assert engine.state(name).phase == CANCELLED
    assert sorted((programs.folder / "ended").read_text().split()) == ["h0", "h1"]


@pytest.mark.parametrize(
    "plan, file, text, what",
    [
        ("cores", "lost.h1", "", "h1 cannot be reached by ssh without a password: ssh: connect to host h1: Connection refused"),
        ("replicas", "gpus.h2", "4", "h2 have fewer than the 8 h200 that the plan needs on a node: h2 has 4"),
    ],
)
def test_a_host_that_cannot_be_used_is_named(job, programs, plan, file, text, what):
    request, engine = job("exit 0", plan)
    programs.write(file, text)
    with pytest.raises(InputError) as caught:
        engine.check(request)
    assert caught.value.what == what and engine.processes == {}


def test_a_host_without_meshwright_is_named(job, programs):
    request, engine = job("exit 0")
    programs.add("python", "echo \"ModuleNotFoundError: No module named 'meshwright'\" >&2; exit 1")
    with pytest.raises(InputError, match=r"h\[0-1\] cannot run meshwright: ModuleNotFoundError"):
        engine.check(request)


def test_files_that_are_not_here_are_read_on_the_first_host(job, tmp_path):
    request, engine = job("sleep 5")
    (tmp_path / "file").write_text("abc")
    assert engine.read(tmp_path / "file", 1) == b"bc" and engine.read(tmp_path / "none", 0) == b""
    engine.submit(request)
    assert engine.read(tmp_path / "none", 0) == b""
    engine.cancel("")

"""A process for each slice: all compile at once, each is timed alone, and one that fails costs no other."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from tiny import CPU, TINY

from meshwright.train.measure import machine, slices, workers
from meshwright.train.measure.slices import Cut


def test_each_slice_has_a_process_that_compiles_first_and_is_timed_when_asked(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    good = slices.Cut(model=TINY, precision="fp32", micro_batch=1, seq_len=16)
    wrong = slices.Cut(model=TINY, precision="no such", micro_batch=1, seq_len=16)
    found, reported = machine.Found(), []
    with workers.workers([good, wrong], CPU) as started:
        machine._slices(started, found, reported.append, time.perf_counter() + 60.0)
    assert [cut.num_layers for cut in found.slices] == [(slices.FEW, slices.MORE)] and found.slices[0].layer_s > 0
    assert len(found.left_out) == 1 and "InputError: the trainer does not run in 'no such'" in found.left_out[0]
    slices_of = "tiny in fp32, 1 x 16 tokens"
    assert reported == ["compiling for 2 slices at once", f"compiled for {slices_of}", f"timing slices of {slices_of}"]
    assert all(worker.process.process.poll() is not None for worker in started)


def test_nothing_runs_beside_a_slice_that_is_timed_and_one_that_hangs_costs_no_other(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(machine, "SLICE_S", 20.0)
    cut, found = slices.Cut(model=TINY, precision="fp32", micro_batch=1, seq_len=16), machine.Found()
    with workers.workers([replace(cut, seq_len=8), cut], CPU) as started:
        started[0].process.process.send_signal(signal.SIGSTOP)
        inner = started[1].slice
        ended = []
        monkeypatch.setattr(
            started[1], "slice", lambda *given: [ended.append(started[0].process.process.poll() is not None), inner(*given)][1]
        )
        machine._slices(started, found, lambda what: None, time.perf_counter() + 48.0)
    assert ended == [True] and [each.seq_len for each in found.slices] == [16] and found.left_out[0].endswith(workers.LATE)


def test_what_a_process_prints_does_not_reach_who_asks(monkeypatch, tmp_path):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    (tmp_path / "sitecustomize.py").write_text("print('NCCL version 2')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    cut, found = slices.Cut(model=TINY, precision="fp32", micro_batch=1, seq_len=16), machine.Found()
    with workers.workers([cut], CPU) as started:
        machine._slices(started, found, lambda what: None, time.perf_counter() + 60.0)
    assert len(found.slices) == 1


def test_half_an_answer_is_none():
    read, write = os.pipe()
    os.write(write, b"INFO x\n")
    os.close(write)
    worker = object.__new__(workers.Worker)
    with os.fdopen(read, "rb") as worker.answers, pytest.raises(workers.SliceError, match=workers.LEFT):
        worker.hear()


def test_a_process_that_dies_costs_its_slice_and_no_more():
    cut, found = slices.Cut(model=TINY, precision="fp32", micro_batch=1, seq_len=16), machine.Found()
    with workers.workers([cut], CPU) as started:
        started[0].process.process.kill()
        machine._slices(started, found, lambda what: None, time.perf_counter() + 60.0)
    assert found.slices == [] and found.left_out[0].endswith(workers.LEFT)


class Process:
    """A process that answers what a test has written for it."""

    def __init__(self, *answers: object) -> None:
        self.sent: list[object] = []
        self.patience: list[float] = []
        read, write = os.pipe()
        with os.fdopen(write, "wb") as pipe:
            for answer in answers:
                pickle.dump(answer, pipe)
        self.answers = os.fdopen(read, "rb", buffering=0)

    def send(self, what: object) -> None:
        self.sent.append(what)

    def end(self, patience_s: float) -> None:
        self.patience.append(patience_s)
        self.answers.close()


@pytest.fixture
def worker(request: pytest.FixtureRequest) -> Iterator[workers.Worker]:
    """A worker whose process answers what the test's parameter says."""
    process = Process(*request.param)
    yield workers.Worker(CUT, CPU, process)  # type: ignore[arg-type]
    process.answers.close()


CUT = Cut(model=TINY, precision="fp32", micro_batch=1, seq_len=16)


@pytest.mark.parametrize("worker", [("out of memory",)], indirect=True)
def test_a_text_is_why_there_is_no_slice(worker: workers.Worker) -> None:
    assert worker.process.sent == [(CUT, CPU)]
    with pytest.raises(workers.SliceError, match="out of memory"):
        worker.slice(time.perf_counter() + 10.0, within_s=3.0)
    assert worker.process.sent[1:] == [3.0]


def test_a_slice_that_comes_too_late_is_none() -> None:
    read, write = os.pipe()  # nobody answers
    process = Process()
    process.answers.close()
    process.answers = os.fdopen(read, "rb", buffering=0)
    worker = workers.Worker(CUT, CPU, process)  # type: ignore[arg-type]
    with pytest.raises(workers.SliceError, match="longer than allowed"):
        worker.slice(time.perf_counter() - 1.0)
    os.close(write)
    process.answers.close()


def test_all_are_heard_and_who_failed_is_ended_with_the_reason() -> None:
    reported: list[str] = []
    some = [workers.Worker(replace(CUT, seq_len=16 + n), CPU, Process(answer)) for n, answer in enumerate((None, "no kernel", None))]
    failed = workers.compiled(some, time.perf_counter() + 10.0, reported.append)
    assert [(worker is some[1], error.what) for worker, error in failed.items()] == [(True, "no kernel")]
    assert [worker.process.patience for worker in some] == [[], [0.0], []]
    assert sorted(reported) == ["compiled for tiny in fp32, 1 x 16 tokens", "compiled for tiny in fp32, 1 x 18 tokens"]
    for worker in some:
        worker.process.answers.close()


def test_processes_that_are_ready_are_used_first(monkeypatch: pytest.MonkeyPatch) -> None:
    new: list[Process] = []
    monkeypatch.setattr(workers, "Waiting", lambda *given: [new.append(Process()), new[-1]][1])
    ready = [Process()]
    with pytest.raises(KeyboardInterrupt), workers.workers([CUT, CUT], CPU, ready) as started:  # type: ignore[arg-type]
        first, second = (worker.process for worker in started)
        raise KeyboardInterrupt
    assert ready == [] and second is new[0] and len(new) == 1
    assert first.patience == second.patience == [0.0]  # none is left running, whatever happens


def test_memory_that_others_hold_now_is_no_reason_to_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(cut: Cut, device: torch.device) -> None:
        raise torch.OutOfMemoryError("others have it")

    released = []
    monkeypatch.setattr(workers, "_step", full)
    monkeypatch.setattr(workers, "release", released.append)
    workers._compile(CUT, CPU)
    assert released == [CPU]


def test_a_layer_is_compiled_for_by_one_step_and_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[object] = []

    class Runner:
        def __init__(self, cut: Cut, num_layers: int, device: torch.device) -> None:
            events.append(num_layers)

        def step(self) -> None:
            events.append("step")
            raise RuntimeError("a kernel broke")

        def close(self) -> None:
            events.append("close")

    monkeypatch.setattr(workers, "Runner", Runner)
    with pytest.raises(RuntimeError):
        workers._step(CUT, CPU)
    assert events == [workers.ONE, "step", "close"]

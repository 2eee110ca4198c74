"""When the loop evaluates, and that predictor and simulator evaluate after the same steps. test_end_to_end.py has what it does to a run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_run import Small

from meshwright.describe.workload import Evaluation
from meshwright.predict.prediction import num_evaluations_of
from meshwright.simulator.noise import QUIET
from meshwright.simulator.run import Conditions, run_plan
from meshwright.train import loop, replay
from meshwright.train.job import TrainingJob
from meshwright.train.parallel.timing import HostTimer


def job(small: Small, num_steps: int, **workload: Any) -> TrainingJob:
    return TrainingJob(plan=small.plan("dp=2", **workload), runs=Path("runs"), name="a", corpus=small.corpus, num_steps=num_steps)


@contextmanager
def without_ranks(evaluated: list[int]) -> Iterator[None]:
    """The loop's own lines, with nothing behind them: an evaluation notes the step it follows and does not reach the target."""

    def evaluate(parts: loop.Parts, progress: loop.Progress) -> bool:
        evaluated.append(progress.step)
        return False

    nothing = MagicMock()
    with (
        patch.object(loop, "evaluate", evaluate),
        patch.object(loop, "Feed", lambda *_: nullcontext(MagicMock(last_wait_s=0.0))),
        patch.object(loop, "Garbage", lambda: nullcontext(nothing)),
    ):
        yield


def parts_of(training: TrainingJob, is_late: bool, **wishes: int) -> Any:
    """What the loop works with, where a step does nothing; at the step that a wish names its result has it (`stops`, `saves`).

    From the step of `nan` on, no result is a number.
    """
    parts: Any = MagicMock(job=training)
    steps = iter(range(1, 10**6))

    def step(batch: object, rate: float) -> Any:
        number = next(steps)
        wished = {name: number == wishes.get(name) for name in ("stops", "saves", "changes")}
        is_finite = number < wishes.get("nan", 10**6)
        loss = 1.0 if is_finite else math.nan
        result = SimpleNamespace(is_finite=is_finite, loss=loss, grad_norm=1.0, own_norms=(), own_losses=(), checks=(), **wished)
        return SimpleNamespace(result=lambda: result, values=lambda: None)

    parts.replica.step, parts.replica.is_late, parts.replica.mesh.timer = step, is_late, HostTimer()
    parts.replica.mesh.layout, parts.replica.mesh.device = training.plan.layout, torch.device("cpu")
    parts.replica.numbers.gradient = torch.float32
    parts.saves.is_due.return_value = False
    parts.tracer = None
    return parts


def recorded(parts: Any) -> list[int]:
    """Steps that were written down, in order."""
    return [call.args[0].step for call in parts.logbook.step.call_args_list]


def trained_steps(training: TrainingJob, after_step: int = 0) -> list[int]:
    """The steps that the training loop evaluates after, going on after one."""
    evaluated: list[int] = []
    parts = parts_of(training, is_late=after_step % 2 == 1)
    batch = training.plan.workload.global_batch
    with without_ranks(evaluated):
        assert loop.train(parts, loop.Progress(step=after_step, samples=after_step * batch)) == "finished"
    return evaluated


def test_a_run_that_goes_on_evaluates_where_an_unbroken_one_does(small: Small) -> None:
    every = job(small, 11, global_batch=8, evaluation=Evaluation(num_samples=6, every_samples=16))
    assert trained_steps(every) == [2, 4, 6, 8, 10, 11]
    assert trained_steps(every, after_step=5) == [6, 8, 10, 11]


def test_without_an_evaluation_none_is_made(small: Small) -> None:
    assert trained_steps(job(small, 5, evaluation=None)) == []


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    quarter_batch=st.integers(1, 40),
    every=st.one_of(st.integers(1, 500), st.floats(1, 500)),
    start=st.floats(0, 2000).map(lambda x: round(x, 3)),
    per_batch=st.floats(0, 60).map(lambda x: round(x, 3)),
    num_steps=st.integers(1, 40),
)
def test_trainer_simulator_and_predictor_evaluate_after_the_same_steps(
    small: Small, quarter_batch: int, every: float, start: float, per_batch: float, num_steps: int
) -> None:
    evaluation = Evaluation(num_samples=6, every_samples=every, start_samples=start, start_samples_per_batch=per_batch)
    training = job(small, num_steps, global_batch=4 * quarter_batch, evaluation=evaluation, training={"most_samples": 1e9})
    expected = training.plan.workload.evaluated_steps(num_steps)
    assert trained_steps(training) == expected
    assert list(run_plan(training.plan, Conditions(noise=QUIET), num_steps).evaluated_after) == expected
    assert num_evaluations_of(training.plan.workload, num_steps) == len(expected)


@pytest.mark.parametrize("is_late", [False, True])
def test_every_step_is_written_down_once_and_all_of_them_before_an_evaluation(small: Small, is_late: bool) -> None:
    parts = parts_of(job(small, 7, evaluation=Evaluation(num_samples=6, every_samples=24)), is_late)
    before: list[list[int]] = []

    def evaluate(parts: Any, progress: loop.Progress) -> bool:
        before.append(recorded(parts))
        return False

    with without_ranks([]), patch.object(loop, "evaluate", evaluate):
        assert loop.train(parts, loop.Progress()) == "finished"
    assert before == [[1, 2, 3], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7]][: len(before)] and len(before) >= 2
    assert recorded(parts) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(("is_late", "last"), [(False, 3), (True, 4)])
def test_a_wish_to_stop_is_seen_a_step_later_on_a_gpu(small: Small, is_late: bool, last: int) -> None:
    parts = parts_of(job(small, 9), is_late, stops=3)
    progress = loop.Progress()
    with without_ranks([]):
        assert loop.train(parts, progress) == "stopped"
    assert (progress.step, recorded(parts)) == (last, list(range(1, last + 1)))


@pytest.mark.parametrize("is_late", [False, True])
def test_all_traced_steps_are_read_before_their_profile_is_written(small: Small, is_late: bool) -> None:
    parts = parts_of(job(small, 6), is_late)
    begun, ended = list[int](), list[list[int]]()
    allowed: list[str] = []
    parts.watch.allow = lambda seconds, why: nullcontext(allowed.append(why))
    parts.tracer = SimpleNamespace(
        begins_with=lambda step: step == 2,
        begin=lambda: begun.append(parts.logbook.step.call_count),
        ends_with=lambda step: step == 4,
        finish=lambda: ended.append(recorded(parts)) or "found",
    )
    with without_ranks([]):
        assert loop.train(parts, loop.Progress()) == "finished"
    assert (begun, ended, recorded(parts)) == ([0 if is_late else 1], [[1, 2, 3, 4]], [1, 2, 3, 4, 5, 6])
    assert "starting a profile" in allowed  # it imports torch's compiler, which takes seconds
    assert [call.args[1] for call in parts.logbook.overlap.call_args_list] == ["found"]


@pytest.mark.parametrize(("is_late", "saved"), [(False, 3), (True, 4)])
def test_a_wish_to_save_is_seen_a_step_later_on_a_gpu(small: Small, is_late: bool, saved: int) -> None:
    parts = parts_of(job(small, 9), is_late, saves=3)
    written: list[tuple[int, int]] = []
    parts.saves.save = lambda progress: written.append((progress.step, len(recorded(parts))))
    with without_ranks([]):
        assert loop.train(parts, loop.Progress()) == "finished"
    assert written == [(saved, saved)]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_step_without_numbers_is_named_whenever_it_is_looked_at(small: Small, is_late: bool) -> None:
    parts = parts_of(replace(job(small, 9), skip_batches=0), is_late, nan=5)
    with without_ranks([]), patch.object(replay, "find_culprit", lambda *_: "rank 1"), pytest.raises(replay.NotFinite) as found:
        loop.train(parts, loop.Progress())
    assert found.value.what == "the loss of step 5 (samples 32 to 39) is NaN or infinite: rank 1"
    assert recorded(parts) == [1, 2, 3, 4]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_run_that_has_taken_its_last_step_ends_as_it_would_have(small: Small, is_late: bool) -> None:
    evaluated: list[int] = []
    training = job(small, 9, evaluation=Evaluation(num_samples=6, every_samples=24))
    with without_ranks(evaluated):
        assert loop.train(parts_of(training, is_late, stops=9 - is_late), loop.Progress()) == "finished"
    assert evaluated == [3, 6, 9]


def test_a_wish_to_stop_that_comes_with_a_wish_to_save_is_heard(small: Small) -> None:
    parts, progress = parts_of(job(small, 9), True, saves=3, stops=4), loop.Progress()
    with without_ranks([]):
        assert loop.train(parts, progress) == "stopped"
    assert (progress.step, recorded(parts)) == (4, [1, 2, 3, 4])


class Device:
    """A clock of a device whose steps take 1 s, while the host needs 0.1 s to launch one; as a timer of moments on it."""

    def __init__(self) -> None:
        self.host_s = self.busy_until_s = 0.0

    def launch(self) -> None:
        self.host_s += 0.1
        self.busy_until_s = max(self.busy_until_s, self.host_s) + 1.0

    def moment(self) -> float:
        return max(self.busy_until_s, self.host_s)

    def later(self) -> Any:
        return dict


def test_steps_of_a_device_that_lags_behind_add_up_to_the_time_between_pauses(small: Small) -> None:
    parts, device = parts_of(job(small, 8, evaluation=Evaluation(num_samples=6, every_samples=32)), True), Device()
    take, parts.replica.mesh.timer = parts.replica.step, device

    def step(batch: object, rate: float) -> Any:
        device.launch()
        return take(batch, rate)

    def evaluate(parts: Any, progress: loop.Progress) -> bool:
        device.host_s = max(device.host_s, device.busy_until_s) + 5.0  # the host has waited for the device, and evaluates
        return False

    parts.replica.step = step
    with without_ranks([]), patch.object(loop, "evaluate", evaluate):
        loop.train(parts, loop.Progress())
    seconds = [call.args[0].step_s for call in parts.logbook.step.call_args_list]
    assert seconds == pytest.approx([1.1, 1.0, 1.0, 1.0, 1.1, 1.0, 1.0, 1.0])


@pytest.mark.parametrize(("is_reached", "status", "steps"), [(False, "finished", [4, 5]), (True, "target_reached", [])])
def test_a_run_that_was_stopped_before_an_evaluation_begins_with_it(small: Small, is_reached: bool, status: str, steps: list[int]) -> None:
    parts, evaluated = parts_of(job(small, 5), False), []

    def evaluate(parts: Any, progress: loop.Progress) -> bool:
        evaluated.append(progress.step)
        return is_reached

    with without_ranks([]), patch.object(loop, "evaluate", evaluate):
        assert loop.train(parts, loop.Progress(step=3, samples=24), owes_evaluation=True) == status
    assert (evaluated, recorded(parts)) == ([3], steps)

"""Clocks that work is timed by: pieces take turns, and processes that share cores count their own time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from tiny import CPU

from meshwright.train.measure import clock
from meshwright.train.measure.clock import interleaved_s, mean_s, now_s, seconds_of, share_cores


@pytest.fixture(autouse=True)
def own_cores() -> Iterator[None]:
    """No test leaves the next one with shared cores."""
    yield
    share_cores(1, 2)


def test_pieces_of_work_take_turns():
    order = []
    interleaved_s([lambda: order.append("a"), lambda: order.append("b")], CPU, 0.0)
    assert order[:4] == ["a", "b", "a", "b"] and order.count("a") == order.count("b") >= 5


def test_longer_work_takes_longer():
    small, large = torch.ones(16, 16), torch.ones(600, 600)
    assert seconds_of(lambda: small @ small, CPU, 0.01) < seconds_of(lambda: large @ large, CPU, 0.01)


class Clock:
    """A clock that only work moves: seconds of the wall, and of this process's core, which has half of it."""

    now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def process_time(self) -> float:
        return self.now_s / 2

    def work(self, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.now_s += seconds

        return run


@pytest.fixture
def made_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(clock, "time", found)
    return found


def test_each_piece_has_its_own_seconds(made_clock: Clock) -> None:
    assert interleaved_s([made_clock.work(0.25), made_clock.work(1.0)], CPU, 10.0) == pytest.approx([0.25, 1.0])
    assert seconds_of(made_clock.work(0.5), CPU, 1.0) == pytest.approx(0.5)


def test_a_mean_counts_the_turns_of_others(made_clock: Clock) -> None:
    turns = iter([0.5] * 5 + [0.5, 1.5] * 50)  # the first five decide how often it is repeated; then every second call waits for a turn

    def work() -> None:
        made_clock.now_s += next(turns)

    assert mean_s(work, CPU, 5.0) == pytest.approx(1.0)


LEAST, MOST = clock.LEAST_ROUNDS, clock.MOST_ROUNDS


@pytest.mark.parametrize(("each_s", "budget_s", "rounds"), [(1.0, 10.0, 10), (1.0, 0.0, LEAST), (1e-3, 1e3, MOST), (0.0, 1.0, MOST)])
def test_rounds_fill_the_budget_within_bounds(each_s: float, budget_s: float, rounds: int, made_clock: Clock) -> None:
    calls = []
    work = made_clock.work(each_s)
    interleaved_s([lambda: (calls.append(1), work())], CPU, budget_s)
    assert len(calls) == rounds + 2  # one to warm up, one to see how long it takes


def test_processes_that_share_cores_count_their_own_time_as_if_they_alone_ran(made_clock: Clock) -> None:
    made_clock.now_s = 8.0  # of the wall, of which this process had 4 on its core
    share_cores(8, 2)
    assert now_s() == 4.0 * 4  # four processes take turns on a core, so its 4 seconds take 16 of the wall
    share_cores(2, 2)
    assert now_s() == 4.0


def test_a_process_with_a_core_of_its_own_counts_the_walls_time(made_clock: Clock) -> None:
    made_clock.now_s = 8.0
    share_cores(1, 2)
    assert now_s() == 8.0


def test_a_mean_over_rounds_and_not_the_best_of_them_is_taken_on_a_processor(made_clock: Clock) -> None:
    durations = iter([9.0, 1.0, 1.0, 2.0, 6.0])  # to warm up, to see how long it takes, and three rounds
    assert interleaved_s([lambda: made_clock.work(next(durations))()], CPU, 0.0) == pytest.approx([3.0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_streams_own_time_is_taken() -> None:
    x = torch.ones(4096, 4096, device="cuda")
    small, large = interleaved_s([lambda: x[:64] @ x, lambda: x @ x], torch.device("cuda"), 0.05)
    assert 0 < small < large

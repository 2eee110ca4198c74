"""The speed of one core: the best of many tries by a clock of one's own, and what the program prints."""

from __future__ import annotations

import json
import math
import runpy
import time

import pytest

from meshwright.describe import core_speed


def test_the_best_try_of_each_counts_by_turns():
    now, done = 0.0, []

    def work(name, seconds):
        def run():
            nonlocal now
            done.append(name)
            now += next(seconds)

        return run

    first = work("first", iter([9.0, 0.5, 0.4, 0.3, 0.4, 0.5]))
    second = work("second", iter([9.0, 2.0, 3.0, 1.0, 1.0, 7.0]))
    assert core_speed.best_s(first, second, clock=lambda: now) == pytest.approx([0.3, 1.0])
    assert done == ["first", "second"] * (core_speed.ROUNDS + 1)  # one to warm up


def test_time_that_other_programs_take_does_not_count():
    (took_s,) = core_speed.best_s(lambda: (time.sleep(0.005), math.fsum(range(20_000))))
    assert 0 < took_s < 0.005


def test_tries_within_one_tick_of_a_slow_clock_share_it():
    now = 0.0

    def work():
        nonlocal now
        now += 1e-3

    (took_s,) = core_speed.best_s(work, clock=lambda: math.floor(now / 0.016 + 1e-9) * 0.016)  # a clock of 16 ms, as Windows has
    assert took_s == pytest.approx(1e-3, rel=0.1)


def test_rates_are_the_work_of_a_try_over_its_seconds(monkeypatch):
    # 2 x 256^3 FLOP in 1 ms, and 64 MB read and 64 MB written in 10 ms
    monkeypatch.setattr(core_speed, "best_s", lambda multiply, copy: [1e-3, 1e-2])
    assert core_speed.speed() == pytest.approx({"flops_per_s": 33_554_432e3, "bytes_per_s": 12.8e9})


def test_what_is_timed_is_a_product_and_a_copy(monkeypatch):
    def run_once(multiply, copy):
        assert multiply().tolist() == [[core_speed.MATRIX] * core_speed.MATRIX] * core_speed.MATRIX  # of ones with ones
        copy()
        return [1.0, 1.0]

    monkeypatch.setattr(core_speed, "best_s", run_once)
    assert core_speed.speed()["flops_per_s"] == 2 * core_speed.MATRIX**3


def test_the_program_prints_both_rates_as_json(capsys, monkeypatch):
    clock = iter(range(1_000_000))
    monkeypatch.setattr(time, "thread_time", lambda: float(next(clock)))  # a second a try, whatever this machine does
    runpy.run_path(core_speed.__file__, run_name="__main__")
    assert json.loads(capsys.readouterr().out) == {"flops_per_s": 2.0 * 256**3, "bytes_per_s": 128e6}

"""The fit of the noise: it finds what was put in, leaves out what it says, and holds on logs it has not seen."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from meshwright.simulator.logs import step_logs
from meshwright.simulator.noise_classes import COMMON, fitted_noise, json_text, noise_of
from meshwright.simulator.noise_fit import Checked, NoiseFit, compatible, simulated_as
from meshwright.simulator.row_spreads import drift_without_pipeline
from meshwright.simulator.stall_fit import Stalls, fitted_stalls


@pytest.fixture(scope="module")
def whole():
    return NoiseFit(step_logs())


@pytest.fixture(scope="module")
def predicted(whole):
    """Of every log, simulated over logged spread by the closed form of the fit, without the log and without its machine."""
    return {name: np.array([_ratio(whole, number, without) for number in range(len(whole.logs))]) for name, without in LEFT_OUT.items()}


def _alone(fit, number):
    return [number]


def _machine(fit, number):
    return [i for i, log in enumerate(fit.logs) if log.machine == fit.logs[number].machine]


LEFT_OUT = {"log": _alone, "machine": _machine}


def _ratio(fit, number, without):
    seen = fit.seen[number]
    values = fit.fitted(without(fit, number)).of(seen.kind)
    return math.exp(float(seen.predicted(math.log(values.delay), math.log(values.drift))) - seen.spread)


def test_a_log_is_simulated_with_as_many_steps_and_first_steps():
    log, values = step_logs()[-1], fitted_noise().of("blackwell-fp4")
    one, other = simulated_as(log, values, (1, 2))
    assert len(one.seconds) == len(other.seconds) == len(log.times.seconds)
    assert (one.is_first == log.times.is_first).all() and one.seconds.tobytes() != other.seconds.tobytes()
    assert one.median_s == pytest.approx(log.times.median_s, rel=0.05)
    checked = Checked(log, values, (one,))
    assert checked.median_error == pytest.approx(one.median_s / log.times.median_s - 1)
    assert checked.is_near == (2 / 3 <= checked.spread_ratio <= 1.5)
    low, high = checked.robust_std_80_pct
    assert low < checked.robust_std_pct < high and math.log(high / low) == pytest.approx(2 * 1.28155 * values.level_spread, rel=1e-4)


def test_the_package_carries_what_the_fit_gives(whole):
    assert whole.fitted() == fitted_noise()


def test_the_fit_leaves_out_what_it_is_reported_to(whole):
    last = len(whole.logs) - 1
    without_log, without_machine = (whole.fitted(chosen(whole, last)) for chosen in LEFT_OUT.values())
    assert (without_log.num_logs["blackwell-fp4"], without_machine.num_logs["blackwell-fp4"]) == (5, 3)  # one machine, three logs
    assert len({fit.of("blackwell-fp4").delay for fit in (whole.fitted(), without_log, without_machine)}) > 1
    assert "first" not in whole.fitted([i for i, seen in enumerate(whole.seen) if seen.kind == "first"]).classes


def test_a_class_without_logs_has_the_common_values_and_few_logs_stay_near_them(whole):
    fitted = whole.fitted()
    assert fitted.of("no such class") == fitted.classes[COMMON]
    one = next(i for i, seen in enumerate(whole.seen) if seen.kind == "blackwell")
    others = [i for i, seen in enumerate(whole.seen) if seen.kind == "blackwell" and i != one]
    alone = whole.fitted(others)
    assert alone.num_logs["blackwell"] == 1
    assert alone.classes[COMMON].drift < alone.of("blackwell").drift <= 1.1 * fitted.of("blackwell").drift


def test_spreads_of_logs_left_out_in_turn(predicted):
    """What docs/simulator.md says of the whole simulator, by the closed form: within a factor of 1.5 for more than two thirds.

    No form that was tried reaches 85 %: logs of one class differ by more. So a run's level is drawn, and four of five logs lie in its band.
    """
    for name, least in (("log", 20), ("machine", 18)):
        near = np.abs(np.log(predicted[name])) <= math.log(1.5)
        assert near.sum() >= least, (name, np.round(predicted[name], 2).tolist())
    assert np.median(np.abs(np.log(predicted["log"]))) < math.log(1.4)


def test_runs_differ_as_much_as_logs_that_were_left_out(whole, predicted):
    band = 1.2815515655446004 * whole.fitted().classes[COMMON].level_spread
    inside = np.abs(np.log(predicted["log"])) <= band
    assert 0.7 <= inside.mean() <= 0.9  # 80 % of runs, thirty logs
    assert (np.abs(np.log(predicted["log"])) <= band + math.log(1.5)).mean() >= 0.85


def test_long_steps_and_first_steps_of_logs_left_out_in_turn(whole):
    checked = [Checked(log, whole.fitted([i]).of(whole.seen[i].kind), ()) for i, log in enumerate(whole.logs)]
    assert sum(one.is_long_near for one in checked) >= 0.85 * len(checked)
    for is_wall in (False, True):  # no class invents stalls or has none: what is expected of all its logs is what they have, within two
        some = [one for one in checked if one.log.timer_is_wall == is_wall]
        assert 0.5 <= sum(one.expected_long for one in some) / sum(one.num_long for one in some) <= 2.0
    firsts = [(one.log.times.median_s + math.log(2) * one.noise.first_step_s) / one.log.times.seconds[0] for one in checked]
    assert sum(0.5 <= ratio <= 2.0 for ratio in firsts) >= 0.85 * len(firsts)


@pytest.mark.parametrize(
    "seen, expected, fits",
    [
        (0, 0.0, True),
        (0, 1.99, True),
        (0, 2.01, False),
        (1, 0.14, False),
        (1, 0.15, True),
        (1, 3.0, True),
        (9, 4.5, True),
        (9, 1.3, False),
        (2, 9, False),
    ],
)
def test_a_count_fits_what_is_expected_within_two_or_chance(seen, expected, fits):
    assert compatible(seen, expected) == fits


def test_stalls_are_fitted_as_they_were_drawn():
    rng = np.random.default_rng(0)
    logs, classes = [], []
    for number in range(400):
        rate = (1e-3, 4e-3)[number % 2] * rng.standard_gamma(0.5) / 0.5
        logs.append(Stalls(tuple((0.1 + 0.3 * rng.standard_exponential(rng.poisson(rate * 1000))).tolist()), 1000.0))
        classes.append(("few", "many")[number % 2])
    found = fitted_stalls(logs, classes)
    assert found.per_hour["few"] == pytest.approx(1e-3, rel=0.25) and found.per_hour["many"] == pytest.approx(4e-3, rel=0.25)
    assert found.share["few"] == pytest.approx(0.3, rel=0.15) and found.spread == pytest.approx(2.0, rel=0.3)


def test_one_troubled_log_spreads_the_rates_and_alike_logs_do_not():
    calm = [Stalls((0.2,), 1000.0)] * 9
    assert fitted_stalls(calm, ["a"] * 9).spread == 0.0
    found = fitted_stalls([*calm, Stalls((0.2,) * 30, 1000.0)], ["a"] * 10)
    assert found.spread > 0.5 and found.per_hour["a"] == pytest.approx(0.0039)
    assert fitted_stalls([Stalls((), 10.0)], ["a"]).per_hour == {"a": 0.0, COMMON: 0.0}


def test_jobs_without_a_pipeline_spread_as_rows_of_measured_runs_say():
    found, noise = drift_without_pipeline(), fitted_noise().of("unpipelined")
    assert (noise.drift, noise.level_spread) == (found.drift, found.level_spread)
    assert found.num_rows == fitted_noise().num_logs["unpipelined"] > 100
    assert found.drift < fitted_noise().of("hopper").drift / 2


def test_constants_survive_their_file():
    text = json_text(fitted_noise(), "a test", "2026-11-16")
    assert noise_of(json.loads(text)) == fitted_noise()

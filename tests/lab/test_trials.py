"""Trials of a lab: which runs are made, what is done to links, and what the simulator says of the same."""

from __future__ import annotations

import pytest

from meshwright.errors import InputError
from meshwright.lab import state, trials
from meshwright.lab.description import Lab
from meshwright.lab.paced import Steps, paced_forecast
from meshwright.lab.trials import faults, scaling, simulated_s

STEPS = Steps(step_s=tuple([1.0] * 16 + [2.0] * 16))


def test_weak_scaling_runs_every_number_of_racks(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(trials, "run_paced", lambda pace, lab, *_: ran.append(lab.num_slots) or STEPS)
    found = scaling(Lab(num_racks=3), tmp_path, 32, 2, lambda what: None)
    assert ran == [4, 8, 12] and [one.num_racks for one in found] == [1, 2, 3]
    assert found[0].forecast.step_s < found[1].forecast.step_s < found[2].forecast.step_s


def test_a_fault_strikes_in_the_middle_and_is_mended(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(state, "read_state", lambda name: None)
    monkeypatch.setattr(state, "change_link", lambda made, link, **change: done.append((link, change)))

    def run(pace, lab, folder, name, num_cores, at_step):
        assert at_step[0] == 16
        at_step[1]()
        if name == "slow-host":
            assert (pace.slow_ranks, pace.slow_from) == ((2, 3), 17)
        return STEPS

    monkeypatch.setattr(trials, "run_paced", run)
    made = state.State(lab=Lab(num_planes=2, is_spread=True))
    found = {one.name: one for one in faults(made, tmp_path, 32, 2, lambda what: None)}
    assert list(found) == ["halved-uplink", "slow-host", "lost-plane"]
    assert done[:4] == [
        ("rack0", {"bits_per_s": 5e7}),
        ("rack1", {"bits_per_s": 5e7}),
        ("rack0", {"bits_per_s": 1e8}),
        ("rack1", {"bits_per_s": 1e8}),
    ]
    assert done[4] == ("r0h0", {"plane": 1, "is_up": False}) and done[-1] == ("r1h1", {"plane": 1, "is_up": True})
    assert all(one.before.median_s == 1.0 and one.after.median_s == 2.0 for one in found.values())
    half, slow, plane = found.values()
    assert half.simulated_after_s == pytest.approx(plane.simulated_after_s, rel=0.05)  # half of the planes is half of the rate
    assert slow.simulated_after_s > slow.simulated_before_s


def test_the_simulator_says_the_forecast_without_faults(tmp_path):
    forecast = paced_forecast(Lab())
    assert simulated_s(forecast, tmp_path, "a") == pytest.approx(forecast.step_s, rel=1e-6)


def test_what_cannot_be_tried_is_refused(tmp_path):
    with pytest.raises(InputError, match="has one rack, so nothing crosses racks"):
        next(iter(faults(state.State(lab=Lab(num_racks=1)), tmp_path, 32, 2, lambda what: None)))
    with pytest.raises(InputError, match="--steps is 3"):
        scaling(Lab(), tmp_path, 3, 2, lambda what: None)

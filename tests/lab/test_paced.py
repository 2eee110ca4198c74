"""The job whose compute is a wait: what its ranks wait and send, and medians of its steps."""

from __future__ import annotations

import pytest

from meshwright.errors import MeshwrightError
from meshwright.lab import ranks
from meshwright.lab.description import Lab
from meshwright.lab.paced import Steps, after, pace_of, paced_forecast, run_paced


def test_compute_is_the_same_on_any_number_of_racks_and_only_data_parallelism_crosses_them():
    one, four = (paced_forecast(Lab(num_racks=racks)) for racks in (1, 4))
    assert one.parts["exposed_dp"] == 0.0 and four.parts["exposed_dp"] > one.step_s
    assert pace_of(four, 5).wait_s == pytest.approx(pace_of(one, 5).wait_s, rel=0.1)
    assert four.layout.order[-1] == "dp" and four.layout.dp == 4


def test_every_parameter_is_summed_once_in_a_step():
    forecast = paced_forecast(Lab(num_racks=2))
    pace = pace_of(forecast, 5)
    sent = sum(sum(sizes) for sizes in pace.payload_bytes)
    assert pace.replica_ranks == 4 and sent == pytest.approx(4 * forecast.job.model.num_parameters, rel=0.02)
    assert pace_of(paced_forecast(Lab(num_racks=1)), 5).payload_bytes == ((),) * 4


def test_the_noise_of_a_run_is_how_far_its_halves_differ():
    steps = Steps(step_s=(9.0, 2.0, 2.0, 2.0, 2.2, 2.2, 2.2))
    steady = after(steps, 1)
    assert steady.median_s == pytest.approx(2.1) and steady.halves_differ == pytest.approx(0.1)
    assert after(steps, 1, 3).step_s == (2.0, 2.0) and after(steps, 1, 3).error_s == 0.0


def test_a_run_that_fails_says_so_and_what_strikes_is_called_at_its_step(tmp_path, monkeypatch):
    struck = []

    def run(begun, log):
        out = tmp_path / "a.steps.jsonl"
        out.write_text('{"step_s": 1.0}\n{"step_s": 2.0}\n')
        for _ in range(500):
            if struck:
                break
            ranks.time.sleep(0.01)
        log.write_text("why it failed\n")
        return codes.pop()

    codes = [1, 0]
    monkeypatch.setattr(ranks, "run", run)
    pace = pace_of(paced_forecast(Lab()), 2)
    assert run_paced(pace, Lab(), tmp_path, "a", 2, (2, lambda: struck.append(1))).step_s == (1.0, 2.0) and struck == [1]
    with pytest.raises(MeshwrightError, match="the job a ended with status 1: why it failed"):
        run_paced(pace, Lab(), tmp_path, "a", 2)

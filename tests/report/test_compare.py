"""Runs next to each other: what can be compared is compared, what cannot is reported, and noise is called noise."""

from __future__ import annotations

import pytest

from meshwright.plan.plan import Plan
from meshwright.report.compare import differences, differing, parts_of, same_loss, simulated_beside
from meshwright.report.facts import facts_of_runs


def test_predicted_simulated_and_measured_parts_stand_side_by_side(make_run, workstation: Plan) -> None:
    trained = make_run("trained", plan=workstation, times_s=[1.0] * 20)
    simulated = make_run("simulated", plan=workstation, kind="simulated", times_s=[2.0] * 20)
    run, other = facts_of_runs([trained, simulated])
    assert simulated_beside(run, [run, other]) is other and simulated_beside(other, [run, other]) is None
    compute = parts_of(run, other)[0]
    assert (compute.part, compute.predicted_s) == ("compute", workstation.parts_s["compute"])
    assert (compute.simulated_s, compute.measured_s) == pytest.approx((1.4, 0.7))
    assert {row.part for row in parts_of(run)} >= {"compute", "exposed_tp", "bubble"}


def test_a_simulation_of_another_plan_is_not_set_beside(make_run, workstation: Plan, record: Plan) -> None:
    runs = facts_of_runs([make_run("trained", plan=workstation), make_run("other", plan=record, kind="simulated")])
    assert simulated_beside(runs[0], runs) is None


def test_different_models_are_compared_with_a_message(make_run, workstation: Plan, record: Plan) -> None:
    runs = facts_of_runs([make_run("small", plan=workstation), make_run("large", plan=record)])
    notes = differing(runs)
    assert notes[0].startswith("Different models: llama-3.2-1b (small); llama-3.1-405b (large). Their losses, step times")
    assert any(note.startswith("Different sequence lengths: 4096 (small); 8192 (large).") for note in notes)
    assert not same_loss(runs) and differences(runs) == []


def test_equal_runs_share_all(make_run, workstation: Plan) -> None:
    runs = facts_of_runs([make_run(name, plan=workstation) for name in ("a", "b")])
    assert differing(runs) == [] and same_loss(runs)


def test_a_difference_below_the_noise_is_called_so(make_run, workstation: Plan, steps_around) -> None:
    one, other = (make_run(str(seed), plan=workstation, times_s=steps_around(200, 0.5, 0.01, seed)) for seed in (1, 2))
    (found,) = differences(facts_of_runs([one, other]))
    assert found.low_pct is not None and found.high_pct is not None and found.low_pct < 0 < found.high_pct
    assert "is below the noise within the runs" in found.text


@pytest.mark.parametrize("factor, way, is_small", [(1.1, "slower", False), (0.9, "faster", False), (1.01, "slower", True)])
def test_a_clear_difference_is_reported_with_its_interval(
    make_run, workstation: Plan, steps_around, factor: float, way: str, is_small: bool
) -> None:
    one = make_run("a", plan=workstation, times_s=steps_around(400))
    other = make_run("b", plan=workstation, times_s=steps_around(400, 0.5 * factor, seed=9))
    (found,) = differences(facts_of_runs([one, other]))
    assert found.change_pct == pytest.approx(100 * (factor - 1), abs=0.4)
    assert f"% {way} (95 %:" in found.text
    assert ("below the noise between runs: single runs of one job lie up to 2 % apart" in found.text) == is_small


def test_too_few_steps_give_no_interval(make_run, workstation: Plan) -> None:
    runs = [make_run(name, plan=workstation, times_s=[step_s] * 5) for name, step_s in (("a", 0.5), ("b", 0.6))]
    (found,) = differences(facts_of_runs(runs))
    assert found.low_pct is None and "too few steady steps" in found.text


def test_other_batches_and_unknown_models_are_no_difference_in_step_time(make_run, workstation: Plan) -> None:
    runs = [make_run("a", plan=workstation), make_run("b", plan=workstation, batch=32), make_run("c"), make_run("d")]
    assert differences(facts_of_runs(runs)) == []

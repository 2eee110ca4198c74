"""What is said about trials of a lab."""

from __future__ import annotations

from meshwright.lab.description import Lab
from meshwright.lab.paced import Steps, paced_forecast
from meshwright.lab.trials import Fault, Size
from meshwright.lab.trials_page import faults_document, faults_words, noise_floor, scaling_document, scaling_words, trial_page


def a_size(num_racks: int, *step_s: float) -> Size:
    forecast = paced_forecast(Lab(num_racks=num_racks))
    return Size(num_racks=num_racks, num_ranks=4 * num_racks, forecast=forecast, measured=Steps(step_s=step_s))


def a_fault(simulated_after_s: float) -> Fault:
    before, after = Steps(step_s=(1.0, 1.0)), Steps(step_s=(2.0, 2.0))
    return Fault(
        name="halved-uplink",
        words="all uplinks at half their rate",
        simulated_before_s=1.1,
        simulated_after_s=simulated_after_s,
        before=before,
        after=after,
        worst_s=2.5,
    )


def test_scaling_says_what_it_costs_and_how_far_noise_reaches():
    sizes = [a_size(1, 0.5, 0.5, 0.55, 0.55), a_size(2, 1.0, 1.0, 1.0, 1.0)]
    assert round(noise_floor(sizes), 6) == 0.1
    assert scaling_words(sizes).startswith("On 2 racks a step takes 1.90 times as long as on one")
    document = scaling_document(sizes, Lab())
    assert [one["num_racks"] for one in document.values["lab_sizes"]] == [1, 2]
    assert "Compute is not real here" in trial_page(document, Lab())


def test_faults_say_whether_the_simulator_was_right():
    good, bad = a_fault(2.2), a_fault(3.0)
    assert faults_words([good, bad]) == "No run ended early. Of 2 faults, 1 were simulated within 20 % before and after."
    document = faults_document([good], Lab())
    assert document.values["lab_faults"][0]["median_after_s"] == 2.0
    page = trial_page(document, Lab())
    assert (
        "Simulated and measured step" in page
        and "all uplinks at half their rate: after" in page
        and "--planes 2 --spread" in page
        and "<script" not in page
    )

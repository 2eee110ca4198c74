"""The page of simulated against logged step times: both curves of each log, the same numbers in a table, names escaped."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))

from pages import check_alone, words

from meshwright.cli.noise_page import page, write_page
from meshwright.errors import InputError
from meshwright.evidence.refit import MEASURED_CSV
from meshwright.evidence.runs import read_runs
from meshwright.record.step_times import StepTimes
from meshwright.say.noise import noise_document, verdicts
from meshwright.simulator.logs import StepLog
from meshwright.simulator.noise_classes import COMMON, fitted_noise
from meshwright.simulator.noise_fit import Checked

RUN = read_runs(MEASURED_CSV).rows[0]


def times(scale: float = 1.0, spread: float = 1.0) -> StepTimes:
    """A first step, and two hundred around two seconds, evenly from one per cent below to one above."""
    steady = 2.0 * scale * (1 + spread * np.linspace(-0.01, 0.01, 201))
    return StepTimes(np.concatenate(([9.0], steady)), np.array([True, *[False] * 201]), "by hand")


def checked(name: str = "a_log", *simulated: StepTimes) -> Checked:
    return Checked(StepLog(name, RUN, times()), fitted_noise().of(COMMON), simulated or (times(),))


def curves(made: str) -> list[list[tuple[float, float]]]:
    found = re.findall(r'<polyline points="([^"]+)"', made)
    return [[(float(x), float(y)) for x, y in (pair.split(",") for pair in points.split())] for points in found]


def test_the_page_stands_alone_and_has_a_curve_for_the_log_and_each_seed():
    made = page([checked("one", times(), times(1.001)), checked("two")], ())
    check_alone(made)
    assert made.count("<figure>") == 2 and len(curves(made)) == 3 + 2
    assert made.count('stroke="var(--dp)" stroke-width="2"') == 2  # the logs'


def test_curves_that_are_alike_lie_on_each_other_and_a_slower_one_to_the_right():
    same, logged = curves(page([checked()], ()))
    assert same == logged
    slower, logged = curves(page([checked("a", times(1.005))], ()))
    shared = min(len(slower), len(logged)) - 5
    assert all(x > at for (x, _), (at, _) in zip(slower[:shared], logged[:shared], strict=True))


def test_the_verdict_is_worked_by_hand():
    logs = [checked("a", times(1.01)), checked("b", times(1.03, spread=3.0))]
    said = verdicts(noise_document(fitted_noise(), logs, logs, []).values)
    text = words(page(logs, said))
    assert "2 logs. Medians are 2.00 % off on average and 3.00 % at most." in text
    assert "within a factor of 1.5 for 1 of 2 logs (50 %); without the log's machine 1 (50 %)." in text
    assert all(line in text for line in said) and text.count("(beyond 1.5)") == 1


def test_names_are_escaped_and_a_flat_log_is_drawn():
    flat = StepTimes(np.full(20, 2.0), np.array([True, *[False] * 19]), "by hand")
    jittery = Checked(StepLog("<b>flat</b>", RUN, times()), fitted_noise().of(COMMON), (flat,))
    made = page([jittery], ["<i>so</i>"])
    check_alone(made)
    assert "<b>flat" not in made and "&lt;b&gt;flat" in made
    assert "<i>so" not in made and "&lt;i&gt;so" in made


def test_the_page_is_written_or_an_error_says_why(tmp_path):
    write_page(tmp_path / "page.html", [checked()], ["So it is."])
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page([checked()], ["So it is."])
    with pytest.raises(InputError, match=r"cannot write page\.html"):
        write_page(tmp_path / "none" / "page.html", [checked()], ["So it is."])

"""Worked numbers of a run's steps come out."""

from __future__ import annotations

import pytest

from meshwright.errors import InputError
from meshwright.record.run import read_run
from meshwright.record.summary import summary_of
from meshwright.record.writer import RunWriter

from .conftest import a_step


def test_a_summary_leaves_out_first_steps_and_worked_numbers_come_out(writer: RunWriter) -> None:
    # steps 1 and 4 are slow for known reasons; the others are 0.10, 0.12, 0.10, 0.14 s
    seconds = [1.0, 0.10, 0.12, 0.9, 0.10, 0.14]
    writer.steps(a_step(number, value) for number, value in enumerate(seconds, start=1))
    writer.event("evaluation", 3)
    found = summary_of(read_run(writer.folder))
    assert (found.num_steps, found.num_steady_steps) == (6, 4)
    assert found.median_step_s == pytest.approx(0.11)
    assert found.robust_std_pct == pytest.approx(100 * 1.4826 * 0.01 / 0.11, rel=1e-4)
    assert found.worst_step_s == 1.0
    assert found.drift_pct == pytest.approx(40.0)
    assert found.mean_exposed_s == {"tp": pytest.approx(0.115 / 8)}
    assert found.mean_parts_s["compute"] == pytest.approx(0.75 * 0.115)
    assert found.unaccounted_s == pytest.approx(0.0, abs=1e-12)
    assert found.mean_step_s == pytest.approx(0.115)
    assert found.tokens_per_s == pytest.approx(4 * 32 * 128 / (0.10 + 0.12 + 0.10 + 0.14))  # the steady steps' tokens over their time


def test_a_run_without_a_step_has_no_summary(writer: RunWriter) -> None:
    with pytest.raises(InputError, match="no step yet"):
        summary_of(read_run(writer.folder))

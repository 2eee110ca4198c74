"""The logs the package carries, and that they are those of the data folder where it is at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.simulator.logs import FOLDER, plan_of, step_logs
from meshwright.simulator.planned_step import planned_step


def test_every_clean_log_has_its_layout():
    logs = step_logs()
    assert (len(logs), len(list(FOLDER.glob("*.csv")))) == (30, 31)
    assert not any("3072" in log.name for log in logs)
    for log in logs:
        assert log.times.median_s == pytest.approx(log.run.measured_s, rel=0.021)
        assert log.first_steps[0] == 0


def test_the_three_logs_of_the_record_belong_to_one_row():
    azure = [log for log in step_logs() if log.name.startswith("v6.0_Azure")]
    assert [round(log.times.median_s, 4) for log in azure] == [1.2957, 1.2701, 1.2704]
    assert len({id(log.run) for log in azure}) == 1


def test_a_measured_run_is_a_plan_of_its_predicted_step():
    log = step_logs()[0]
    plan = plan_of(log.run)
    assert planned_step(plan).step_s == pytest.approx(plan.step_s, rel=1e-12)


def test_an_empty_folder_and_a_stranger_are_refused(tmp_path):
    with pytest.raises(InputError, match="no step-time logs"):
        step_logs(tmp_path)
    (tmp_path / "v9.9_nobody.csv").write_text("step,step_s\n1,1.0\n")
    with pytest.raises(InputError, match="0 measured runs"):
        step_logs(Path(tmp_path / "."))

"""The fit of what experts cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.evidence.mixtures import EXPERTS_FITTED, Mixtures, as_entries, mixtures
from meshwright.evidence.refit import PUBLISHED_CSV
from meshwright.evidence.runs import read_runs
from meshwright.predict.software import fitted_values


@pytest.fixture(scope="module")
def rows() -> Mixtures:
    return Mixtures(mixtures(read_runs(PUBLISHED_CSV).rows)[:12], fitted_values())


def test_only_experts_in_known_software_count() -> None:
    runs = read_runs(PUBLISHED_CSV).rows
    own = mixtures(runs)
    assert own and all(run.model.experts for run in own) and len(own) < len(runs)
    assert mixtures([replace(own[0], release="homemade-1")]) == []


def test_more_waiting_makes_no_step_shorter(rows: Mixtures) -> None:
    constants = fitted_values().experts
    slower = replace(constants, sync_s=constants.sync_s + 1e-3, moved_bytes=constants.moved_bytes + 5)
    assert (rows.log_errors(slower) >= rows.log_errors(constants) - 1e-12).all()
    assert (rows.log_errors(slower) > rows.log_errors(constants)).any()


def test_a_fit_is_no_worse_than_the_values_expected(rows: Mixtures) -> None:
    expected = replace(fitted_values().experts, **{name: one.expected for name, one in EXPERTS_FITTED.items()})
    found = rows.fit()
    assert np.abs(rows.log_errors(found)).mean() < np.abs(rows.log_errors(expected)).mean()
    for name, one in EXPERTS_FITTED.items():
        assert one.low <= getattr(found, name) <= one.high, name


def test_entries_say_what_each_constant_means() -> None:
    entries = as_entries(fitted_values().experts)
    assert set(entries) == set(EXPERTS_FITTED)
    assert entries["sync_s"]["unit"] == "s" and entries["sync_s"]["value"] == fitted_values().experts.sync_s

"""`meshwright fit` from carried data to carried constants."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshwright.evidence.classes import EFFECTS_FITTED, FURTHER
from meshwright.evidence.mixtures import EXPERTS_FITTED
from meshwright.evidence.refit import (
    FSDP_CSV,
    HERE,
    MEASURED_CSV,
    PUBLISHED_CSV,
    UNFITTED_CSV,
    Refit,
    dense_llama,
    pretraining,
    refit,
    stack_of,
)
from meshwright.evidence.runs import read_runs
from meshwright.predict.practice import UNTUNED
from meshwright.predict.software import fitted_values

CONSTANTS = json.loads((HERE / "constants.json").read_text())
RESIDUALS = json.loads((HERE / "residuals.json").read_text())


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    Refit(CONSTANTS, RESIDUALS).write(tmp_path)
    assert json.loads((tmp_path / "constants.json").read_text()) == CONSTANTS
    assert json.loads((tmp_path / "residuals.json").read_text()) == RESIDUALS


def test_rows_of_the_joint_fit() -> None:
    runs = pretraining(read_runs(MEASURED_CSV).rows)
    assert len(runs) == 48
    assert {run.vendor for run in runs} == {"NVIDIA"} and {run.kind for run in runs} == {"pretrain"}
    assert f"{len(runs)} pre-training rows" in CONSTANTS["fitted_on"]


def test_one_factor_per_container_and_nothing_else_from_published_tables() -> None:
    llama = dense_llama(read_runs(PUBLISHED_CSV).rows)
    assert set(CONSTANTS["containers"]) == {run.release for run in llama}


def test_a_residual_for_every_fitted_row_and_for_those_that_nothing_was_fitted_on() -> None:
    runs = RESIDUALS["runs"]
    num_fitted = sum(run["fitted"] for run in runs)
    dense = [run for run in (*read_runs(UNFITTED_CSV).rows, *read_runs(FSDP_CSV).rows) if not run.model.experts]
    assert num_fitted > 200 + len(dense) and {run.release for run in dense} <= {run["family"][2] for run in runs}
    assert all(run["fitted"] for run in runs if run["architecture"] in ("cdna3", "ampere"))


def test_classes_and_experts_have_constants_within_their_bounds() -> None:
    for (name, key), meaning in EFFECTS_FITTED.items():
        value = CONSTANTS["further" if name in FURTHER else "classes"][name][key]
        assert meaning.low <= value <= meaning.high, (name, key)
    for name, meaning in EXPERTS_FITTED.items():
        assert meaning.low <= CONSTANTS["expert_constants"][name]["value"] <= meaning.high, name
    assert len(EXPERTS_FITTED) <= 12


def test_software_of_another_kind_is_taken_as_the_mean_of_the_classes_under_its_own_name() -> None:
    run = replace(read_runs(UNFITTED_CSV).rows[0], release="homemade-1.0")
    stack = stack_of(run, fitted_values())
    mean = sum(fitted_values().classes[kind].log_factor for kind in UNTUNED) / len(UNTUNED)
    assert (stack.release, stack.known) == (run.release, False) and stack.log_factor == pytest.approx(mean)
    assert "homemade-1.0" in stack.note and "fsdp" in stack.note
    assert stack_of(replace(run, release="v5.0"), fitted_values()).known


@pytest.mark.long
def test_the_carried_files_are_those_of_the_fit() -> None:
    found = refit(MEASURED_CSV, PUBLISHED_CSV, CONSTANTS["date"])
    for name, one in CONSTANTS["constants"].items():
        assert found.constants["constants"][name]["value"] == pytest.approx(one["value"], rel=1e-2, abs=1e-3), name
    assert found.constants["containers"] == pytest.approx(CONSTANTS["containers"], abs=1e-3)
    assert [run["name"] for run in found.residuals["runs"]] == [run["name"] for run in RESIDUALS["runs"]]
    for column in ("row", "family_out"):
        pairs = zip(found.residuals["runs"], RESIDUALS["runs"], strict=True)
        assert np.abs([a[column] - b[column] for a, b in pairs]).max() < 2e-3

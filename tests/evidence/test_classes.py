"""The fit of classes of software and of chips beside the joint fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.evidence.classes import CHIPS, EFFECTS_FITTED, FURTHER, ClassRows, class_rows, effects_of
from meshwright.evidence.refit import FSDP_CSV, UNFITTED_CSV
from meshwright.evidence.runs import read_runs
from meshwright.predict.practice import EARLY, FSDP, TORCHTITAN, Effects, class_of, further_effects
from meshwright.predict.software import fitted_values

FOUND = {
    **{
        (name, key): getattr(effects, key)
        for name, effects in fitted_values().classes.items()
        for key in effects.__slots__
        if (name, key) in EFFECTS_FITTED
    },
    **{
        (name, key): getattr(effects, key)
        for name, effects in fitted_values().further.items()
        for key in effects.__slots__
        if (name, key) in EFFECTS_FITTED
    },
}


@pytest.fixture(scope="module")
def rows() -> ClassRows:
    torchtitan = [run for run in read_runs(UNFITTED_CSV).rows if class_of(run.release) == TORCHTITAN]
    return ClassRows(class_rows([*torchtitan, *read_runs(FSDP_CSV).rows[:20]]), fitted_values())


def test_rows_of_experts_and_of_the_joint_fit_stay_out() -> None:
    runs = read_runs(UNFITTED_CSV).rows
    own = class_rows(runs)
    assert own and not any(run.model.experts for run in own)
    hopper = next(run for run in own if run.cluster.accelerator.architecture == "hopper")
    assert class_rows([replace(hopper, release="v5.1")]) == []


def test_no_two_effects_of_a_group_touch_the_same_row(rows: ClassRows) -> None:
    assert sorted(one for group in rows.apart for one in group) == list(range(len(EFFECTS_FITTED)))
    for group in rows.apart:
        touched = np.sum([rows.touched[one] for one in group], axis=0)
        assert touched.max(initial=0) <= 1


def test_a_longer_time_of_all_compute_makes_every_step_of_its_class_longer(rows: ClassRows) -> None:
    slower = {**FOUND, (FSDP, "log_factor"): FOUND[FSDP, "log_factor"] + 0.1}
    moved = rows.log_errors(slower) - rows.log_errors(FOUND)
    own = np.array([kind == FSDP for kind in rows.kinds])
    assert (moved[own] > 0.02).all() and np.allclose(moved[~own], 0.0)


def test_a_fit_is_no_worse_than_where_it_starts_and_recovers_a_factor(rows: ClassRows) -> None:
    fitted = rows.fit()
    assert np.abs(rows.log_errors(fitted)).mean() <= np.abs(rows.log_errors(FOUND)).mean() + 0.02
    slow = ClassRows([replace(run, measured_s=run.measured_s * 1.2) for run in rows.runs], fitted_values())
    again = slow.fit()
    assert again[FSDP, "log_factor"] > fitted[FSDP, "log_factor"] + 0.05


def test_an_unknown_class_is_taken_as_the_others(rows: ClassRows) -> None:
    errors = rows.unknown(FOUND)
    assert len(errors) == len(rows.runs) and np.isfinite(errors).all()
    own = np.array([kind == FSDP for kind in rows.kinds])
    assert np.abs(errors[own]).mean() > np.abs(rows.log_errors(FOUND)[own]).mean()


def test_effects_are_kept_by_name() -> None:
    table = effects_of({(FSDP, "log_factor"): 0.2, ("ampere", "log_attention"): -0.1})
    assert table == {FSDP: Effects(log_factor=0.2), "ampere": Effects(log_attention=-0.1)}
    assert set(FURTHER) >= set(CHIPS) | {EARLY}


def test_only_an_early_megatron_has_attention_that_no_kernel_fuses() -> None:
    assert EARLY in further_effects("megatron-deepspeed-2023", "ampere", "bf16")
    assert EARLY not in further_effects("megatron-2025", "blackwell", "bf16")
    assert EARLY not in further_effects("fsdp-2023", "ampere", "bf16")

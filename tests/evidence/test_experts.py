"""Experts as a check: rows are asked with what their stack could do, and a gap is never negative."""

from dataclasses import fields

import pytest

from meshwright.evidence.accuracy import evidence
from meshwright.evidence.experts import LACKING, MEGATRON, _features, expert_choices
from meshwright.job import Job
from meshwright.plan.features import Features


@pytest.fixture(scope="module")
def runs():
    return [row.run for row in evidence().large()]


def test_no_degree_is_reported():
    numbers = ("max_tp", "max_pp", "max_vp", "max_micro_batch")
    assert all(getattr(MEGATRON, key) == 0 for key in (*numbers, "max_cp"))
    for lacking in LACKING.values():
        assert not lacking.keys() & set(numbers) and lacking.keys() <= {field.name for field in fields(Features)}
        assert lacking.get("max_cp", 1) == 1  # there, or not there


def test_a_row_is_asked_with_its_own_switches_and_its_rounds_features(runs):
    for run in runs:
        features = _features(run)
        assert (features.overlap_tp, features.cuda_graphs) == (run.layout.overlap_tp, run.layout.cuda_graphs)
        assert features.max_tp == run.cluster.tiers[0].num_accelerators
        assert features.low_weights == (run.round not in ("v3.0", "v3.1"))
        assert features.uneven_split == (features.max_cp == 0) == (run.round >= "v5.0")


def test_choices_are_legal_and_gaps_are_not_negative(runs):
    some = [next(run for run in runs if run.round == name) for name in ("v3.0", "v4.1", "v5.0", "v6.0")]
    for choice in expert_choices(some):
        run = choice.run
        Job(run.model, run.cluster, run.workload).check(choice.best)
        assert choice.gap_pct >= 0 and choice.unhidden_gap_pct >= 0 and choice.num_layouts > 0
        assert choice.best_s <= choice.chosen_s and choice.best_s <= choice.best_unhidden_s * (1 + 1e-9)
        if run.round < "v5.0":
            assert choice.best.cp == 1 and run.model.num_layers % (choice.best.pp * choice.best.vp) == 0


def test_the_record_row_is_within_five_percent(runs):
    (record,) = [run for run in runs if run.num_accelerators == 8192 and run.round == "v6.0"]
    (choice,) = expert_choices([record])
    assert choice.gap_pct <= 5
    assert (choice.best.tp, choice.best.cp, choice.best.pp, choice.best.dp) == (4, 2, 8, 128)

"""What a sweep says: a row for each size, doubts about small differences, and the sizes without a plan."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from meshwright.describe.load import load_workload
from meshwright.errors import FitError
from meshwright.job import Job
from meshwright.plan.noise import run_noise
from meshwright.plan.sizes import Ask
from meshwright.plan.sweep import Sweep, sweep
from meshwright.say.document import Lines
from meshwright.say.sweep import COLUMNS, sweep_document
from meshwright.say.vocabulary import problems
from meshwright.units import seconds

from .conftest import sentences, table


@cache
def found(mode: str = "strong") -> Sweep:
    workload = replace(load_workload("pretrain-1t"), seq_len=2048, global_batch=32)
    return sweep(Ask(job=Job("llama-3.2-1b", "dgx-h100-superpod", workload, gpus=32), keep=1), [8, 16], mode)


def test_a_row_for_each_size_with_its_interval_and_the_first_as_reference() -> None:
    document = sweep_document(found())
    assert document.title == "llama-3.2-1b on dgx-h100-superpod, pretrain-1t; strong scaling: the batch stays"
    first, second = (dict(zip(enumerate(COLUMNS), row, strict=True)) for row in table(document, document.title).rows)
    assert list(first.values())[:2] == ["8", "32"] and list(second.values())[:2] == ["16", "32"]
    one, two = found().points
    assert first[6, "80 % interval"] == "reference" and first[5, "efficiency>"] == "100.0 %"
    assert second[5, "efficiency>"] == f"{100 * two.efficiency:.1f} %"
    assert second[6, "80 % interval"] == f"{100 * two.efficiency_low:.0f} to {100 * two.efficiency_high:.0f} %"
    assert first[2, "step>"] == seconds(one.best.step_s) and first[8, "degrees"] == one.best.layout.degrees


def test_whole_layouts_can_be_copied_and_a_size_without_a_plan_says_why() -> None:
    misses = ((24, FitError("nothing fits", fix="take more")), (48, FitError("nothing fits")))
    document = sweep_document(replace(found(), misses=misses))
    (lines,) = (block for block in document.blocks if isinstance(block, Lines))
    assert any(str(found().points[0].best.layout) in line for line in lines.lines)
    assert sentences(document)[-2:] == ["24 accelerators: nothing fits (take more)", "48 accelerators: nothing fits"]
    assert document.to_json()["misses"][0] == {"num_accelerators": 24, "why": "nothing fits", "fix": "take more"}


def test_the_batch_grows_with_the_machine_in_weak_scaling() -> None:
    document = sweep_document(found("weak"))
    assert [row[1] for row in table(document, document.title).rows] == ["32", "64"]
    assert document.title.endswith("weak scaling: the batch grows with the machine")


def test_values_have_a_point_for_each_size_and_the_spread_between_runs() -> None:
    values = sweep_document(found()).to_json()
    assert problems(values) == [] and values["run_to_run"] == run_noise()
    assert [point["num_accelerators"] for point in values["points"]] == [8, 16]
    assert [point["efficiency"] for point in values["points"]] == [point.efficiency for point in found().points]
    assert values["sentences"] == list(found().sentences)


def test_a_job_without_a_price_has_an_unknown_cost() -> None:
    point = found().points[0]
    unpriced = replace(point, best=replace(point.best, outcome=replace(point.best.outcome, offer=None)))
    document = sweep_document(replace(found(), points=(unpriced,)))
    assert table(document, document.title).rows[0][7] == "unknown"

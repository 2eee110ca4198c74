"""Intervals: quantiles of what was got wrong on comparable runs, wider and lopsided where those were."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from meshwright.describe.load import accelerator, load_cluster, load_model, load_workload
from meshwright.describe.workload import Adapters
from meshwright.job import Job
from meshwright.predict.software import fitted_values, software
from meshwright.predict.uncertainty import (
    FEWEST,
    UNKNOWN_GROWTH,
    Interval,
    bounds,
    growth,
    interval,
    kind_of,
    residuals,
    unknown_bounds,
    unknown_groups,
)

MODEL = load_model("llama-3.1-405b")
CLUSTER = load_cluster("azure-gb200-128")
WORKLOAD = load_workload("mlperf-llama31-405b")
FABRIC = replace(CLUSTER.tiers[-1], num_accelerators=32768, num_installed=40000)
FOUR_TIMES = replace(CLUSTER, tiers=(*CLUSTER.tiers[:-1], FABRIC))


UNNAMED = fitted_values().unknown_software("sparrow-2")  # as a table of it would name it


def entry(row: float, family_out: float = 0.2, **changes: Any) -> dict[str, Any]:
    return {
        "family": ["gb200", "nvfp4", "v6.0"],
        "architecture": "blackwell",
        "kind": "large",
        "num_accelerators": 8192,
        "fabric_bytes_per_s": 100e9,
        "num_parameters": 405e9,
        "row": row,
        "family_out": family_out,
        "fitted": True,
    } | changes


def table(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"runs": list(entries)}


def asked(release: str = "v6.0", runs: dict[str, Any] | None = None, **changes: Any) -> Interval:
    nouns = {"model": MODEL, "cluster": CLUSTER, "workload": WORKLOAD} | changes
    return interval(Job(nouns["model"], nouns["cluster"], nouns["workload"], fitted_values().software(release)), runs)


def test_bounds_match_a_hand_worked_case() -> None:
    # nine errors: the eighth in order of size stands for eight of ten
    errors = [-0.05, -0.04, 0.01, -0.01, 0.0, 0.01, 0.02, 0.03, 0.08]
    assert bounds(errors) == pytest.approx((math.exp(-0.05), math.exp(0.05)))


def test_bounds_hold_eighty_of_a_hundred_whatever_the_number() -> None:
    errors = [i / 1000 for i in range(-49, 50)]  # 99 errors, as many on either side
    low, high = bounds(errors)
    assert sum(low <= math.exp(-error) <= high for error in errors) == pytest.approx(0.8 * 100, abs=1)


def test_a_prediction_is_the_middle_of_its_interval_even_where_past_ones_were_all_too_low() -> None:
    low, high = bounds([-0.5, -0.4, -0.3] * 4)
    assert low * high == pytest.approx(1.0) and high == pytest.approx(math.exp(0.5))


def test_a_family_with_enough_runs_speaks_for_itself() -> None:
    own = [entry(0.01)] * FEWEST
    others = [entry(0.5, family=["h100", "fp8", "v5.0"])] * 20
    found = asked(runs=table(*own, *others))
    assert found.distance == "measured" and found.num_runs == FEWEST
    assert (found.low, found.high) == pytest.approx((math.exp(-0.01), math.exp(0.01)))


def test_a_small_family_is_judged_with_its_like_and_never_with_other_software() -> None:
    like = [entry(0.05, family=["h100", "fp8", "v5.0"])] * FEWEST
    tables = [entry(0.9, family=["gb200", "nvfp4", "nemo-26.04"])] * 20
    found = asked(runs=table(entry(0.05), *like, *tables))
    assert found.distance == "measured" and found.num_runs == FEWEST + 1
    assert found.low == pytest.approx(math.exp(-0.05))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"model": load_model("llama-3.1-70b")}, "70.6 B parameters"),
        ({"cluster": FOUR_TIMES}, "32,768"),
        ({"workload": replace(WORKLOAD, precision="bf16")}, "gb200 bf16 v6.0"),
        ({"release": "v6.1"}, "nothing was measured with v6.1"),
    ],
)
def test_beyond_what_was_run_whole_families_left_out_decide_and_a_note_says_why(changes: dict[str, Any], word: str) -> None:
    elsewhere = entry(
        0.01, family=["h100", "fp8", "v5.0"], num_parameters=70e9, num_accelerators=16384
    )  # neither is beyond all that was run
    found = asked(runs=table(*[entry(0.01)] * 12, elsewhere), **changes)
    assert found.distance == "near" and word in found.note and "further at either end" not in found.note
    assert found.low == pytest.approx(math.exp(-0.2))


def test_beyond_all_that_was_run_with_anything_an_interval_is_wider_with_each_doubling() -> None:
    runs = table(*[entry(0.01)] * 12)
    usual = asked(runs=runs, workload=replace(WORKLOAD, precision="bf16"))
    twice = asked(runs=runs, cluster=FOUR_TIMES)  # of 8,192: one doubling beyond the factor of two
    more = math.exp(UNKNOWN_GROWTH)
    assert twice.distance == "far" and (twice.low, twice.high) == pytest.approx((usual.low / more, usual.high * more))
    assert twice.note.endswith("predictions rest on at most 8,192 accelerators, so the interval reaches 11 % further at either end")
    both = asked(runs=runs, cluster=FOUR_TIMES, model=load_model("llama-3.1-8b"))
    smaller = math.log2(405e9 / load_model("llama-3.1-8b").num_parameters / 2)
    assert both.high == pytest.approx(usual.high * math.exp(UNKNOWN_GROWTH * (1 + smaller)))
    assert "models of 405 B parameters and at most 8,192 accelerators" in both.note
    few = replace(CLUSTER, tiers=tuple(replace(tier, num_accelerators=1, num_installed=1) for tier in CLUSTER.tiers))
    assert "further at either end" not in asked(runs=runs, cluster=few).note  # fewer accelerators are no harder


def test_how_fast_errors_grow_is_read_off_models_smaller_than_all_that_were_fitted() -> None:
    fitted = entry(0.01)
    inside = [entry(sign * 0.2, fitted=False) for sign in (1, -1)] * FEWEST
    beyond = [entry(-0.2 - 0.1 * doublings, fitted=False, num_parameters=405e9 / 2 / 2**doublings) for doublings in (1, 2, 3)] * FEWEST
    assert growth([fitted, *inside, *beyond]) == pytest.approx(0.1)
    assert growth([fitted, *inside]) == growth([fitted, *beyond]) == UNKNOWN_GROWTH
    assert growth([fitted, *inside, *(entry(0.2, fitted=False, num_parameters=1e9) for _ in range(FEWEST))]) == pytest.approx(
        0.0, abs=1e-12
    )
    assert 0.05 < growth(residuals()["runs"]) < 0.2


def test_the_carried_runs_call_a_million_accelerators_and_a_toy_far() -> None:
    million = replace(CLUSTER, tiers=(*CLUSTER.tiers[:-1], replace(FABRIC, num_accelerators=2**20, num_installed=2**20)))
    huge, usual = asked(cluster=million), asked(cluster=FOUR_TIMES)
    assert huge.distance == "far" and huge.low < 0.9 * usual.low and huge.high > 1.1 * usual.high
    toy = asked(model=load_model("llama-2m"), cluster=load_cluster("hgx-b200-ndr"), workload=replace(WORKLOAD, precision="bf16"))
    like = asked(model=load_model("llama-3.1-8b"), cluster=load_cluster("hgx-b200-ndr"), workload=replace(WORKLOAD, precision="bf16"))
    assert toy.distance == "far" and like.distance != "far"
    assert toy.high / toy.low > 2 * like.high / like.low - 1


def test_a_release_nobody_measured_does_not_hide_what_else_is_missing() -> None:
    stack = fitted_values().software("v9.9")
    note = asked("v9.9", workload=replace(WORKLOAD, precision="bf16")).note
    assert note == "large dense models in MLPerf rounds were measured, but not with gb200 bf16 v6.0"
    assert stack.note not in note and stack.note != asked("v9.9").note


@pytest.mark.parametrize("release", ["v6.0", "v9.9", "nemo-26.04", "megatron", "torchtitan", "fsdp", "meshwright"])
def test_every_printed_figure_is_the_middle_of_its_interval(release: str) -> None:
    for workload in (WORKLOAD, replace(WORKLOAD, precision="bf16")):
        found = asked(release, workload=workload)
        assert found.low * found.high == pytest.approx(1.0) and found.low < 1 < found.high


def test_asking_for_unknown_software_gives_the_interval_that_a_table_of_such_software_gets() -> None:
    asked, row = (interval(Job("llama-3.1-70b", "dgx-h100-superpod", "pretrain-1t", one)) for one in (software("unknown"), UNNAMED))
    assert (asked.low, asked.high, asked.num_runs, asked.distance) == (row.low, row.high, row.num_runs, "far")
    wide = "the interval is as wide as that of fsdp, which this software may be"
    assert asked.note == wide and row.note == f"no factor was fitted for sparrow-2 or software of its kind; {wide}"


def test_unknown_software_is_as_far_off_as_known_ones_were_when_unknown_each_counted_once() -> None:
    groups = {"many": [0.01] * 96, "few": [-0.5], "others": [0.02, -0.3]}
    low, high = unknown_bounds(groups)  # of three groups the middle third of what they hold reaches to 0.02, four fifths to 0.3
    assert (low, high) == pytest.approx((math.exp(-0.5), math.exp(0.5)))
    runs = [{"family": ["h100", "bf16", "fsdp-x"], "architecture": "hopper", "unknown": 0.1}]
    runs += [{"family": ["mi300x", "fp8", "v5.0"], "architecture": "cdna3", "unknown": -0.2}, {"family": ["h100", "fp8", "v5.0"]}]
    assert unknown_groups(runs) == {"fsdp": [0.1], "cdna3": [-0.2]}


def test_chips_of_other_generations_are_far() -> None:
    other = replace(CLUSTER, accelerator=replace(accelerator("mi300x"), name="mi999", architecture="cdna9"))
    found = asked(cluster=other, workload=replace(WORKLOAD, precision="bf16"))
    assert found.distance == "far" and "mi999" in found.note
    assert found.low < 0.8 and found.high > 1.2  # as wide as software or chips that nothing was known of


def test_chips_with_a_factor_of_their_own_are_not_far() -> None:
    other = replace(CLUSTER, accelerator=accelerator("mi300x"))
    found = asked(cluster=other, workload=replace(WORKLOAD, precision="bf16"))
    assert found.distance == "near" and found.low < 1.0 < found.high


def test_ordinary_software_is_compared_with_its_own_class() -> None:
    cluster, model = load_cluster("dgx-h100-superpod").resized(8), load_model("mpt-7b")
    found = asked("fsdp", model=model, cluster=cluster, workload=replace(WORKLOAD, precision="bf16", seq_len=2048, global_batch=64))
    assert found.distance == "measured" and "fsdp" in found.kin and 0.8 < found.low < 1.0 < found.high < 1.4
    ours = asked("meshwright", model=model, cluster=cluster, workload=replace(WORKLOAD, precision="bf16", seq_len=2048, global_batch=64))
    assert ours.distance == "near" and ours.high / ours.low > 1.5 * found.high / found.low  # runs of one GPU alone say little about eight


CLASSES = ("megatron", "torchtitan", "fsdp")


@pytest.mark.parametrize(
    ("model", "cluster", "size"),
    [("llama-3.1-8b", "dgx-h100-superpod", 64), ("llama-3.1-405b", "gb200-nvl72-ndr", 65536), ("deepseek-v3", "gb300-nvl72-xdr", 256)],
)
def test_no_class_has_a_wider_interval_than_unknown_software(model: str, cluster: str, size: int) -> None:
    job = Job(load_model(model), load_cluster(cluster).resized(size), load_workload("pretrain-1t"))
    unknown = interval(replace(job, software=software("unknown")))
    for name in CLASSES:
        known = interval(replace(job, software=software(name)))
        assert known.low >= unknown.low - 1e-12 and known.high <= unknown.high + 1e-12


def test_experts_in_software_that_ran_none_are_far() -> None:
    job = Job(load_model("deepseek-v3"), load_cluster("gb300-nvl72-xdr").resized(256), load_workload("pretrain-1t"))
    found = {name: interval(replace(job, software=software(name))) for name in ("v5.1", "v6.0", "torchtitan")}
    assert (found["v5.1"].distance, found["torchtitan"].distance, found["v6.0"].distance) == ("far", "far", "near")
    assert "no mixture of experts was measured with v5.1" in found["v5.1"].note
    assert "were measured, but not with gb300 bf16 v6.0" in found["v6.0"].note


def test_kinds() -> None:
    assert kind_of(MODEL, WORKLOAD) == "large"
    assert kind_of(load_model("llama-3.1-8b"), WORKLOAD) == "small"
    assert kind_of(load_model("deepseek-v3"), WORKLOAD) == "experts"
    assert kind_of(MODEL, replace(WORKLOAD, adapters=Adapters(rank=16, targets=("qkv",)))) == "adapters"


def test_the_record_machine_is_measured_and_its_interval_is_a_few_per_cent() -> None:
    found = asked()
    assert found.distance == "measured" and not found.note
    assert 0.93 < found.low < 0.99 and 1.01 < found.high < 1.07


def test_carried_residuals_are_whole() -> None:
    runs = residuals()["runs"]
    assert {run["kind"] for run in runs} == {"large", "small", "experts", "adapters"}
    assert all(math.isfinite(run["row"]) and math.isfinite(run["family_out"]) for run in runs)

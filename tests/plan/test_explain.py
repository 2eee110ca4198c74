"""What an explanation says of traffic is what the trainer sends, and what it does not run is counted from the predictor's parameters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.job import Job
from meshwright.layout import Layout, parse_layout
from meshwright.plan.explain import AxisTraffic, explain
from meshwright.predict.traffic import Step, flows, sent_on
from meshwright.record.entries import PART_NAMES

RECORD = Job("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b")


def axes_of(job: Job, layout: Layout) -> dict[str, AxisTraffic]:
    return {axis.axis: axis for axis in explain(job.forecast(layout, ignore_memory=True)).axes}


def test_bytes_and_messages_are_the_trainers_on_the_stage_that_sends_most() -> None:
    layout = parse_layout("tp=4,cp=2,pp=8,vp=8,dp=128,mbs=1")
    axes = axes_of(RECORD, layout)
    for axis in ("tp", "cp", "pp", "dp"):
        of_stages = [sent_on(axis, flows(Step(RECORD.model, RECORD.workload, layout, stage))) for stage in range(layout.pp)]
        assert (axes[axis].num_bytes, axes[axis].num_messages) == max(of_stages)


def test_zero_3_gathers_weights_for_the_forward_and_for_the_backward() -> None:
    model, cluster = load_model("llama-3.1-8b"), load_cluster("azure-gb200-128").resized(64)
    workload = replace(load_workload("mlperf-llama31-8b"), global_batch=64, precision="bf16")  # one micro-batch each
    once, twice = (axes_of(Job(model, cluster, workload), Layout(dp=64, zero_stage=zero))["dp"].num_bytes for zero in (1, 3))
    weights = sum(flow.sent_bytes for flow in flows(Step(model, workload, Layout(dp=64))) if flow.what == "weights")
    assert twice == pytest.approx(once + weights, rel=1e-3)


def test_a_model_that_the_trainer_does_not_run_is_counted_by_its_parameters() -> None:
    model, cluster = load_model("deepseek-v3"), load_cluster("azure-gb200-128").resized(64)
    workload = replace(load_workload("mlperf-llama31-8b"), global_batch=64, precision="bf16")
    job = Job(model, cluster, workload)
    sent = [axes_of(job, parse_layout(f"dp=64,ep=8,zero={zero}"))["dp"].num_bytes for zero in range(4)]
    # Bytes a parameter: 2 x 4, 4 + 2, 4 + 2, 4 + 2 x 2.
    assert sent == pytest.approx([sent[1] / 6 * times for times in (8, 6, 6, 8)])


def test_gradients_of_one_replica_are_shown_as_what_they_are_where_context_ranks_share_them() -> None:
    model, cluster = load_model("llama-3.1-8b"), load_cluster("dgx-h100-superpod").resized(32)
    workload = replace(load_workload("mlperf-llama31-8b"), global_batch=8, precision="bf16")
    explained = explain(Job(model, cluster, workload).forecast(parse_layout("tp=8,cp=4,dp=1")))
    gradients = next(axis for axis in explained.axes if axis.axis == "dp")
    assert (gradients.name, gradients.ranks, gradients.label) == ("dp x cp", "1 x 4", "dp 1 x cp 4")
    assert gradients.tiers == ("fabric",) and gradients.num_bytes > 0 and gradients.traffic_s > 0
    assert any(reason.startswith("dp x cp moves") and "over fabric" in reason for reason in explained.reasons)


def test_what_limits_a_step_is_named_as_its_part() -> None:
    limit = explain(RECORD.forecast(parse_layout("tp=4,cp=2,pp=8,vp=8,dp=128,mbs=1"))).limit
    first, second = limit.split("; next is ")
    assert first.startswith("compute takes ") and second.split(" with ")[0] in PART_NAMES.values()


UNEVEN = "tp=4,cp=2,pp=8,vp=8,schedule=zero-bubble"  # its exact schedule takes 0.8 % longer than the closed form
CHANGED = {
    "twice the micro-batch size": lambda layout: replace(layout, micro_batch=2 * layout.micro_batch),
    "tensor traffic overlapped with products": lambda layout: replace(layout, overlap_tp=True),
    "pipeline stages outermost": lambda layout: replace(layout, order=("tp", "cp", "dp", "pp")),
    "replicas outermost": lambda layout: replace(layout, order=("tp", "cp", "pp", "dp")),
    "zero-bubble schedule": lambda layout: replace(layout, schedule="zero-bubble"),
    "context parallelism as ring": lambda layout: replace(layout, cp_kind="ring"),
    "context parallelism as all-gather": lambda layout: replace(layout, cp_kind="all-gather"),
    "context parallelism as all-to-all": lambda layout: replace(layout, cp_kind="all-to-all"),
}


@pytest.mark.parametrize(
    ("names", "gpus", "text"),
    [
        (("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b"), None, "tp=4,cp=2,pp=8,vp=8,mbs=1"),
        (("gpt-3-175b", "dgx-h100-superpod", "mlperf-gpt3"), 512, "tp=4,pp=8,vp=2,mbs=1"),
        (("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b"), None, UNEVEN),
    ],
)
def test_every_change_counts_from_the_step_of_the_forecast(names: tuple[str, str, str], gpus: int | None, text: str) -> None:
    forecast = Job(*names, gpus=gpus).forecast(text)
    changes = explain(forecast).changes
    assert changes
    for change in changes:
        batches = 2 if change.what.startswith("twice the micro-batches") else 1
        assert change.gain_pct == pytest.approx(100 * (1 - change.step_s / (batches * forecast.step_s)), rel=1e-9)
        if change.what in CHANGED:
            layout = CHANGED[change.what](forecast.layout)
            assert change.step_s == forecast.job.forecast(layout, ignore_memory=True).step_s
    assert {change.what for change in changes} & set(CHANGED)
    assert [change.gain_pct for change in changes] == sorted((change.gain_pct for change in changes), reverse=True)


def test_twice_the_batch_is_judged_by_the_time_of_a_token() -> None:
    forecast = RECORD.forecast(UNEVEN)
    twice = RECORD.changed(f"workload.global_batch={2 * RECORD.workload.global_batch}").forecast(forecast.layout)
    (change,) = [change for change in explain(forecast).changes if change.what.startswith("twice the micro-batches")]
    assert change.step_s == twice.step_s
    assert change.gain_pct == pytest.approx(100 * (1 - forecast.tokens_per_s / twice.tokens_per_s))

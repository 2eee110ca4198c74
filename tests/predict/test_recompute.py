"""The least recomputing with which a layout fits."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.layout import OPS, RECOMPUTE, RECOMPUTE_PARTS, USUAL_RECOMPUTE, Layout, Layouts
from meshwright.predict.footprint import footprint, recipe_for
from meshwright.predict.inputs import inputs_of
from meshwright.predict.prediction import predict
from meshwright.predict.recompute import choices, fits, least_recompute
from meshwright.predict.step import price

LORA = load_workload("mlperf-llama2-70b-lora")
LLAMA2, DEEPSEEK = load_model("llama-2-70b"), load_model("deepseek-v3")
B200 = load_cluster("hgx-b200-ndr").resized(8)
RACKS = load_cluster("gb200-nvl72-ndr").resized(256)
PRETRAIN = replace(load_workload("pretrain-1t"), precision="fp8", seq_len=4096, global_batch=2048)


def test_choices_begin_with_nothing_and_end_with_everything_and_only_grow() -> None:
    found = choices(DEEPSEEK, RACKS, PRETRAIN, Layout(pp=4, vp=4, dp=64, ep=64))
    assert (found[0], found[-1]) == ("none", "full")
    parts = [set(kind.split("+")) for kind in found[1:-1]]
    assert all(less < more for less, more in pairwise(parts))
    assert {"act_fp8", "mla_up_proj", "moe_act"} <= parts[-1] and "offload" not in parts[-1]  # there is a pipeline
    assert choices(DEEPSEEK, RACKS, PRETRAIN, Layout(dp=256), parts=False) == USUAL_RECOMPUTE
    bf16 = choices(load_model("llama-3.1-8b"), RACKS, replace(PRETRAIN, precision="bf16"), Layout(dp=256))
    assert bf16 == ("none", "offload", "offload+mlp", "full")


def test_a_layout_that_fits_is_left_alone_and_one_that_cannot_fit_too() -> None:
    easy, hopeless = Layout(tp=8), Layout(dp=8, micro_batch=1, zero_stage=0)
    assert least_recompute(LLAMA2, B200, LORA, easy) == easy
    huge = load_model("llama-3.1-405b")
    assert least_recompute(huge, B200, replace(PRETRAIN, global_batch=8), hopeless) == hopeless


def test_what_many_ran_on_b200_fits_with_activations_in_fp8() -> None:
    layout = Layout(dp=8)
    assert not fits(LLAMA2, B200, LORA, layout)
    assert least_recompute(LLAMA2, B200, LORA, layout).recompute == "act_fp8"
    assert Job("llama-2-70b", B200, LORA).layout("dp=8").recompute == "act_fp8"
    assert Job("llama-2-70b", B200, LORA).layout("dp=8,recompute=none").recompute == "none"  # stated, and refused later


def test_parts_may_be_named_in_any_order_and_others_not_at_all() -> None:
    assert Layout(recompute="mlp+selective") == Layout(recompute="selective+mlp")
    with pytest.raises(InputError, match="no recompute named 'mlp\\+none'") as error:
        Layout(recompute="mlp+none")
    assert "mla_up_proj" in str(error.value)


@pytest.mark.parametrize("kind", [kind for kind in RECOMPUTE if kind.count("+") < 2 and "offload" not in kind])
def test_what_is_dropped_never_takes_memory_and_never_saves_time(kind: str) -> None:
    model = DEEPSEEK
    job = Job(model, RACKS, PRETRAIN)
    rows = Layouts.of(
        [Layout(pp=4, vp=4, dp=64, ep=64, first_stage_layers=16, last_stage_layers=13, recompute=one) for one in ("none", kind)]
    )
    saved = footprint(model, PRETRAIN, rows).activations.max(axis=0)
    assert saved[1] <= saved[0] * (1 + 1e-12)
    step_s = price(inputs_of(job), rows, job.software.constants).step_s
    assert step_s[1] >= step_s[0] * (1 - 1e-12)


def test_every_part_is_known_by_its_name() -> None:
    rows = Layouts.of([Layout(recompute=kind) for kind in (*RECOMPUTE_PARTS, OPS, "none", "full")])
    for i, part in enumerate((*RECOMPUTE_PARTS, OPS)):
        assert rows.recomputes(part).nonzero()[0].tolist() == [i]
    assert rows.recomputes_all.nonzero()[0].tolist() == [len(rows) - 1]


def test_offloading_needs_a_processor_on_the_module_and_no_pipeline() -> None:
    with pytest.raises(InputError, match="cannot be moved to the host with pp=1 on b200"):
        Job("llama-2-70b", B200, LORA).check(Layout(dp=8, recompute="offload"))
    racks = Job("llama-3.1-70b", RACKS, PRETRAIN)
    racks.check(Layout(dp=256, zero_stage=3, recompute="offload"))
    with pytest.raises(InputError, match="with pp=2 on gb200"):
        racks.check(Layout(pp=2, dp=128, recompute="offload"))


def offloaded_job() -> tuple[Job, Layout]:
    return Job("llama-3.1-70b", RACKS, PRETRAIN), Layout(dp=256, zero_stage=3, recompute="offload")


def on_host_link(job: Job, bytes_per_s: float) -> Job:
    return job.on(replace(job.cluster, accelerator=replace(job.cluster.accelerator, host_bytes_per_s=bytes_per_s)))


def test_offload_moves_half_of_what_the_layers_keep_each_way() -> None:
    job, layout = offloaded_job()
    detail = predict(job, Layouts.of([layout])).detail
    kept = footprint(job.model, job.workload, Layouts.of([replace(layout, recompute="none")]), recipe_for("fp8", job.cluster.accelerator))
    moved_s = 2 * 0.5 * float(kept.activations[0, 0]) / job.cluster.accelerator.host_bytes_per_s  # one micro-batch is in flight
    assert float(detail.offload_s[0][0]) == pytest.approx(moved_s * float(detail.num_micro_batches[0]), rel=1e-9)


def test_offload_is_free_until_it_outlasts_the_compute() -> None:
    job, layout = offloaded_job()
    free = predict(on_host_link(job, 1e15), Layouts.of([layout]))
    stated = predict(job, Layouts.of([layout]))
    assert float(stated.step_s[0]) == pytest.approx(float(free.step_s[0]))  # 225 GB/s suffice here
    slow = predict(on_host_link(job, 1e9), Layouts.of([layout]))
    moved_s, waited_s = (float(each[0]) for each in slow.detail.offload_s)
    assert waited_s > 0 and float(slow.parts["compute"][0]) == pytest.approx(float(free.parts["compute"][0]) + waited_s)
    # All the copies, less the layers beside them: forward and backward of all micro-batches.
    layers_s = float(slow.detail.num_micro_batches[0]) * job.model.num_layers
    layers_s *= sum(float(free.detail.layer.total_s(way)[0]) for way in (0, 1))
    assert waited_s == pytest.approx((moved_s - layers_s) * float(slow.detail.stretch[0]))


def test_offload_gets_dearer_as_its_link_gets_slower() -> None:
    job, layout = offloaded_job()
    steps_s = [float(predict(on_host_link(job, rate), Layouts.of([layout])).step_s[0]) for rate in (1e12, 1e11, 1e10, 1e9)]
    assert steps_s == sorted(steps_s) and steps_s[-1] > steps_s[0]


def test_a_forecast_says_what_offload_moves() -> None:
    job, layout = offloaded_job()
    note = next(note for note in job.forecast(layout).notes if note.startswith("offload: "))
    assert "assumed to run beside the compute" in note and "in the compute part" in note
    assert not any(note.startswith("offload: ") for note in job.forecast(replace(layout, recompute="none", tp=1)).notes)

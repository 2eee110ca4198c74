"""Predictions: the closed form against the schedule timed operation by operation, what is refused, and what follows from a step."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from meshwright.describe.cluster import Cluster
from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.describe.model import Model
from meshwright.describe.workload import Evaluation, Workload
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.layout import Layout, Layouts, parse_layout
from meshwright.predict.exact import exact_prediction, timeline
from meshwright.predict.prediction import num_evaluations_of, predict, training_flops_per_token
from meshwright.predict.software import software
from meshwright.predict.stages import stage_layers

RECORD = parse_layout("tp=4,cp=2,pp=8,vp=8,dp=128,mbs=1,cuda_graphs=yes")
GB200 = load_cluster("azure-gb200-128")
LLAMA_405B, MLPERF_405B = load_model("llama-3.1-405b"), load_workload("mlperf-llama31-405b")


MACHINES = {"dgx-h100-superpod": "fp8", "azure-gb200-128": "nvfp4", "a100-200g": "bf16"}
CASES = [("llama-3.1-405b", 4), ("llama-3.1-405b", 8), ("llama-3.1-70b", 4), ("llama-3.1-8b", 1), ("gpt-3-175b", 8)]
ORDERS = (("tp", "cp", "pp", "dp"), ("tp", "cp", "dp", "pp"))


def grid(schedules: tuple[str, ...]) -> list[tuple[Model, Cluster, Workload, Layout]]:
    """Legal layouts: 1 to 16 stages of 1 to 8 chunks, from as many micro-batches as stages to 288."""
    cases = []
    for (name, tp), machine, pp, vp, schedule in product(CASES, MACHINES, (1, 2, 4, 8, 16), (1, 2, 4, 8), schedules):
        model = load_model(name)
        fits = schedule == "zero-bubble" or (vp > 1) == (schedule == "interleaved")
        if not fits or (pp == 1 and (vp > 1 or schedule != "1f1b")) or not stage_layers(model.num_layers, pp, vp).legal:
            continue
        for i, m in enumerate(sorted({pp, pp + pp // 2, 2 * pp + 1, 288})):
            layout = Layout(tp=tp, pp=pp, vp=vp, dp=4, schedule=schedule, order=ORDERS[i % 2], overlap_pp=i % 3 > 0)
            workload = Workload(name="w", model="", seq_len=8192, global_batch=4 * m, precision=MACHINES[machine])
            cases.append((model, load_cluster(machine).resized(layout.num_ranks), workload, layout))
    return cases


def difference_pct(case: tuple[Model, Cluster, Workload, Layout]) -> float:
    """How much shorter (negative) or longer the closed form is than the schedule timed operation by operation."""
    *job, layout = case
    prediction = predict(Job(*job), Layouts.of([layout]))
    return 100 * (float(prediction.step_s[0]) / float(exact_prediction(prediction).step_s[0]) - 1)


def test_the_closed_form_is_within_half_a_per_cent_of_the_1f1b_and_interleaved_schedules():
    cases = grid(("1f1b", "interleaved"))[::3]  # a stride that divides no side of the grid
    assert len(cases) > 150
    assert max(abs(difference_pct(case)) for case in cases) < 0.5


def test_the_closed_form_of_zero_bubble_is_within_half_a_per_cent_mostly_and_three_at_worst():
    """Where the first stage is lighter than the others, or the last chunk a stage or more: too short by up to 3 %."""
    differences = np.array([difference_pct(case) for case in grid(("zero-bubble",))[::7]])
    assert len(differences) > 80
    assert np.quantile(np.abs(differences), 0.9) < 0.5
    assert np.abs(differences).max() < 3.0


@pytest.mark.long
def test_the_same_over_the_whole_grid():
    assert max(abs(difference_pct(case)) for case in grid(("1f1b", "interleaved"))) < 0.5
    differences = np.abs([difference_pct(case) for case in grid(("zero-bubble",))])
    assert np.quantile(differences, 0.95) < 0.5 and differences.max() < 3.0


def test_without_a_pipeline_the_two_are_equal():
    case = (load_model("llama-3.1-8b"), load_cluster("dgx-h100-superpod").resized(8), load_workload("mlperf-llama31-8b"), Layout(dp=8))
    assert difference_pct((*case[:2], replace(case[2], precision="fp8"), case[3])) == pytest.approx(0.0, abs=1e-9)


def test_the_timeline_holds_every_operation_once():
    workload = replace(MLPERF_405B, global_batch=1024)
    detail = predict(Job(LLAMA_405B, GB200, workload), Layouts.of([RECORD])).detail
    drawn = timeline(detail, RECORD)
    assert len(drawn.start_s) == 8 * 8 * 8 * 2  # stages x chunks x micro-batches x forward and backward
    assert (drawn.end_s >= drawn.start_s).all() and drawn.makespan_s == drawn.end_s.max()


def test_the_step_of_the_record_machine():
    prediction = predict(Job(LLAMA_405B, GB200, replace(MLPERF_405B, global_batch=1024), software("v6.0")), Layouts.of([RECORD]))
    assert float(prediction.step_s[0]) == pytest.approx(1.2704, rel=0.02)
    assert prediction.low_s[0] < prediction.step_s[0] < prediction.high_s[0]


def a_prediction(text: str = "tp=8,pp=4,dp=2", **changes: object):
    workload = replace(load_workload("mlperf-gpt3"), precision="fp8", **changes)
    layout = parse_layout(text)
    cluster = load_cluster("dgx-h100-superpod").resized(layout.num_ranks)
    return workload, predict(Job(load_model("gpt-3-175b"), cluster, workload), Layouts.of([layout]))


def test_throughput_and_utilisation_follow_from_the_step():
    workload, prediction = a_prediction(global_batch=256)
    step_s = float(prediction.step_s[0])
    tokens_per_s = 256 * 2048 / step_s
    peak = 64 * 1979e12
    assert float(prediction.tokens_per_s[0]) == pytest.approx(tokens_per_s)
    assert float(prediction.mfu[0]) == pytest.approx(tokens_per_s * load_model("gpt-3-175b").flops_per_token(2048) / peak)
    assert 0.1 < prediction.mfu[0] < 0.6
    assert prediction.hfu[0] == prediction.mfu[0]  # nothing is recomputed
    assert workload.tokens_per_step == 256 * 2048


def test_recomputed_flops_count_in_hfu_alone():
    _, plain = a_prediction(global_batch=256)
    _, full = a_prediction("tp=8,pp=4,dp=2,recompute=full", global_batch=256)
    assert full.mfu[0] < plain.mfu[0]
    assert full.hfu[0] / full.mfu[0] == pytest.approx(4 / 3, rel=0.02)  # the layers' forward again; the head's is not


def test_time_to_train_is_steps_and_evaluations():
    workload, prediction = a_prediction()
    whole_s = prediction.num_steps * prediction.step_s + prediction.num_evaluations * prediction.evaluation_s
    assert prediction.num_steps == workload.num_steps() > 0 and prediction.num_evaluations > 0
    np.testing.assert_allclose(prediction.time_to_train_s, whole_s)


def test_an_evaluation_is_forward_passes_only():
    workload, prediction = a_prediction(global_batch=256)
    passes_s = float(prediction.evaluation_s[0]) - prediction.job.software.evaluation_s
    training_s = float(prediction.step_s[0]) * workload.evaluation.num_samples / 256  # of as many samples
    assert 0.2 * training_s < passes_s < 0.5 * training_s


def test_a_workload_without_evaluation_has_none():
    workload, prediction = a_prediction(evaluation=None)
    assert (prediction.num_evaluations, float(prediction.evaluation_s[0])) == (0, 0.0)
    assert num_evaluations_of(replace(workload, evaluation=Evaluation(num_samples=1, every_samples=1.0)), 0) == 0


def test_flops_of_a_frozen_base():
    model = load_model("llama-2-70b")
    trained = training_flops_per_token(model, load_workload("pretrain-1t"))
    frozen = training_flops_per_token(model, replace(load_workload("mlperf-llama2-70b-lora"), seq_len=load_workload("pretrain-1t").seq_len))
    assert trained == model.flops_per_token(load_workload("pretrain-1t").seq_len)
    assert 2 / 3 < frozen / trained < 0.8


def test_many_layouts_are_predicted_as_one_by_one():
    rows = [parse_layout(text) for text in ("tp=8,dp=8", "tp=4,pp=2,dp=8", "tp=8,pp=8,vp=2,dp=1,recompute=full")]
    workload = replace(load_workload("mlperf-gpt3"), precision="fp8", global_batch=256)
    cluster, model = load_cluster("dgx-h100-superpod").resized(64), load_model("gpt-3-175b")
    together = predict(Job(model, cluster, workload), Layouts.of(rows))
    for i, row in enumerate(rows):
        alone = predict(Job(model, cluster, workload), Layouts.of([row]))
        for key in ("step_s", "low_s", "high_s", "tokens_per_s", "mfu", "hfu", "time_to_train_s", "evaluation_s"):
            assert getattr(together, key)[i] == pytest.approx(getattr(alone, key)[0], rel=1e-12)


@pytest.mark.parametrize(
    "model, layout, what, where, fix",
    [
        (
            "llama-3.1-8b",
            "tp=8,dp=4",
            "tp=8 x cp=1 x pp=1 x dp=4 = 32 accelerators, but dgx-h100-superpod has 64 in use",
            "layout",
            "use dp=8, or gpus=32",
        ),
        (
            "llama-3.1-8b",
            "tp=3,dp=4",
            "tp=3 x cp=1 x pp=1 x dp=4 = 12 accelerators, but dgx-h100-superpod has 64 in use",
            "layout",
            "use gpus=12, or degrees whose product is 64",
        ),
        (
            "llama-3.1-8b",
            "tp=1,dp=64,mbs=3",
            "dp=64 x mbs=3 = 192 does not divide the global batch 512",
            "layout.dp",
            "choose dp x mbs from the divisors of 512: 16, 32, 64, 128, 256, 512",
        ),
        (
            "llama-3.1-405b",
            "pp=64,vp=3",
            "126 layers do not divide over 64 pipeline stages of 3 chunks",
            "layout.pp",
            "with vp=3 these divide: pp = 2, 3, 6, 7, ",
        ),
        ("llama-3.1-8b", "tp=64", "tensor degree 64 does not divide 32 attention heads", "layout.tp", "choose from 1, 2, 4, 8, 16, 32"),
        (
            "llama-3.1-8b",
            "tp=2,cp=32",
            "a sequence of 8200 tokens does not divide into 128 pieces (cp=32, tp=2)",
            "layout.cp",
            "choose cp and tp whose product, twice over with cp, divides the sequence",
        ),
        ("mixtral-8x7b", "dp=64,ep=16", "expert degree 16 does not divide 8 experts", "layout.ep", "choose from 1, 2, 4, 8"),
        ("llama-3.1-8b", "dp=64,ep=8", "ep=8, but llama-3.1-8b has no experts", "layout.ep", "leave ep out"),
        (
            "llama-3.1-8b",
            "tp=2,cp=8,dp=4,cp_kind=all-to-all",
            "context x tensor degree 16 does not divide 8 key-value heads (all-to-all gives each rank whole heads)",
            "layout.cp",
            "choose from 1, 2, 4, 8",
        ),
    ],
)
def test_a_layout_that_does_not_divide_says_what_would(model, layout, what, where, fix):
    workload = Workload(name="w", model="", seq_len=8200 if "cp=32" in layout else 8192, global_batch=512)
    with pytest.raises(InputError) as caught:
        Job(load_model(model), load_cluster("dgx-h100-superpod").resized(64), workload).check(parse_layout(layout))
    assert (caught.value.what, caught.value.where) == (what, where)
    assert caught.value.fix.startswith(fix)


def test_the_mlp_must_divide_too_and_a_vocabulary_is_padded():
    model = replace(load_model("llama-3.1-8b"), vocab_size=128_255)
    workload = Workload(name="w", model="", seq_len=8192, global_batch=512)
    Job(model, load_cluster("dgx-h100-superpod").resized(2), workload).check(Layout(tp=2))
    with pytest.raises(InputError, match="tensor degree 2 does not divide 14335 MLP columns"):
        Job(replace(load_model("llama-3.1-8b"), ffn_hidden=14335), load_cluster("dgx-h100-superpod").resized(2), workload).check(
            Layout(tp=2)
        )


def test_the_record_layout_is_legal():
    assert Job(LLAMA_405B, GB200, replace(MLPERF_405B, global_batch=1024)).check(RECORD) is None

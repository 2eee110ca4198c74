"""A job: made from names or values, changed by keys, and priced; one layout of it has one step time, whoever asks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from meshwright.cli.main import main
from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.describe.whatif import known_keys
from meshwright.errors import FitError, InputError, MeshwrightError
from meshwright.job import MOST_SEQUENCES, Job
from meshwright.layout import CP_KINDS, ORDERS, RECOMPUTE, SCHEDULES, Layout, Layouts
from meshwright.plan.explain import explain, step_s_of
from meshwright.plan.noise import plan_noise
from meshwright.plan.plan import forecast_of, job_of, plan_of
from meshwright.plan.trace import trace
from meshwright.predict.forecast import Forecast
from meshwright.predict.prediction import predict
from meshwright.predict.software import software
from meshwright.record.entries import PART_NAMES, PARTS

GPT_3 = ("gpt-3-175b", "dgx-h100-superpod", "mlperf-gpt3")
GPT_3_JOB = Job(*GPT_3, gpus=512)
JOBS = {  # few micro-batches: a schedule of many takes long to draw
    "GPT-3": GPT_3_JOB.changed("workload.global_batch=256"),
    "Llama": Job("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b", gpus=512).changed("workload.global_batch=64"),
    "experts": Job("mixtral-8x7b", "hgx-h200-ndr", "pretrain-1t", gpus=32).changed("workload.global_batch=64"),
}
SMALL = Job("llama-3.2-1b", "dgx-h100-superpod", "pretrain-1t", gpus=16).changed("workload.global_batch=32", "workload.seq_len=2048")


@st.composite
def forecasts(draw: st.DrawFn) -> Forecast:
    """A layout of one of the jobs that divides it and fits; a schedule is chosen only where there is a pipeline."""
    job = JOBS[draw(st.sampled_from(sorted(JOBS)))]
    tp, cp, pp = (draw(st.sampled_from([1, 2, 4, 8])) for _ in range(3))
    assume(job.num_accelerators % (tp * cp * pp) == 0)
    try:
        layout = Layout(
            tp=tp,
            cp=cp,
            pp=pp,
            vp=draw(st.sampled_from([1, 2, 3])) if pp > 1 else 1,
            dp=job.num_accelerators // (tp * cp * pp),
            ep=draw(st.sampled_from([1, 8])) if job.model.experts else 1,
            micro_batch=draw(st.sampled_from([1, 2, 4])),
            zero_stage=draw(st.integers(0, 3)),
            recompute=draw(st.sampled_from(RECOMPUTE)),
            schedule=draw(st.sampled_from(SCHEDULES)) if pp > 1 else "interleaved",
            cp_kind=draw(st.sampled_from(CP_KINDS)) if cp > 1 else "ring",
            order=draw(st.sampled_from(ORDERS)),
            overlap_tp=draw(st.booleans()),
            overlap_pp=draw(st.booleans()),
            overlap_dp=draw(st.booleans()),
            cuda_graphs=draw(st.booleans()),
        )
        return job.forecast(layout)
    except (InputError, FitError):
        assume(False)
        raise


def assert_one_step_time(forecast: Forecast) -> None:
    job, layout, step_s = forecast.job, forecast.layout, forecast.step_s
    (found,) = job.search(layout=str(layout), stack="any")
    plan = plan_of(forecast)
    assert {
        "search": found.step_s,
        "plan": plan.step_s,
        "plan priced again": forecast_of(plan).step_s,
        "trace": trace(forecast)["otherData"]["step_s"],
        "explanation": step_s_of(job, layout),
        "JSON": forecast.to_json()["step_s"],
    } == dict.fromkeys(("search", "plan", "plan priced again", "trace", "explanation", "JSON"), step_s)
    assert sum(forecast.parts.values()) == pytest.approx(step_s, rel=1e-12)
    assert sum(plan.parts_s.values()) == pytest.approx(step_s, rel=1e-12)
    shares = limit_shares(forecast)
    assert shares == {part: f"{100 * forecast.share(part):.1f} %" for part in shares} and len(shares) == 2


def limit_shares(forecast: Forecast) -> dict[str, str]:
    """The two parts that the explanation names as the largest, with the shares it gives them."""
    match = re.fullmatch(r"(.+) takes (.+ ?%) of the step; next is (.+) with (.+ ?%)", explain(forecast).limit)
    assert match is not None
    parts = {name: part for part, name in PART_NAMES.items()}
    return {parts[match[1]]: match[2], parts[match[3]]: match[4]}


@settings(max_examples=20, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(forecasts())
def test_a_layout_has_one_step_time_whoever_asks(forecast: Forecast) -> None:
    assert_one_step_time(forecast)


@pytest.mark.parametrize("name", JOBS)
def test_the_best_layouts_of_a_search_have_the_step_times_of_their_forecasts(name: str) -> None:
    found = JOBS[name].search(keep=3)
    fastest_s = min(one.step_s for one in found)
    assert found[0].step_s <= fastest_s * (1 + plan_noise())  # of equal ones another may come first
    for one in found:
        assert JOBS[name].forecast(one.layout) == one
        assert_one_step_time(one)


def test_where_the_closed_form_is_too_short_all_have_the_step_of_the_exact_schedule() -> None:
    forecast = JOBS["Llama"].forecast("tp=4,cp=2,pp=8,vp=8,schedule=zero-bubble")
    closed = predict(forecast.job, Layouts.of([forecast.layout]))
    assert forecast.step_s > 1.005 * float(closed.step_s[0])  # otherwise this test shows nothing
    assert_one_step_time(forecast)
    assert set(forecast.parts) == set(PARTS) and min(forecast.parts.values()) >= 0
    assert sum(map(forecast.share, PARTS)) == pytest.approx(1.0, rel=1e-12)
    assert forecast.parts["bubble"] - float(closed.parts["bubble"][0]) == pytest.approx(forecast.step_s - float(closed.step_s[0]))


def test_python_and_the_command_line_give_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    layout = "tp=4,pp=8,vp=2,mbs=1"
    assert main(["predict", *GPT_3, "--gpus", "512", "--layout", layout, "--json"]) == 0
    forecast = Job(*GPT_3, gpus=512).forecast(layout)
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(json.dumps(forecast.to_json()))
    assert (printed["step_s"], printed["low_s"], printed["high_s"]) == (forecast.step_s, *forecast.interval)


def test_a_plan_made_by_the_command_line_is_the_best_of_the_search(capsys: pytest.CaptureFixture[str]) -> None:
    changes = "workload.global_batch=32", "workload.seq_len=2048"
    sets = [word for change in changes for word in ("--set", change)]
    assert main(["plan", "llama-3.2-1b", "dgx-h100-superpod", "pretrain-1t", "--gpus", "16", *sets, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["plans"]
    best = SMALL.search(keep=len(printed))
    assert [(plan["layout"]["text"], plan["step_s"]) for plan in printed] == [(str(one.layout), one.step_s) for one in best]


def test_a_degree_that_does_not_divide_the_cluster_is_refused() -> None:
    with pytest.raises(InputError, match="tp x cp x pp = 3 does not divide the 512 accelerators of dgx-h100-superpod"):
        GPT_3_JOB.forecast("tp=3")


@pytest.mark.parametrize(
    ("illegal", "what"),
    [
        (Layout(tp=3, dp=170), "= 510 accelerators, but dgx-h100-superpod has 512 in use"),
        (Layout(pp=64, dp=8), "96 layers do not divide over 64 pipeline stages"),
        (Layout(dp=512, micro_batch=3), "does not divide the global batch 2048"),
        (Layout(tp=8, pp=8, dp=8, vp=2, schedule="1f1b"), "1F1B runs one chunk per stage"),
        (Layout(dp=512, ep=8), "gpt-3-175b has no experts"),
    ],
)
def test_an_illegal_row_among_legal_ones_is_refused(illegal: Layout, what: str) -> None:
    legal = Layout(tp=8, pp=8, dp=8)
    assert len(predict(GPT_3_JOB, Layouts.of([legal, legal])).step_s) == 2
    with pytest.raises(InputError, match=re.escape(what)):
        predict(GPT_3_JOB, Layouts.of([legal, illegal, legal]))
    with pytest.raises(InputError, match=re.escape(what)):
        GPT_3_JOB.forecast(illegal)


def test_a_layout_that_does_not_fit_is_refused_unless_memory_is_ignored() -> None:
    with pytest.raises(FitError, match="more memory than h100 has"):
        GPT_3_JOB.forecast("tp=1")
    forecast = GPT_3_JOB.forecast("tp=1", ignore_memory=True)
    assert forecast.peak_memory_bytes > forecast.job.cluster.accelerator.memory_bytes


def test_a_batch_that_can_only_be_a_typing_error_is_refused() -> None:
    workload = replace(load_workload("mlperf-gpt3"), global_batch=10**8)
    for make in (lambda: Job(*GPT_3[:2], workload), lambda: GPT_3_JOB.changed("workload.global_batch=100000000")):
        with pytest.raises(InputError, match="a batch of 100,000,000 sequences is more than the 10,000,000") as caught:
            make()
        assert caught.value.where == "workload mlperf-gpt3: global_batch"
    assert Job(*GPT_3[:2], replace(workload, global_batch=MOST_SEQUENCES)).workload.global_batch == MOST_SEQUENCES


def test_a_precision_that_the_accelerator_lacks_is_refused() -> None:
    with pytest.raises(InputError, match="h100 has no fp4 tensor cores"):
        GPT_3_JOB.changed("workload.precision=nvfp4")


KEYS = (
    "tp",
    "cp",
    "pp",
    "vp",
    "dp",
    "ep",
    "mbs",
    "zero",
    "zero_ranks",
    "recompute",
    "schedule",
    "order",
    "overlap_tp",
    "last_stage_layers",
)
VALUES = st.one_of(st.integers(-(10**20), 10**20).map(str), st.integers(0, 9).map(str), st.text(max_size=8), st.sampled_from(RECOMPUTE))
PAIRS = st.tuples(st.sampled_from(KEYS), VALUES).map("=".join)
LAYOUT_TEXTS = st.one_of(st.text(max_size=40), st.lists(PAIRS, max_size=4).map(",".join))
CHANGES = st.one_of(st.text(max_size=40), st.tuples(st.sampled_from(known_keys(SMALL.cluster)), VALUES).map("=".join))
NUMBERS = st.floats(allow_nan=True, allow_infinity=True).map(str)
NUMERIC_CHANGES = st.tuples(st.sampled_from(known_keys(SMALL.cluster)), NUMBERS).map("=".join)


def answers_or_refuses(call: Callable[[], object]) -> None:
    """Any other exception than a MeshwrightError fails the test."""
    try:
        call()
    except MeshwrightError as error:
        assert error.what


@given(LAYOUT_TEXTS)
def test_any_text_as_a_layout_is_priced_or_refused(text: str) -> None:
    answers_or_refuses(lambda: SMALL.layout(text))
    answers_or_refuses(lambda: SMALL.forecast(text))


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(LAYOUT_TEXTS)
def test_any_text_as_what_a_search_fixes_is_searched_or_refused(text: str) -> None:
    answers_or_refuses(lambda: SMALL.search(layout=text, keep=1))


@given(st.one_of(CHANGES, NUMERIC_CHANGES))
def test_any_text_as_a_change_is_made_or_refused_and_the_changed_job_is_priced_or_refused(text: str) -> None:
    answers_or_refuses(lambda: SMALL.changed(text).forecast("pp=2,tp=2"))


@given(st.text(max_size=30), st.integers(0, 4))
def test_any_text_as_a_name_makes_a_job_or_is_refused(text: str, place: int) -> None:
    arguments: list[str] = [*GPT_3, ""]
    if place < len(arguments):
        arguments[place] = text
        answers_or_refuses(lambda: Job(*arguments))
    else:
        answers_or_refuses(lambda: Job(*arguments, profile=text))


@given(st.integers(-(10**6), 10**6))
def test_any_number_of_accelerators_makes_a_job_or_is_refused(gpus: int) -> None:
    answers_or_refuses(lambda: Job(*GPT_3, gpus=gpus).forecast("tp=8"))


def test_a_job_from_names_is_the_job_from_values() -> None:
    model, cluster, workload = load_model(GPT_3[0]), load_cluster(GPT_3[1]), load_workload(GPT_3[2])
    named, valued = Job(*GPT_3, "v5.1", gpus=512), Job(model, cluster.resized(512), workload, software("v5.1"))
    assert named == valued == Job(model, GPT_3[1], workload, "v5.1", gpus=512)
    layout = "tp=4,pp=8,vp=2,mbs=1"
    assert named.forecast(layout) == valued.forecast(layout)
    assert named != Job(*GPT_3, "v5.0", gpus=512) and named != Job(*GPT_3, "v5.1", gpus=256)


def test_a_job_is_described_by_its_names() -> None:
    job = GPT_3_JOB
    assert repr(job) == "Job('gpt-3-175b', 'dgx-h100-superpod', 'mlperf-gpt3', software='v6.0', gpus=512)"
    assert (job.name, job.num_accelerators, job.generation) == ("gpt-3-175b on dgx-h100-superpod", 512, "hopper")


def test_replacing_one_noun_keeps_the_others() -> None:
    job = Job(*GPT_3, "v5.1", gpus=512)
    other = replace(job, workload=replace(job.workload, global_batch=1024))
    assert (other.model, other.cluster, other.software, other.described) == (job.model, job.cluster, job.software, job.described)
    assert other.workload.global_batch == 1024 and job.workload.global_batch != 1024
    moved = job.on(load_cluster(GPT_3[1]).resized(64))
    assert (moved.model, moved.workload, moved.software, moved.num_accelerators) == (job.model, job.workload, job.software, 64)
    assert replace(job, software=software("v5.0")).software.name == "v5.0"


def test_values_are_changed_by_their_keys() -> None:
    job = Job("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b", "v5.1")
    fabric = job.cluster.tiers[-1]
    other = job.changed("fabric.planes=7", "workload.global_batch=512", "gpus=4096")
    assert other.cluster.tiers[-1].bytes_per_s == fabric.bytes_per_s * 7 / fabric.num_planes < fabric.bytes_per_s
    assert (other.workload.global_batch, other.num_accelerators) == (512, 4096)
    assert (other.model, other.software) == (job.model, job.software)
    assert job.changed() == job
    with pytest.raises(InputError, match=r"no value 'fabric\.colour' can be set"):
        job.changed("fabric.colour=7")


def test_a_size_beyond_what_is_described_is_noted_however_it_was_set() -> None:
    layout = "tp=8,pp=8"
    for job in (Job(*GPT_3, gpus=2048), Job(*GPT_3).changed("gpus=2048"), Job(*GPT_3).on(load_cluster(GPT_3[1]).resized(2048))):
        assert any("2,048 accelerators are more than the 1,024 described" in note for note in job.forecast(layout).notes)
    assert not any("described" in note for note in Job(*GPT_3).forecast(layout).notes)


def test_the_usual_switches_fill_a_layout_and_replicas_fill_the_cluster() -> None:
    job = GPT_3_JOB
    usual, layout = job.usual_layout(), job.layout("tp=4,pp=8")
    assert layout == replace(usual, tp=4, pp=8, dp=16)
    assert job.layout("tp=4,pp=8,dp=16") == layout and job.layout("dp=3").dp == 3
    assert job.layout(str(layout)) == layout


def test_a_plan_gives_back_the_job_and_the_forecast_it_was_made_of() -> None:
    forecast = Job(*GPT_3, "v5.1", gpus=512).forecast("tp=4,pp=8,vp=2,mbs=1")
    plan = plan_of(forecast)
    assert job_of(plan) == forecast.job
    assert forecast_of(plan) == forecast
    assert plan_of(forecast_of(plan)) == plan


@pytest.mark.parametrize("gpus", [0, -1, 1.5, True, 10**30, "512"])
def test_a_number_of_accelerators_is_a_whole_number_that_a_cluster_can_have(gpus: object) -> None:
    with pytest.raises(InputError, match="gpus is"):
        Job(*GPT_3, gpus=gpus)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [None, 7, b"llama", ["llama-3.1-8b"]])
def test_other_types_are_refused_like_any_wrong_input(wrong: object) -> None:
    for place in range(4):
        nouns: list[object] = [*GPT_3, "v5.1"]
        nouns[place] = wrong
        with pytest.raises(InputError, match=r"is .+, not a \w+, a text or a Path"):
            Job(*nouns)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"layout is .+, not a Layout or a text"):
        Job(*GPT_3, gpus=512).forecast(wrong)  # type: ignore[arg-type]


def test_a_search_keeps_at_least_one_layout() -> None:
    with pytest.raises(InputError, match="keeps 1 to 500 layouts"):
        Job("llama-3.1-8b", "dgx-h100-superpod", "pretrain-1t", gpus=8).search(keep=0)


def test_how_unevenly_experts_are_used_can_be_set_where_there_are_experts() -> None:
    job = Job("mixtral-8x7b", "dgx-h100-superpod", "pretrain-1t", gpus=64)
    even, uneven = job.forecast("ep=8,mbs=1"), job.changed("workload.expert_imbalance=1.5").forecast("ep=8,mbs=1")
    assert uneven.step_s > even.step_s and uneven.mfu < even.mfu
    assert any("assumed to get equally many tokens" in note for note in even.notes)
    assert all(note.isprintable() for note in even.notes)
    assert any("the busiest rank gets 1.5 times the mean" in note and "memory is counted for equal shares" in note for note in uneven.notes)
    dense = Job("llama-3.1-8b", "dgx-h100-superpod", "pretrain-1t", gpus=64)
    assert not any("experts" in note for note in dense.forecast("mbs=1,zero=3").notes)
    with pytest.raises(InputError, match="has no experts"):
        dense.changed("workload.expert_imbalance=1.5")


@pytest.mark.parametrize("value", ["0.5", "0", "-1", "1e6", "nan", "many"])
def test_an_imbalance_that_no_ranks_can_have_is_refused(value: str) -> None:
    with pytest.raises(InputError, match="expert_imbalance"):
        Job("mixtral-8x7b", "dgx-h100-superpod", "pretrain-1t", gpus=64, changes=[f"workload.expert_imbalance={value}"])

"""The search: what it prunes is never better, what it returns is legal, fits and re-predicts; and the laws that follow."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.describe.cluster import Cluster, Tier
from meshwright.describe.load import accelerator, load_cluster, load_model, load_workload
from meshwright.describe.model import Experts, Model
from meshwright.describe.profile import load_profile
from meshwright.describe.workload import Workload
from meshwright.errors import FitError, InputError
from meshwright.job import Job
from meshwright.layout import SCHEDULES, Layout, Layouts
from meshwright.plan.candidates import DEGREES, Fixed, Space, degrees
from meshwright.plan.explain import explain
from meshwright.plan.features import Features
from meshwright.plan.search import CLOSED_EXCESS, _bounded_space, _with, search
from meshwright.predict import step
from meshwright.predict.exact import exact_prediction, quick_excess_s, schedule_excess_s
from meshwright.predict.footprint import RESERVE_BYTES, check_fits, reserve_for
from meshwright.predict.inputs import inputs_of
from meshwright.predict.placement import is_tp_on_fabric
from meshwright.predict.prediction import predict
from meshwright.predict.software import on_profile, software
from meshwright.predict.step import price

STACK = software()
PROFILE_OF_CORES = Path(__file__).parents[1] / "fixtures" / "profile_of_cores.json"
MEGATRON = Features(
    zero_stages=(1,),
    recompute=("none",),
    schedules=("1f1b", "interleaved"),
    cp_kinds=("ring",),
    orders=(("tp", "cp", "pp", "dp"), ("tp", "cp", "dp", "pp")),
)


def job(model, cluster, num_gpus, batch, seq_len, precision="bf16", workload="pretrain-1t"):
    wanted = replace(load_workload(workload), global_batch=batch, seq_len=seq_len, precision=precision)
    return Job(model, cluster, wanted, gpus=num_gpus)


JOBS = {
    "small dense": job("llama-3.2-1b", "dgx-h100-superpod", 16, 16, 2048),
    "one node": job("llama-3.2-3b", "dgx-h100-superpod", 8, 8, 4096),
    "experts": job("mixtral-8x7b", "hgx-h200-ndr", 16, 8, 4096),
    "many experts": job("qwen3-30b-a3b", "hgx-h200-ndr", 16, 4, 4096),
    "tight, one tier": job("llama-3.1-8b", "workstation-8x", 8, 8, 4096),
    "tight, old chips": job("llama-2-13b", "a100-200g", 8, 16, 4096),
    "tight, large": job("llama-3.1-70b", "hgx-b200-ndr", 16, 8, 8192, "mxfp8"),
    "odd racks": job("llama-3.1-8b", "gb200-nvl72-ndr", 48, 24, 8192, "nvfp4"),
    "adapters": job("llama-2-70b", "hgx-h200-ndr", 8, 8, 8192, "fp8", "mlperf-llama2-70b-lora"),
}
RECORD = Job("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b")


def space_of(job):
    rows = degrees(job.model, job.cluster, job.workload, Features(), Fixed())
    return Space.of(job.model, job.cluster, rows, Features(), Fixed())


def with_memory(job, memory_bytes):
    return job.on(replace(job.cluster, accelerator=replace(job.cluster.accelerator, memory_bytes=memory_bytes, driver_memory_bytes=0.0)))


def assert_sound(job, found):
    """Every layout is legal, fits, and predicts to the number it was found with; the best comes first."""
    assert list(found.step_s) == sorted(found.step_s)
    assert len(set(found.layouts)) == len(found.layouts)
    for layout, step_s in zip(found.layouts, found.step_s, strict=True):
        job.check(layout)
        prediction = predict(job, Layouts.of([layout]))
        check_fits(prediction.memory, job.cluster.accelerator)
        assert exact_prediction(prediction).step_s[0] == pytest.approx(step_s, rel=1e-12)
        assert job.forecast(layout).step_s == pytest.approx(step_s, rel=1e-12)


@pytest.mark.parametrize("name", JOBS)
def test_the_pruned_search_finds_what_the_search_of_everything_finds(name):
    pruned, everything = search(JOBS[name], keep=20), search(JOBS[name], keep=20, prune=False)
    assert pruned.step_s == pytest.approx(everything.step_s, rel=1e-12)
    assert pruned.layouts[0] == everything.layouts[0]
    assert pruned.num_layouts < everything.num_layouts and everything.num_pruned == 0
    assert_sound(JOBS[name], pruned)


@pytest.mark.parametrize("name", JOBS)
def test_every_legal_layout_is_counted_once(name):
    pruned, everything = search(JOBS[name], keep=1), search(JOBS[name], keep=1, prune=False)
    space = space_of(JOBS[name])
    assert pruned.num_layouts + pruned.num_pruned + pruned.num_unfit == space.num_layouts()
    assert everything.num_layouts + everything.num_unfit == space.num_layouts()


@pytest.mark.parametrize("name", ["tight, one tier", "tight, large", "many experts"])
def test_the_rules_hold_for_every_layout(name):
    """What is pruned is never faster: more recompute, ZeRO 2 and 3 where they compare, and degrees below their bound."""
    job = JOBS[name]
    asked = inputs_of(job)
    space, bound_s = _bounded_space(job, Features(), Fixed())
    bounds = dict(zip(space.rows, bound_s, strict=True))
    for batch, _ in space.batches((1,), ("none",)):
        choices = {
            (z, r): price(asked, _with(batch, zero_stage=z, recompute=r), STACK.constants).step_s for z in range(4) for r in range(3)
        }
        comparable = (batch.pp > 1) & (job.workload.global_batch // (batch.dp * batch.micro_batch) > 1)
        for zero in range(4):
            assert (choices[zero, 1] >= choices[zero, 0] * (1 - 1e-12)).all()
            assert (choices[zero, 2] >= choices[zero, 1] * (1 - 1e-12)).all()
        for more, less in ((2, 1), (3, 2)):
            assert (choices[more, 0] >= choices[less, 0] * (1 - 1e-12))[comparable].all()
        least_s = np.min(list(choices.values()), axis=0)
        rows = zip(*(getattr(batch, key).tolist() for key in DEGREES), strict=True)
        assert (np.array([bounds[row] for row in rows]) <= least_s * (1 + 1e-12)).all()


def test_the_exact_schedule_is_never_shorter_than_the_closed_form():
    rng = np.random.default_rng(7)
    for name in ("small dense", "experts", "tight, large"):
        job = JOBS[name].changed(f"workload.global_batch={4 * JOBS[name].workload.global_batch}")
        space = space_of(job)
        piped = next(batch.take(batch.pp > 1) for batch, _ in space.batches((1,), ("none",)))
        some = piped.take(rng.choice(len(piped), 150, replace=False))
        prediction = predict(job, some)
        for row in range(len(some)):
            assert schedule_excess_s(prediction.detail, some.row(row), row) >= (1 / CLOSED_EXCESS - 1) * prediction.step_s[row]


def test_a_long_step_is_timed_by_a_straight_line():
    job = JOBS["small dense"].changed("workload.global_batch=1024")
    for schedule in ("1f1b", "zero-bubble", "interleaved"):
        layout = Layout(tp=2, pp=4, vp=2 if schedule == "interleaved" else 1, dp=2, schedule=schedule)
        prediction = predict(job, Layouts.of([layout]))
        whole_s = schedule_excess_s(prediction.detail, layout)
        assert quick_excess_s(prediction.detail, layout) == pytest.approx(whole_s, abs=1e-3 * prediction.step_s[0])


def test_recompute_and_sharding_come_in_where_nothing_else_fits():
    small = with_memory(JOBS["tight, one tier"], 26e9)
    found = search(small, keep=5)
    assert_sound(small, found)
    assert any(layout.recompute != "none" for layout in found.layouts)
    wide = search(small, fixed=Fixed({"pp": 1, "tp": 1}), keep=1).layouts[0]
    assert wide.zero_stage == 3


def test_no_layout_fits_names_the_nearest_miss():
    with pytest.raises(FitError, match=r"no layout fits .* the nearest miss, tp=.* lacks .* bytes\)"):
        search(with_memory(JOBS["tight, one tier"], 8e9))


def test_headroom_is_kept():
    job = JOBS["tight, one tier"]
    found = search(job, reserve_bytes=RESERVE_BYTES + 10e9, keep=3)
    for layout in found.layouts:
        memory = predict(job, Layouts.of([layout])).memory
        assert memory.peak_bytes[0] <= job.cluster.accelerator.room_bytes - RESERVE_BYTES - 10e9


def test_what_is_fixed_stays():
    fixed = {"tp": 2, "vp": 2, "recompute": "full", "zero_stage": 0, "cp_kind": "all-gather", "overlap_tp": True}
    found = search(JOBS["small dense"], fixed=Fixed(fixed), keep=8)
    assert {tuple(getattr(layout, key) for key in fixed) for layout in found.layouts} == {tuple(fixed.values())}
    assert_sound(JOBS["small dense"], found)


def test_stated_end_stages_are_kept():
    job = JOBS["small dense"]  # 16 layers
    found = search(job, fixed=Fixed({"pp": 4, "first_stage_layers": 3, "last_stage_layers": 3}), keep=2)
    assert {(layout.first_stage_layers, layout.last_stage_layers, layout.vp) for layout in found.layouts} <= {(3, 3, 1), (3, 3, 5)}
    assert_sound(job, found)


def test_a_fixed_degree_that_divides_nothing_is_named():
    with pytest.raises(InputError, match=r"no degrees multiply to 16 .* with tp=3") as raised:
        search(JOBS["small dense"], fixed=Fixed({"tp": 3}))
    assert raised.value.fix == "with the rest as it is, choose tp from 1, 2, 4, 8, 16"


def test_a_job_that_nothing_divides_is_told_what_would():
    job = Job("llama-3.1-8b", "dgx-h100-superpod", "pretrain-1t", gpus=1016).changed("workload.global_batch=7")
    with pytest.raises(InputError, match="no degrees multiply to 1,016") as raised:
        search(job)
    assert "share many divisors, for example powers of two" in raised.value.fix


def test_the_record_layout_is_among_the_five_best_and_the_reason_is_given():
    found = search(RECORD, features=MEGATRON, keep=20)
    meshes = list(dict.fromkeys((layout.tp, layout.cp, layout.pp, layout.dp) for layout in found.layouts))
    assert (4, 2, 8, 128) in meshes[:5]
    chosen = next(layout for layout in found.layouts if (layout.tp, layout.cp, layout.pp, layout.dp) == (4, 2, 8, 128))
    assert any(reason.startswith("A replica is a rack: tp 4 x cp 2 x pp 8 = 64") for reason in explain(RECORD.forecast(chosen)).reasons)


def test_the_record_machine_is_searched_with_everything_open():
    found = search(RECORD, keep=3)
    assert_sound(RECORD, found)
    best_of_stack = search(RECORD, features=MEGATRON, keep=1)
    assert found.step_s[0] <= best_of_stack.step_s[0]


@st.composite
def jobs(draw):
    heads = draw(st.sampled_from([4, 8, 16]))
    hidden = heads * draw(st.sampled_from([64, 128]))
    experts = None
    layers = draw(st.sampled_from([2, 4, 6, 8]))
    if draw(st.booleans()):
        experts = Experts(num_experts=draw(st.sampled_from([4, 8])), num_active=2, hidden=hidden)
    model = Model(
        name="drawn", num_layers=layers, hidden=hidden, ffn_hidden=4 * hidden, num_heads=heads,
        num_kv_heads=draw(st.sampled_from([h for h in (1, 2, 4, 8) if heads % h == 0])), head_dim=hidden // heads, vocab_size=32_000,
        gated=True, experts=experts,
    )  # fmt: skip
    size, domains = draw(st.sampled_from([2, 4, 6])), draw(st.sampled_from([1, 2, 4]))
    memory = draw(st.sampled_from([6e9, 12e9, 80e9]))
    tiers = (
        Tier(name="node", link="nvlink-4", num_accelerators=size, num_installed=size + draw(st.sampled_from([0, 2])),
             bytes_per_s=draw(st.sampled_from([50e9, 450e9])), latency_s=2e-6, routing="scale-up"),
        Tier(name="fabric", link="ndr", num_accelerators=size * domains, num_installed=size * domains + 16,
             bytes_per_s=draw(st.sampled_from([5e9, 50e9])), latency_s=5e-6),
    )  # fmt: skip
    chip = replace(accelerator(draw(st.sampled_from(["h100", "b200"]))), memory_bytes=memory, driver_memory_bytes=0.0)
    cluster = Cluster(name="drawn", accelerator=chip, tiers=tiers, accelerators_per_node=size)
    workload = Workload(
        name="drawn", model="", seq_len=draw(st.sampled_from([512, 4096])), global_batch=draw(st.sampled_from([6, 8, 12, 32])),
        precision=draw(st.sampled_from(["bf16", "fp8"])), num_tokens=1e9,
    )  # fmt: skip
    return Job(model, cluster, workload)


def best_s(job):
    try:
        return search(job, keep=1).step_s[0]
    except (FitError, InputError):
        return np.inf


def test_doing_work_again_does_not_pay_by_hiding_messages():
    """Two layers on four stages of slow links: a longer backward would hide more of the messages that the other layouts wait for."""
    model = Model(name="m", num_layers=2, hidden=2048, ffn_hidden=8192, num_heads=16, num_kv_heads=1, head_dim=128, vocab_size=32000)
    tiers = (
        Tier(name="node", link="nvlink-4", num_accelerators=2, num_installed=2, bytes_per_s=50e9, latency_s=2e-6, routing="scale-up"),
        Tier(name="fabric", link="ndr", num_accelerators=8, num_installed=8, bytes_per_s=5e9, latency_s=5e-6, routing="adaptive"),
    )
    chip = replace(load_cluster("dgx-h100-superpod").accelerator, memory_bytes=6e9, driver_memory_bytes=0.0)
    cluster = Cluster(name="c", accelerator=chip, tiers=tiers, accelerators_per_node=2)
    workload = Workload(name="w", model="", seq_len=512, global_batch=6, precision="bf16", num_tokens=1e9)
    found, all_of_them = (search(Job(model, cluster, workload), keep=4, prune=prune) for prune in (True, False))
    assert found.step_s == pytest.approx(all_of_them.step_s, rel=1e-12)
    assert {layout.recompute for layout in all_of_them.layouts} == {"none"}


LAWS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@LAWS
@given(jobs())
def test_every_plan_of_a_drawn_job_is_sound_and_the_best_of_all(drawn):
    try:
        found = search(drawn, keep=4)
    except (FitError, InputError):
        with pytest.raises((FitError, InputError)):
            search(drawn, keep=4, prune=False)
        return
    assert_sound(drawn, found)
    assert found.step_s == pytest.approx(search(drawn, keep=4, prune=False).step_s, rel=1e-12)


@LAWS
@given(jobs(), st.sampled_from([0, 1]), st.sampled_from([1.5, 4.0]))
def test_a_faster_link_never_gives_a_slower_best_plan(drawn, index, times):
    tiers = list(drawn.cluster.tiers)
    tiers[index] = replace(tiers[index], bytes_per_s=times * tiers[index].bytes_per_s)
    assert best_s(drawn.on(replace(drawn.cluster, tiers=tuple(tiers)))) <= best_s(drawn) * (1 + 1e-9)


@pytest.mark.parametrize("name", ["experts", "odd racks", "adapters"])
def test_pricing_without_padding_changes_no_bit(name, monkeypatch):
    asked = inputs_of(JOBS[name])
    layouts, _ = next(space_of(JOBS[name]).batches((0, 1, 2, 3), ("none", "full")))
    lean = price(asked, layouts, STACK.constants).seconds
    monkeypatch.setattr(step, "_without_padding", lambda asked: asked)
    padded = price(asked, layouts, STACK.constants).seconds
    assert all(np.array_equal(lean[part], padded[part]) for part in step.PARTS)


@pytest.mark.parametrize(
    ("model", "cluster", "num_gpus", "batch"), [("mixtral-8x7b", "hgx-h200-ndr", 64, 128), ("llama-3.1-70b", "dgx-h100-superpod", 64, 64)]
)
def test_tensor_groups_of_the_best_plan_stay_in_their_node(model, cluster, num_gpus, batch):
    asked = job(model, cluster, num_gpus, batch, 8192)
    found = search(asked, keep=3)
    assert not any(is_tp_on_fabric(layout, asked.cluster) for layout in found.layouts)


@pytest.mark.parametrize("zero", [1, 3])
def test_without_a_pipeline_every_schedule_is_the_same_to_search_and_forecast(zero):
    one = JOBS["one node"]
    texts = [f"tp=2,cp=1,pp=1,mbs=1,zero={zero},recompute=none,schedule={name}" for name in SCHEDULES]
    forecasts = [one.forecast(text) for text in texts]
    found = [one.search(keep=1, layout=text)[0] for text in texts]
    assert len({forecast.step_s for forecast in (*forecasts, *found)}) == 1
    assert len({forecast.peak_memory_bytes for forecast in (*forecasts, *found)}) == 1
    assert [forecast.layout.schedule for forecast in found] == list(SCHEDULES)


@pytest.mark.parametrize("schedules", [("zero-bubble",), ("interleaved", "zero-bubble"), ("1f1b", "zero-bubble")])
def test_layouts_without_a_pipeline_are_counted_once_whatever_schedules_are_open(schedules):
    one, features = JOBS["one node"], Features(schedules=schedules)
    rows = degrees(one.model, one.cluster, one.workload, features, Fixed({"pp": 1}))
    space = Space.of(one.model, one.cluster, rows, features, Fixed())
    batches = [batch for batch, _ in space.batches(features.zero_stages, features.recompute)]
    assert sum(map(len, batches)) == space.num_layouts() > 0
    assert {int(schedule) for batch in batches for schedule in batch.schedule} == {min(map(SCHEDULES.index, schedules))}


def test_a_search_with_a_profile_gives_the_best_of_all_by_that_profile() -> None:
    model, cluster, workload = load_model("llama-2m"), load_cluster("this-machine-2x4"), load_workload("python-stdlib")
    stack = on_profile(software(), load_profile(PROFILE_OF_CORES))
    found = search(Job(model, cluster, workload, stack), keep=8, reserve_bytes=reserve_for(cluster.accelerator))
    every = search(Job(model, cluster, workload, stack), keep=8, prune=False, reserve_bytes=reserve_for(cluster.accelerator))
    assert found.layouts[0] == every.layouts[0]
    again = predict(Job(model, cluster, workload, stack), Layouts.of(list(found.layouts))).step_s
    assert bool(np.all(np.diff(again) >= -1e-9 * again[:-1]))
    plain = search(Job(model, cluster, workload), keep=8, reserve_bytes=reserve_for(cluster.accelerator))
    assert not np.allclose(plain.step_s[:1], found.step_s[:1])

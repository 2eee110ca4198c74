"""Which layouts a job allows: the mask of many layouts and the error of one agree."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.describe.cluster import Cluster, Tier
from meshwright.describe.load import accelerator, load_model, load_workload
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.layout import CP_KINDS, LARGEST, SCHEDULES, Layout, Layouts
from meshwright.predict.legality import check_layout, legal_rows

MODELS = {name: load_model(name) for name in ("gpt-3-175b", "llama-3.1-8b", "mixtral-8x7b", "deepseek-v3")}
MODELS["odd"] = replace(MODELS["llama-3.1-8b"], name="odd", num_layers=30, vocab_size=30_003, num_kv_heads=2)
MODELS["two"] = replace(MODELS["llama-3.1-8b"], name="two", num_kv_heads=2)
MODELS["six"] = replace(MODELS["llama-3.1-8b"], name="six", num_heads=48, num_kv_heads=6)
DEGREES = st.sampled_from([1, 2, 3, 4, 6, 8, 16])
FEW = st.sampled_from([0, 0, 0, 1, 2, 3, 5])


def flat(num_accelerators: int) -> Cluster:
    """So many H100 on one network: any number of them is a cluster."""
    tier = Tier(
        name="node", link="ndr", num_accelerators=num_accelerators, num_installed=num_accelerators, bytes_per_s=5e10, latency_s=5e-6
    )
    return Cluster(name="flat", accelerator=accelerator("h100"), tiers=(tier,), accelerators_per_node=num_accelerators)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    tp, cp, pp, dp = (draw(DEGREES) for _ in range(4))
    return Layout(
        tp=tp,
        cp=cp,
        pp=pp,
        vp=draw(st.sampled_from([1, 1, 2, 3, 4])) if pp > 1 else 1,
        dp=dp,
        ep=(ep := draw(st.sampled_from([n for n in (1, 1, 2, 3, 8, 16) if dp * cp * tp % n == 0]))),
        etp=draw(st.sampled_from([n for n in (1, 1, 2, 3, 16) if dp * cp * tp % (ep * n) == 0])),
        micro_batch=draw(st.sampled_from([1, 2, 3, LARGEST])),
        zero_stage=draw(st.integers(0, 3)),
        schedule=draw(st.sampled_from(SCHEDULES)),
        cp_kind=draw(st.sampled_from(CP_KINDS)),
        first_stage_layers=draw(FEW),
        last_stage_layers=draw(FEW),
    )


def refusal(job: Job, layout: Layout) -> str:
    """Why one layout is refused; empty where it is legal."""
    try:
        check_layout(job.model, job.cluster, job.workload, layout)
    except InputError as error:
        assert error.what and error.where and error.fix
        return error.what
    return ""


@settings(max_examples=300)
@given(
    st.sampled_from(sorted(MODELS)),
    st.lists(layouts(), min_size=1, max_size=4),
    st.sampled_from([1, 48, 96, 512, 2304]),
    st.sampled_from([1024, 6144, 8192, 8200]),
    st.booleans(),
)
def test_the_mask_and_the_error_agree(name: str, rows: list[Layout], batch: int, seq_len: int, sized: bool) -> None:
    workload = replace(load_workload("pretrain-1t"), global_batch=batch, seq_len=seq_len)
    job = Job(MODELS[name], flat(rows[0].num_ranks if sized else 64), workload)
    mask = legal_rows(job.model, job.cluster, job.workload, Layouts.of(rows))
    refusals = [refusal(job, layout) for layout in rows]
    assert [bool(legal) for legal in mask] == [not why for why in refusals], refusals


def test_each_rule_is_in_the_mask_and_in_the_error() -> None:
    """Every reason there is, beside a layout that has none: the law above must not hold for want of cases."""
    workload = replace(load_workload("pretrain-1t"), global_batch=96, seq_len=8200)
    dense, experts, odd, two, six = (
        Job(MODELS[name], flat(16), workload) for name in ("llama-3.1-8b", "mixtral-8x7b", "odd", "two", "six")
    )
    mixture = MODELS["mixtral-8x7b"]
    assert mixture.experts is not None
    narrow = Job(replace(mixture, experts=replace(mixture.experts, hidden=14340)), flat(16), workload)
    biased = Job(replace(mixture, biases=True, hidden=4098), flat(16), workload)
    cases = [
        (dense, Layout(tp=2, dp=8), ""),
        (experts, Layout(tp=2, dp=8, ep=8), ""),
        (dense, Layout(tp=2, dp=4), "16 in use"),
        (dense, Layout(dp=16, micro_batch=4), "does not divide the global batch 96"),
        (dense, Layout(pp=4, dp=4, vp=2, schedule="1f1b"), "1F1B runs one chunk per stage"),
        (dense, Layout(pp=4, dp=4, zero_stage=3, schedule="zero-bubble"), "ZeRO 3 reduces them inside the backward"),
        (dense, Layout(pp=16, vp=4), "32 layers do not divide over 16 pipeline stages of 4 chunks"),
        (dense, Layout(pp=4, dp=4, first_stage_layers=3), "with 3 layers on the first"),
        (odd, Layout(tp=2, dp=8), ""),
        (two, Layout(tp=8, dp=2), ""),
        (six, Layout(tp=4, dp=4), "tensor degree 4 neither divides 6 key-value heads nor is a multiple of them"),
        (dense, Layout(tp=16), "does not divide into 16 pieces"),
        (dense, Layout(cp=16), "does not divide into 32 pieces"),
        (dense, Layout(dp=16, ep=2), "llama-3.1-8b has no experts"),
        (experts, Layout(dp=16, ep=16), "does not divide 8 experts"),
        (experts, Layout(dp=16, ep=4, etp=4), ""),
        (narrow, Layout(dp=16, etp=8), "degree of each expert 8 does not divide 14340 columns of an expert"),
        (biased, Layout(dp=16, etp=4), "degree of each expert 4 does not divide 4098 entries of an expert's second bias"),
        (dense, Layout(dp=16, etp=2), "etp=2, but llama-3.1-8b has no experts"),
        (odd, Layout(cp=4, dp=4, cp_kind="all-to-all"), "does not divide 2 key-value heads"),
    ]
    for job, layout, why in cases:
        assert why in refusal(job, layout) and bool(why) == bool(refusal(job, layout))
        assert legal_rows(job.model, job.cluster, job.workload, Layouts.of([layout])).tolist() == [not why]

"""Stacks: what is planned for one it runs, by its own rules, by its exporter and, for meshwright, by the trainer's own check."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.describe.load import load_workload
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.layout import AXES, Layout, Layouts, parse_layout
from meshwright.plan.candidates import Fixed, fixed_by
from meshwright.plan.export import EXPORTS, exported
from meshwright.plan.noise import run_noise, run_spreads
from meshwright.plan.plan import plan_of
from meshwright.plan.search import num_unusual, search
from meshwright.plan.stack import ANY, NAMES, STACKS, asked_of, candidates, joint, refusals, runs_on, stack_named, with_stack
from meshwright.plan.stack.own import PRECISIONS, check_trainable
from meshwright.plan.stack.rule import Asked
from meshwright.plan.stack_choice import chosen_stack
from meshwright.predict.footprint import spare_bytes
from meshwright.predict.placement import tiers_of
from meshwright.predict.prediction import predict


def job(
    model: str, cluster: str, gpus: int, batch: int, precision: str = "bf16", workload: str = "pretrain-1t", seq_len: int = 4096
) -> Job:
    wanted = replace(load_workload(workload), global_batch=batch, seq_len=seq_len, precision=precision)
    return Job(model, cluster, wanted, gpus=gpus)


JOBS = {
    "dense": job("llama-3.1-8b", "dgx-h100-superpod", 32, 24),
    "tight": job("llama-3.1-70b", "hgx-b200-ndr", 16, 12, "mxfp8"),
    "experts": job("qwen3-30b-a3b", "hgx-h200-ndr", 16, 12),
    "rack": job("llama-3.1-70b", "gb200-nvl72-ndr", 128, 48, "fp8-current"),
    "trained": job("llama-3.2-1b", "dgx-h100-superpod", 16, 16, workload="mlperf-llama31-8b"),
    "trained in fp8": job("llama-3.2-1b", "dgx-h100-superpod", 16, 16, "fp8-current", "mlperf-llama31-8b"),
}


def able(name: str) -> list[tuple[str, str]]:
    return [(name, stack.name) for stack in candidates(JOBS[name])]


@pytest.mark.parametrize("name, stack", [pair for name in JOBS for pair in able(name)])
def test_every_plan_for_a_stack_is_legal_and_the_stack_runs_it(name: str, stack: str) -> None:
    one = JOBS[name]
    found = one.search(keep=12, stack=stack)
    assert found
    for forecast in found:
        one.check(forecast.layout)
        assert stack in runs_on(forecast.job, forecast.layout)
        assert STACKS[stack].differences(asked_of(one), forecast.layout) == []
        if kind := STACKS[stack].export:
            assert exported(plan_of(forecast), kind)
        else:
            check_trainable(one.model, one.workload, forecast.layout)


@pytest.mark.parametrize("name", ["dense", "experts", "trained in fp8"])
@pytest.mark.parametrize("stack", STACKS)
def test_columns_and_single_layouts_are_judged_alike(name: str, stack: str) -> None:
    one, chosen = JOBS[name], STACKS[stack]
    everything = search(one, keep=100, prune=True).layouts
    asked = asked_of(one)
    if any(rule.forbids(asked) for rule in chosen.job_rules):
        return
    mask = chosen.allows(asked, Layouts.of(everything))
    assert mask.tolist() == [not chosen.refusal(asked, layout) for layout in everything]


@pytest.mark.parametrize("name", ["dense", "experts"])
@pytest.mark.parametrize("stack", ["megatron", "torchtitan", "deepspeed"])
def test_a_pruned_search_for_a_stack_counts_every_layout_once_and_finds_the_best(name: str, stack: str) -> None:
    one, chosen = JOBS[name], STACKS[stack]
    pruned, everything = (search(one, keep=5, prune=prune, stack=chosen) for prune in (True, False))
    assert pruned.layouts[0] == everything.layouts[0]
    assert pruned.num_legal == everything.num_legal


def test_the_trainer_has_the_precisions_that_its_rules_name() -> None:
    pytest.importorskip("torch")
    from meshwright.train.replica import NUMBERS

    assert tuple(NUMBERS) == PRECISIONS


def test_no_mixture_of_experts_is_planned_for_the_trainer() -> None:
    with pytest.raises(InputError, match="the trainer cannot run qwen3-30b-a3b with experts"):
        JOBS["experts"].search(stack="meshwright")
    with pytest.raises(InputError, match="cannot run qwen3-30b-a3b with experts"):
        check_trainable(JOBS["experts"].model, JOBS["experts"].workload, Layout())


@pytest.mark.parametrize(
    "stack, layout, why",
    [
        ("megatron", "pp=4,vp=2,dp=8", "the stages divide the micro-batches, and pp=4 does not"),  # 3 micro-batches
        ("megatron", "pp=2,vp=2,dp=4,tp=4,schedule=zero-bubble", "has no zero-bubble schedule"),
        ("megatron", "pp=2,tp=2,dp=8,order=pp-tp-cp-dp", "numbers ranks"),
        ("megatron", "pp=2,dp=16,zero=3,schedule=1f1b,overlap_pp=no,order=tp-cp-dp-pp", "Megatron-FSDP"),
        ("megatron", "pp=2,dp=16,schedule=1f1b,order=tp-cp-dp-pp", "more than one chunk per stage"),
        ("torchtitan", "cp=2,dp=16,cp_kind=all-to-all", "has no context parallelism by all-to-all"),
        ("torchtitan", "pp=8,dp=4,schedule=1f1b,order=tp-cp-dp-pp,mbs=2", "at least as many micro-batches as stages"),
        ("torchtitan", "dp=32,zero=1", "which is ZeRO 2"),
        ("deepspeed", "tp=2,dp=16,cuda_graphs=no", "keeps activations whole"),
        ("deepspeed", "pp=2,dp=16,zero=2,schedule=1f1b", "has no pipeline with ZeRO 2"),
        ("meshwright", "dp=32", "does not say how to train"),
    ],
)
def test_what_a_stack_does_not_run_is_said_with_the_reason(stack: str, layout: str, why: str) -> None:
    assert why in refusals(JOBS["dense"], parse_layout(layout))[stack]


def test_every_rule_has_a_source_and_a_way_out() -> None:
    for stack in STACKS.values():
        assert stack.software and (stack.export in EXPORTS or stack.name == "meshwright")
        for rule in (*stack.job_rules, *stack.rules):
            assert rule.source and rule.fix and rule.where, (stack.name, rule.what)


@pytest.mark.parametrize(
    "parts, expected",
    [
        (("llama-3.1-70b", "dgx-h100-superpod", "pretrain-1t", ""), "megatron"),
        (("llama-3.1-70b", "dgx-h100-superpod", "pretrain-1t", "nemo-26.04"), "bridge"),
        (("llama-3.1-70b", "dgx-h100-superpod", "pretrain-1t", "torchtitan"), "torchtitan"),
        (("llama-3.1-70b", "dgx-h100-superpod", "pretrain-1t", "fsdp"), "deepspeed"),
        (("llama-2-70b", "hgx-h200-ndr", "mlperf-llama2-70b-lora", ""), "bridge"),  # Megatron-LM has no adapters
        (("llama-2m", "this-machine", "python-stdlib", ""), "meshwright"),  # no other trains on a processor
    ],
)
def test_the_default_is_a_stack_that_can(parts: tuple[str, ...], expected: str) -> None:
    one = Job(*parts, profile="none")
    same, chosen = chosen_stack(one, "", Fixed())
    assert chosen.name == expected and same == one


def test_a_fixed_choice_is_planned_for_a_stack_that_has_it() -> None:
    one = JOBS["dense"]
    assert chosen_stack(one, "", fixed_by("pp=2,vp=2,schedule=zero-bubble"))[1].name == "torchtitan"
    assert chosen_stack(one, "", fixed_by("pp=2,vp=1,schedule=zero-bubble"))[1] is ANY  # the trainer has it, and the workload no [training]


def test_a_named_stack_brings_its_class_of_software_unless_software_is_named_or_the_job_is_a_benchmark() -> None:
    plain = ("llama-3.1-8b", "dgx-h100-superpod", "pretrain-1t")
    assert with_stack(Job(*plain), STACKS["torchtitan"]).software.kind == "torchtitan"
    assert with_stack(Job(*plain), STACKS["megatron"]).software.kind == "megatron"
    assert with_stack(Job(*plain), ANY).software.kind == "mlperf"
    assert with_stack(Job(*plain, "v5.1"), STACKS["torchtitan"]).software.name == "v5.1"
    benchmark = Job("llama-3.1-8b", "dgx-h100-superpod", "mlperf-llama31-8b")
    assert with_stack(benchmark, STACKS["bridge"]).software.kind == "mlperf"
    assert with_stack(benchmark, STACKS["deepspeed"]).software.kind == "fsdp"


def test_an_unknown_stack_is_named() -> None:
    with pytest.raises(InputError, match="no stack named 'megatorn'") as error:
        stack_named("megatorn")
    assert "megatron" in error.value.fix and set(NAMES) == {*STACKS, "any"}


def test_stacks_together_run_what_each_of_them_runs() -> None:
    both = joint([STACKS["megatron"], STACKS["torchtitan"]])
    asked = asked_of(JOBS["dense"])
    layouts = search(JOBS["dense"], keep=200).layouts
    rows = Layouts.of(layouts)
    each = STACKS["megatron"].allows(asked, rows) & STACKS["torchtitan"].allows(asked, rows)
    assert both.allows(asked, rows).tolist() == each.tolist()
    with pytest.raises(InputError, match="no cp kinds are left"):
        joint([STACKS["torchtitan"], STACKS["deepspeed"]])


def test_layouts_that_differ_in_the_name_of_their_order_alone_are_one() -> None:
    one = JOBS["rack"]
    layouts = search(one, keep=300).layouts
    seen = {
        (replace(layout, zero_stage=1, recompute="none", order=AXES), tuple(tiers_of(layout, one.cluster).items())) for layout in layouts
    }
    assert len(seen) == len(layouts)


def test_the_noise_is_that_of_the_carried_runs() -> None:
    assert len(run_spreads()) > 100
    assert np.mean(np.array(run_spreads()) <= run_noise()) == pytest.approx(0.9, abs=0.01)


def test_equal_plans_stand_by_memory_to_spare_then_by_unusual_choices() -> None:
    one, noise = JOBS["dense"], run_noise()
    plain, found = search(one, keep=20), search(one, keep=20, noise=noise)
    fastest, equal = plain.step_s[0], found.layouts[: found.num_equal]
    assert found.num_equal > 1 and all(step_s <= fastest * (1 + noise) for step_s in found.step_s[: found.num_equal])
    assert all(step_s > fastest * (1 + noise) for step_s in found.step_s[found.num_equal :])
    rows = Layouts.of(equal)
    chip = one.cluster.accelerator
    spare = np.minimum(spare_bytes(predict(one, rows).memory, chip) // (chip.memory_bytes / 10), 2)
    order = list(zip(-spare, num_unusual(rows), strict=True))
    assert order == sorted(order)


def test_a_job_rule_needs_no_cluster() -> None:
    asked = Asked(JOBS["dense"].model, JOBS["dense"].workload)
    assert not any(rule.forbids(asked) for rule in STACKS["megatron"].job_rules)

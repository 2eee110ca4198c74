"""Rules judge columns and single layouts alike, and every one has a source."""

from __future__ import annotations

import pytest
from stack_jobs import JOBS

from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.layout import Layouts
from meshwright.plan.export import EXPORTS
from meshwright.plan.search import search
from meshwright.plan.stack import ANY, NAMES, STACKS, asked_of, joint, stack_named, with_stack
from meshwright.plan.stack.rule import Asked


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


def test_every_rule_has_a_source_and_a_way_out() -> None:
    for stack in STACKS.values():
        assert stack.software and (stack.export in EXPORTS or stack.name == "meshwright")
        for rule in (*stack.job_rules, *stack.rules):
            assert rule.source and rule.fix and rule.where, (stack.name, rule.what)


def test_a_job_rule_needs_no_cluster() -> None:
    asked = Asked(JOBS["dense"].model, JOBS["dense"].workload)
    assert not any(rule.forbids(asked) for rule in STACKS["megatron"].job_rules)


def test_stacks_together_run_what_each_of_them_runs() -> None:
    both = joint([STACKS["megatron"], STACKS["torchtitan"]])
    asked = asked_of(JOBS["dense"])
    layouts = search(JOBS["dense"], keep=200).layouts
    rows = Layouts.of(layouts)
    each = STACKS["megatron"].allows(asked, rows) & STACKS["torchtitan"].allows(asked, rows)
    assert both.allows(asked, rows).tolist() == each.tolist()
    with pytest.raises(InputError, match="no cp kinds are left"):
        joint([STACKS["torchtitan"], STACKS["deepspeed"]])


def test_an_unknown_stack_is_named() -> None:
    with pytest.raises(InputError, match="no stack named 'megatorn'") as error:
        stack_named("megatorn")
    assert "megatron" in error.value.fix and set(NAMES) == {*STACKS, "any"}


def test_a_named_stack_brings_its_class_of_software_unless_software_is_named_or_the_job_is_a_benchmark() -> None:
    plain = ("llama-3.1-8b", "dgx-h100-superpod", "pretrain-1t")
    assert with_stack(Job(*plain), STACKS["torchtitan"]).software.kind == "torchtitan"
    assert with_stack(Job(*plain), STACKS["megatron"]).software.kind == "megatron"
    assert with_stack(Job(*plain), ANY) == Job(*plain)
    assert with_stack(Job(*plain, "v5.1"), STACKS["torchtitan"]).software.name == "v5.1"
    benchmark = Job("llama-3.1-8b", "dgx-h100-superpod", "mlperf-llama31-8b")
    assert with_stack(benchmark, STACKS["bridge"]).software.kind == "mlperf"
    assert with_stack(benchmark, STACKS["deepspeed"]).software.kind == "fsdp"

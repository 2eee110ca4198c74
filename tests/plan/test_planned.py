"""The answer of a planning question: which machines are searched, what is spare, and what a change makes of it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from meshwright.describe.load import load_workload
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.plan.noise import plan_noise
from meshwright.plan.objective import Aim
from meshwright.plan.planned import Comparison, Planned, Spares, plan_job, planned
from meshwright.plan.sizes import Ask
from meshwright.say.vocabulary import problems

JOB = Job("llama-3.2-1b", "dgx-h100-superpod", replace(load_workload("pretrain-1t"), seq_len=2048, global_batch=64), gpus=32)


@cache
def small() -> Planned:
    return plan_job(JOB, keep=3)


def test_the_best_comes_first_and_is_the_plan() -> None:
    found = small()
    steps = [one.step_s for one in found.forecasts]
    assert len(steps) == 3 and max(steps) <= min(steps) * (1 + plan_noise()) and found.forecast is found.forecasts[0]  # equals
    assert found.plan.layout == found.forecast.layout and found.plan.step_s == found.forecast.step_s
    assert found.search_s > 0 and str(found).startswith(f"best of {found.best.found.num_layouts:,} layouts by time: ")
    assert repr(found) == f"Planned({found})"


def test_ranks_are_those_of_the_best_layout() -> None:
    assert small().forecast.layout.num_ranks == 32 == len(list(small().ranks.rows()))


def test_what_a_plan_leaves_idle_is_counted_over_all_domains() -> None:
    assert Spares(domain="rack", per_domain=8, num_installed=72, num_domains=16).total == 128
    record = plan_job(Job("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b"), keep=1, layout="tp=4,cp=2,pp=8,vp=8,dp=128,mbs=1")
    assert record.spares == Spares(domain="rack", per_domain=8, num_installed=72, num_domains=128)


def test_a_size_replaces_the_one_described_and_a_limit_opens_all_below() -> None:
    assert plan_job(JOB, keep=1, gpus=8).forecast.job.num_accelerators == 8
    sizes = {point.best.job.num_accelerators for point in plan_job(JOB, keep=1, max_gpus=16, pareto=True).survey.searched}
    assert len(sizes) > 1 and max(sizes) == 16
    assert {point.best.job.num_accelerators for point in small().survey.searched} == {32}


@pytest.mark.parametrize("sizes", [{"gpus": 8, "max_gpus": 16}, {"gpus": 0}, {"max_gpus": 0}, {"max_gpus": -4}])
def test_sizes_that_cannot_be_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(InputError):
        plan_job(JOB, **sizes)


def test_the_front_is_there_where_it_is_asked_for() -> None:
    assert small().front == ()
    found = plan_job(JOB, keep=1, max_gpus=16, pareto=True)
    times = [point.best.time_to_train.value for point in found.front if point.best.time_to_train]
    assert len(times) == len(found.front) > 1
    assert set(found.notes) >= set(found.forecast.notes) and len(found.notes) == len(set(found.notes))


def test_a_question_that_compares_sizes_searches_all_unless_one_was_set() -> None:
    ask = Ask(job=Job(JOB.model, JOB.cluster.resized(16), JOB.workload), aim=Aim(objective="cost"), keep=1)
    assert len(planned(ask).survey.searched) > 1
    assert len(planned(replace(ask, sized=True)).survey.searched) == 1


def test_a_change_is_compared_like_with_like() -> None:
    before = small().forecast
    slower = replace(before, step_s=before.step_s * 1.25)
    assert Comparison(before=before, after=slower).longer_pct == pytest.approx(25.0)
    double = Job(JOB.model, JOB.cluster, replace(JOB.workload, global_batch=128)).forecast(before.layout)
    larger = Comparison(before=before, after=double)
    assert not larger.same_tokens and larger.longer_pct == pytest.approx(100 * (double.step_s / 2 / before.step_s - 1))
    assert small().comparison is None


def test_without_the_change_there_may_be_no_plan_at_all() -> None:
    ask = Ask(job=JOB, keep=1)
    impossible = replace(ask, job=Job("llama-3.1-405b", JOB.cluster.resized(8), JOB.workload))
    found = planned(ask, unchanged=impossible)
    assert found.before is None and found.comparison is None
    same = planned(ask, unchanged=ask).comparison
    assert same is not None and same.longer_pct == pytest.approx(0.0)


def test_its_values_are_in_the_vocabulary_and_a_notebook_shows_it() -> None:
    assert problems(small().to_json()) == []
    assert small()._repr_html_().startswith('<div class="meshwright">')

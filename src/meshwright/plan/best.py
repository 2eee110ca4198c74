"""The best layouts of a job, each with its forecast: what `job.search(...)` returns."""

from __future__ import annotations

from meshwright.arguments import check_type
from meshwright.job import Job
from meshwright.plan.candidates import fixed_by
from meshwright.plan.features import Features
from meshwright.plan.noise import plan_noise
from meshwright.plan.search import Progress, check_kept, search
from meshwright.plan.stack_choice import chosen_stack
from meshwright.predict.footprint import reserve_for
from meshwright.predict.forecast import Forecast, forecast


def best_forecasts(
    job: Job,
    *,
    keep: int = 5,
    layout: str = "",
    stack: str = "",
    features: Features | None = None,
    progress: Progress = lambda done, total: None,
) -> list[Forecast]:
    """Forecasts of the best layouts of a job by step time; `layout` fixes some of the choices, `stack` names the stack that must run them.

    Layouts whose predicted difference is smaller than the usual error of such a difference are equal; of these, the one with more memory
    to spare comes first.
    """
    check_kept(keep)
    check_type("features", features, Features | None, "search")
    fixed = fixed_by(layout)
    job, chosen = chosen_stack(job, stack, fixed)
    reserve_bytes = reserve_for(job.cluster.accelerator)
    found = search(
        job, features=features, fixed=fixed, keep=keep, reserve_bytes=reserve_bytes, stack=chosen, noise=plan_noise(), progress=progress
    )
    return [forecast(job, one) for one in found.layouts]

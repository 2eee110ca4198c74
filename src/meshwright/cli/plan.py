"""Rank the layouts that fit, explain the best, and write it as a plan, a page, a trace, or files for another stack."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli.options import (
    AsJson,
    ClusterName,
    FixedLayout,
    Gpus,
    Ideal,
    ModelName,
    PriceKind,
    ProfileFile,
    Provider,
    RegionName,
    Sets,
    SoftwareName,
    StackName,
    WorkloadName,
)


def plan(
    model: ModelName,
    cluster: ClusterName,
    workload: WorkloadName,
    keep: Annotated[int, typer.Option(metavar="N", min=1, max=500, help="Number of plans to show.")] = 5,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the best plan to this file, as JSON.", show_default=False)] = None,
    layout: FixedLayout = "",
    sets: Sets = None,
    gpus: Gpus = None,
    max_gpus: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Choose how many accelerators to use, up to this number.", show_default=False)
    ] = None,
    stack: StackName = "",
    software: SoftwareName = "",
    profile: ProfileFile = "",
    objective: Annotated[
        str, typer.Option(metavar="NAME", help="What to minimise: time, cost, energy, carbon or tokens-per-dollar.")
    ] = "time",
    deadline: Annotated[str, typer.Option(metavar="TIME", help="The run must end within this time: 7d, 36h, 90min.")] = "",
    budget: Annotated[
        str | None, typer.Option(metavar="USD", help="500USD: the run must cost at most this many US dollars.", show_default=False)
    ] = None,
    headroom: Annotated[
        float, typer.Option(metavar="GIB", min=0.0, help="GiB to leave free on every accelerator, in addition to the reserve.")
    ] = 0.0,
    provider: Provider = "",
    price_kind: PriceKind = "",
    region: RegionName = "",
    ideal: Ideal = False,
    pareto: Annotated[bool, typer.Option("--pareto", help="Show time against cost for several numbers of accelerators.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain/--no-explain", help="Explain the best plan, and show what one change would gain.")
    ] = True,
    rank_map: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the place of every rank, as .csv or .json.", show_default=False)
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with pictures.", show_default=False)] = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the step as a trace for Perfetto.", show_default=False)] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a slide as .svg.", show_default=False)] = None,
    exports: Annotated[
        list[str] | None,
        typer.Option(
            "--export", metavar="KIND=FILE", help="Write a file for another stack: megatron, torchtitan, hostfile, ...", show_default=False
        ),
    ] = None,
    export_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the files for all stacks that can run the plan.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the best layouts, with their step time, cost and memory, and the reasons.

    Examples:

      meshwright plan llama-3.1-405b azure-gb200-128 mlperf-llama31-405b --html plan.html

      meshwright plan llama-3.1-70b dgx-h100-superpod pretrain-1t --gpus 512 --deadline 30d --objective cost --out plan.json
    """
    from meshwright.cli.progress import progress_bar
    from meshwright.cli.show import show
    from meshwright.errors import MeshwrightError
    from meshwright.job import Job
    from meshwright.ledger import read_budget
    from meshwright.plan.candidates import fixed_by
    from meshwright.plan.objective import Aim, read_duration
    from meshwright.plan.planned import planned
    from meshwright.plan.sizes import Ask, check_sizes, reserve_with
    from meshwright.plan.stack import with_stack
    from meshwright.plan.stack_choice import chosen_stack
    from meshwright.predict.outcome import Terms
    from meshwright.report.plan_files import Files, read_exports, stacks_of, with_files
    from meshwright.say.plan import plan_document

    kinds = read_exports(exports or ())
    files = Files(out=out, rank_map=rank_map, html=html, trace=trace, plot=plot, exports=kinds, export_dir=export_dir)
    files.check()
    check_sizes(gpus, max_gpus, sets or ())
    fixed = fixed_by(layout)
    job, chosen = chosen_stack(Job(model, cluster, workload, software, profile=profile, changes=sets or ()), stack, fixed, stacks_of(kinds))
    ask = Ask(
        job=job,
        stack=chosen,
        fixed=fixed,
        terms=Terms(provider=provider, price_kind=price_kind, region=region, ideal=ideal),
        aim=Aim(
            objective=objective,
            deadline_s=read_duration(deadline) if deadline else None,
            budget_usd=None if budget is None else float(read_budget(budget)),
        ),
        keep=keep,
        reserve_bytes=reserve_with(headroom, job),
        sized=any(text.partition("=")[0].strip() == "gpus" for text in sets or ()),
    )
    unchanged = None
    with suppress(MeshwrightError):  # perhaps only the change makes the job possible
        before = Job(model, cluster, workload, software, profile=profile)
        unchanged = ask.without_changes(with_stack(before, chosen) if stack else before) if sets else None
    with progress_bar() as progress:
        found = planned(ask, gpus=gpus, max_gpus=max_gpus, pareto=pareto, unchanged=unchanged, progress=progress)
        written = files.write(found, progress)
    show(with_files(plan_document(found, explained=explain), written), as_json=as_json)

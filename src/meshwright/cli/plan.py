"""Rank the layouts that fit, explain the best, and write it as a plan, a page, a trace or another stack's files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.describe.hardware import FORMAT_OF_RECIPE


def plan(
    model: Annotated[str, typer.Argument(help="A catalogue name, a TOML file or a config.json.")],
    cluster: Annotated[str, typer.Argument(help="A catalogue name or a TOML file.")],
    workload: Annotated[str, typer.Argument(help="A catalogue name or a TOML file.")],
    keep: Annotated[int, typer.Option(min=1, max=500, help="Plans to show.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Write the best plan here, as JSON.", show_default=False)] = None,
    layout: Annotated[str, typer.Option(help="tp=4,cp=2,...: fixes these; the rest is searched.")] = "",
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE: what if, e.g. fabric.planes=7, gpus=7168.", show_default=False)
    ] = None,
    gpus: Annotated[int | None, typer.Option(help="Accelerators in use, where not all of the cluster.", show_default=False)] = None,
    max_gpus: Annotated[int | None, typer.Option(min=1, help="Choose how many to use, up to these.", show_default=False)] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences a step, instead of the workload's.", show_default=False)] = None,
    seq: Annotated[int | None, typer.Option(help="Tokens a sequence, instead of the workload's.", show_default=False)] = None,
    precision: Annotated[str, typer.Option(help=f"{', '.join(FORMAT_OF_RECIPE)}; else the workload's.")] = "",
    software: Annotated[str, typer.Option(help="A release (v5.1, nemo-26.04) or a profile of calibrate; else the newest.")] = "",
    profile: Annotated[str, typer.Option(metavar="FILE", help="What `measure` wrote; none: do not use this machine's own.")] = "",
    objective: Annotated[str, typer.Option(help="time, cost, energy, carbon or tokens-per-dollar.")] = "time",
    deadline: Annotated[str, typer.Option(help="The run must end within: 7d, 36h, 90min.")] = "",
    budget: Annotated[float | None, typer.Option(min=0.0, help="The run must cost at most so many USD.", show_default=False)] = None,
    headroom: Annotated[float, typer.Option(min=0.0, help="GiB to leave free on every accelerator beyond the reserve.")] = 0.0,
    provider: Annotated[str, typer.Option(help="Whose prices and halls; else the cluster's.")] = "",
    price_kind: Annotated[str, typer.Option(help="on-demand, spot or reserved.")] = "",
    region: Annotated[str, typer.Option(help="Whose grid; else the cluster's.")] = "",
    pareto: Annotated[bool, typer.Option("--pareto", help="Show time against cost over numbers of accelerators.")] = False,
    explain: Annotated[bool, typer.Option("--explain/--no-explain", help="Say why, and what one change would buy.")] = True,
    rank_map: Annotated[Path | None, typer.Option(help="Write where every rank stands, as .csv or .json.", show_default=False)] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with pictures.", show_default=False)] = None,
    trace: Annotated[Path | None, typer.Option(help="Write the step as a trace for Perfetto.", show_default=False)] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a slide as .svg.", show_default=False)] = None,
    exports: Annotated[
        list[str] | None,
        typer.Option("--export", help="KIND=FILE: for another stack: megatron, torchtitan, hostfile ...", show_default=False),
    ] = None,
    export_dir: Annotated[
        Path | None, typer.Option(help="Write the files for all stacks that can run the plan into this folder.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
) -> None:
    """Find the best layouts: how fast, how much, and why."""
    from meshwright.cli import plan_answer, plan_files, plan_show
    from meshwright.cli.plan_question import Wishes, asked, without_sets
    from meshwright.cli.progress import progress_bar

    kinds = plan_files.read_exports(exports or ())
    files = plan_files.Files(out=out, rank_map=rank_map, html=html, trace=trace, plot=plot, exports=kinds, export_dir=export_dir)
    files.check()
    wishes = Wishes(
        layout=layout, sets=tuple(sets or ()), gpus=gpus, max_gpus=max_gpus, batch=batch, seq=seq, precision=precision, software=software,
        profile=profile, objective=objective, deadline=deadline, budget_usd=budget, headroom_gib=headroom, provider=provider,
        price_kind=price_kind, region=region, pareto=pareto, keep=keep,
    )  # fmt: skip
    ask, left_out = plan_files.runnable(asked(model, cluster, workload, wishes), kinds)
    unchanged = plan_files.runnable(without_sets(model, cluster, workload, wishes), kinds)[0] if sets else None
    with progress_bar() as progress:
        answer = plan_answer.answered(ask, wishes, progress, unchanged=unchanged, explained=explain)
        written = files.write(answer, progress, left_out)
    if as_json:
        plan_show.show_as_json(answer, written)
    else:
        plan_show.show_tables(answer, written)

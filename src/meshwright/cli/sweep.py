"""The best plan at several numbers of accelerators: weak or strong scaling, with error bars."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.describe.hardware import FORMAT_OF_RECIPE


def sweep(
    model: Annotated[str, typer.Argument(help="A catalogue name, a TOML file or a config.json.")],
    cluster: Annotated[str, typer.Argument(help="A catalogue name or a TOML file.")],
    workload: Annotated[str, typer.Argument(help="A catalogue name or a TOML file.")],
    gpus: Annotated[str, typer.Option(help="Numbers of accelerators: 512,1024,2048.")],
    mode: Annotated[str, typer.Option(help="weak: the batch grows with the machine; strong: it stays.")] = "weak",
    base: Annotated[int | None, typer.Option(min=1, help="The size that has the workload's batch.", show_default=False)] = None,
    layout: Annotated[str, typer.Option(help="tp=4,cp=2,...: fixes these; the rest is searched.")] = "",
    sets: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE: what if.", show_default=False)] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences a step, instead of the workload's.", show_default=False)] = None,
    seq: Annotated[int | None, typer.Option(help="Tokens a sequence, instead of the workload's.", show_default=False)] = None,
    precision: Annotated[str, typer.Option(help=f"{', '.join(FORMAT_OF_RECIPE)}; else the workload's.")] = "",
    software: Annotated[str, typer.Option(help="A release (v5.1, nemo-26.04) or a profile of calibrate; else the newest.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
) -> None:
    """Show how a job scales: the best plan at each size."""
    from meshwright.cli.plan_question import Wishes, asked
    from meshwright.cli.progress import progress_bar
    from meshwright.cli.sweep_show import read_sizes, show_as_json, show_tables
    from meshwright.plan.sweep import sweep as swept

    sizes = read_sizes(gpus, sets or ())
    wishes = Wishes(layout=layout, sets=tuple(sets or ()), batch=batch, seq=seq, precision=precision, software=software, keep=1)
    ask = asked(model, cluster, workload, wishes)
    with progress_bar() as progress:
        found = swept(ask, sizes, mode, base, progress)
    if as_json:
        show_as_json(ask, found)
    else:
        show_tables(ask, found)

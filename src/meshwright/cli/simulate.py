"""Run a plan on a machine with noise, broken links and dead nodes: hundreds of steps, or weeks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli.options import AsJson, Budget, PriceGiven, RunsDir


def simulate(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file written by `meshwright plan --out`.")],
    steps: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=1_000_000, help="Number of steps; default: all of them.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=2**62, help="Seed; the same seed gives the same bytes.")] = 0,
    seeds: Annotated[
        int, typer.Option(metavar="N", min=1, max=100_000, help="Number of runs, each with the next seed; only the first is written.")
    ] = 1,
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the run folder; default: from the plan file and the seed.")] = "",
    runs: RunsDir = Path("runs"),
    cluster: Annotated[str, typer.Option(metavar="NAME", help="Refuse a plan that was not made for this cluster.")] = "",
    software: Annotated[str, typer.Option(metavar="FILE", help="Software profile that the plan was made with.")] = "",
    jitter: Annotated[float, typer.Option(metavar="X", min=0.0, max=1000.0, help="Multiply the jitter of real logs by this factor.")] = 1.0,
    noise: Annotated[bool, typer.Option("--noise/--no-noise", help="Add noise as real logs show it, or run exactly as predicted.")] = True,
    slow_rank: Annotated[
        list[str] | None,
        typer.Option(metavar="RANK=FACTOR", help="Make a rank slower by this factor. May be given several times.", show_default=False),
    ] = None,
    planes_lost: Annotated[int, typer.Option(metavar="N", min=0, help="Number of network planes that NICs have lost.")] = 0,
    nics_hit: Annotated[int, typer.Option(metavar="N", min=0, help="Number of NICs that lost planes; 0: all.")] = 0,
    links_lost: Annotated[float, typer.Option(metavar="SHARE", help="Share of links between switches that are down, 0 to 1.")] = 0.0,
    neighbour: Annotated[float, typer.Option(metavar="SHARE", help="Share of links between switches that another job uses, 0 to 1.")] = 0.0,
    routing: Annotated[str, typer.Option(metavar="KIND", help="Route as hashed (ECMP), adaptive or spray; default: as described.")] = "",
    storage: Annotated[
        float | None, typer.Option(metavar="GB/S", help="Rate of storage in GB/s; default: as described.", show_default=False)
    ] = None,
    days: Annotated[
        float | None, typer.Option(metavar="DAYS", min=0.0, max=10_000, help="Simulate this many days with failures.", show_default=False)
    ] = None,
    failures: Annotated[
        str,
        typer.Option(metavar="NAME|FILE", help="Failure rates: llama3 (default), none, or a .toml file. Only valid with --days."),
    ] = "",
    checkpoint_every: Annotated[
        str, typer.Option(metavar="TIME", help="Work between checkpoints (10min); default: as advised. Only valid with --days.")
    ] = "",
    spares: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=100_000, help="Spare nodes; default: as advised. Only valid with --days.", show_default=False),
    ] = None,
    failed_nodes: Annotated[int, typer.Option(metavar="N", min=0, help="Nodes that are broken at the start. Only valid with --days.")] = 0,
    finish_by: Annotated[
        str, typer.Option(metavar="TIME|DATE", help="Give the probability of being done by 90d or 2027-03-01. Only valid with --days.")
    ] = "",
    faults: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Predict the effective time under the faults in this file.", show_default=False),
    ] = None,
    budget: Budget = None,
    price: PriceGiven = None,
    sizes: Annotated[bool, typer.Option("--sizes", help="Also advise for 1,024 to 131,072 accelerators. Only valid with --days.")] = False,
    as_json: AsJson = False,
) -> None:
    """Simulate a plan: jitter, stalls, lost planes, slow ranks; or weeks of failures.

    Examples:

      meshwright simulate plan.json --steps 500 --planes-lost 1

      meshwright simulate plan.json --days 54 --seeds 20 --finish-by 90d --json
    """
    options = {key: value for key, value in locals().items() if key not in ("plan", "as_json", "slow_rank", "faults")}
    if faults is not None:
        return _under_faults(plan, faults, {"steps": steps, "days": days, "failures": failures}, as_json=as_json)
    from meshwright.cli.progress import progress_bar
    from meshwright.cli.show import show
    from meshwright.cli.urls import check_on_disk
    from meshwright.say.simulation import simulation_document
    from meshwright.simulator.simulation import simulate as simulated

    check_on_disk(runs, "simulated runs")
    with progress_bar() as progress:
        found = simulated(plan, slow_rank=slow_rank or (), progress=progress, **options)
    show(simulation_document(found), as_json=as_json)
    if found.interrupted:
        raise typer.Abort


def _under_faults(plan: Path, faults: Path, others: dict[str, object], *, as_json: bool) -> None:
    """Replay a list of faults."""
    from meshwright.cli.show import show
    from meshwright.errors import InputError
    from meshwright.plan.plan import read_plan
    from meshwright.say.fault_trace import fault_trace_document
    from meshwright.simulator.fault_trace import read_trace, replayed

    given = [name for name, value in others.items() if value]
    if given:
        raise InputError(f"--{given[0]} has no meaning with --faults", where=f"--{given[0]}", fix="the file says how many steps there are")
    show(fault_trace_document(replayed(read_plan(plan), read_trace(faults))), as_json=as_json)

"""Run a plan on a machine with noise, broken links and dead nodes: hundreds of steps, or weeks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def simulate(
    plan: Annotated[Path, typer.Argument(help="A plan file of `meshwright plan --out`.")],
    steps: Annotated[int | None, typer.Option(min=1, max=1_000_000, help="Steps; else to the workload's end.", show_default=False)] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**62, help="The same seed gives the same bytes.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, max=100_000, help="Runs, each with the next seed; the folder holds the first.")] = 1,
    name: Annotated[str, typer.Option(help="Of the run's folder; else of the plan file and the seed.")] = "",
    runs: Annotated[Path, typer.Option(help="Where run folders are.")] = Path("runs"),
    cluster: Annotated[str, typer.Option(help="Refuse a plan that was not made for this machine.")] = "",
    software: Annotated[str, typer.Option(help="A profile of calibrate that the plan was made with.")] = "",
    jitter: Annotated[float, typer.Option(min=0.0, max=1000.0, help="So many times the jitter that logs show.")] = 1.0,
    quiet: Annotated[bool, typer.Option("--no-noise", help="As predicted: nothing is disturbed.")] = False,
    slow_rank: Annotated[list[str] | None, typer.Option(help="RANK=FACTOR: a rank so many times as slow.", show_default=False)] = None,
    planes_lost: Annotated[int, typer.Option(min=0, help="Planes that NICs have lost.")] = 0,
    nics_hit: Annotated[int, typer.Option(min=0, help="NICs that lost planes; 0: all.")] = 0,
    links_lost: Annotated[float, typer.Option(help="Share of links between switches that are down.")] = 0.0,
    neighbour: Annotated[float, typer.Option(help="Share of those links that another job wants.")] = 0.0,
    routing: Annotated[str, typer.Option(help="As if the fabric were hashed (ECMP), adaptive or spray.")] = "",
    storage: Annotated[float | None, typer.Option(help="GB/s that storage feeds.", show_default=False)] = None,
    days: Annotated[float | None, typer.Option(min=0.0, max=10_000, help="Weeks with failures: so many days.", show_default=False)] = None,
    failures: Annotated[str, typer.Option(help="Rates by cause: llama3 (if not given), none, or a .toml file.")] = "",
    checkpoint_every: Annotated[str, typer.Option(help="10min: of work between checkpoints; else as advised.")] = "",
    spares: Annotated[int | None, typer.Option(min=0, max=100_000, help="Spare nodes; else as advised.", show_default=False)] = None,
    failed_nodes: Annotated[int, typer.Option(min=0, help="Nodes that are broken when the run starts.")] = 0,
    finish_by: Annotated[str, typer.Option(help="90d or 2027-03-01: the chance of being done by then.")] = "",
    budget: Annotated[
        str | None, typer.Option(help="500USD: refused if predicted to pass it, ended if it does; and the chance.", show_default=False)
    ] = None,
    price: Annotated[str | None, typer.Option(help="2.5USD/h for one accelerator, not the listed price.", show_default=False)] = None,
    sizes: Annotated[bool, typer.Option("--sizes", help="With --days: advice for 1,024 to 131,072 accelerators.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
) -> None:
    """Simulate a plan: jitter, stalls, lost planes, slow ranks; or weeks of failures."""
    from meshwright.cli import simulate_answer, simulate_show
    from meshwright.cli.progress import progress_bar
    from meshwright.cli.simulate_question import Wishes, asked

    wishes = Wishes(
        steps=steps, seed=seed, seeds=seeds, name=name, runs=runs, cluster=cluster, software=software, jitter=jitter, quiet=quiet,
        slow_ranks=tuple(slow_rank or ()), planes_lost=planes_lost, nics_hit=nics_hit, links_lost=links_lost, neighbour=neighbour,
        routing=routing, storage_gb_per_s=storage, days=days, failures=failures, checkpoint_every=checkpoint_every, spares=spares,
        failed_nodes=failed_nodes, finish_by=finish_by, budget=budget, price=price, sizes=sizes,
    )  # fmt: skip
    ask = asked(plan, wishes)
    with progress_bar() as progress:
        answer = simulate_answer.answered(ask, progress)
    if as_json:
        simulate_show.show_as_json(answer)
    else:
        simulate_show.show_tables(answer)
    if answer.interrupted:
        raise typer.Abort

"""Train a plan for real."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from meshwright.cli import run_options as options
from meshwright.cli.options import AsJson, Budget, PriceGiven, ProfileFile


def train(
    context: typer.Context,
    plan: Annotated[
        Path | None,
        typer.Argument(
            metavar="PLAN", help="A plan file written by `meshwright plan --out`; without it, a small model is planned for this machine."
        ),
    ] = None,
    layout: Annotated[str, typer.Option(metavar="LAYOUT", help="tp=2,cp=2,...: degrees and choices instead of the plan's.")] = "",
    steps: options.Steps = None,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the run folder; default: model, layout and time.", show_default=False)
    ] = "",
    runs: options.RunsPlace = Path("runs"),
    resume: options.Resume = False,
    resume_if_exists: options.ResumeIfExists = False,
    keep_going: options.KeepGoing = False,
    nodes: options.Nodes = 1,
    node: options.Node = 0,
    meet: options.Meet = "",
    skip_batches: options.SkipBatches = 3,
    spike_deviations: options.SpikeDeviations = 20.0,
    rebalance: options.Rebalance = False,
    bad_nodes: options.BadNodes = None,
    memory_every: options.MemoryEvery = 1,
    memberships: options.Memberships = None,
    corpus: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR|URL", help="Corpus to train on, instead of the workload's: a folder, or s3://... or az://...", show_default=False
        ),
    ] = None,
    start_from: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Hugging Face folder whose weights the run starts from.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=2**63 - 1, help="Seed of the weights and of the order of samples.")] = 0,
    benchmark: options.Benchmark = "",
    checkpoint_every: options.CheckpointEvery = None,
    save: options.Save = True,
    keep: options.Keep = 3,
    keep_every: options.KeepEvery = 0,
    stall_timeout: options.StallTimeout = 10.0,
    grace: options.Grace = 30.0,
    rendezvous_timeout: options.RendezvousTimeout = 60.0,
    secret: options.Secret = None,
    ranks_per_gpu: options.RanksPerGpu = 1,
    trace_from: options.TraceFrom = 0,
    allow_changed: options.AllowChanged = None,
    profile: ProfileFile = "",
    budget: Budget = None,
    price: PriceGiven = None,
    as_json: AsJson = False,
) -> None:
    """Train a plan to its target, and show the result next to the forecast.

    Examples:

      meshwright train --steps 200 --name first

      meshwright train plan.json --corpus corpora/books --budget 500USD --json
    """
    asked: dict[str, Any] = {key: value for key, value in locals().items() if key not in ("context", "allow_changed")}
    from meshwright.cli.train_arguments import Wishes
    from meshwright.cli.train_run import run

    given = options.given_options(context)
    code = run(Wishes(**options.named_wishes(asked), allow_changed=tuple(allow_changed or ()), given=given))
    if code:
        raise typer.Exit(code)

"""Train a plan for real."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli.options import AsJson, Budget, PriceGiven, ProfileFile

# Wishes have their unit in their name.
RENAMED = {"stall_timeout": "stall_timeout_s", "grace": "grace_s", "rendezvous_timeout": "rendezvous_timeout_s"}


def train(
    context: typer.Context,
    plan: Annotated[
        Path | None,
        typer.Argument(
            metavar="PLAN", help="A plan file written by `meshwright plan --out`; without it, a small model is planned for this machine."
        ),
    ] = None,
    layout: Annotated[str, typer.Option(metavar="LAYOUT", help="tp=2,cp=2,...: degrees and choices instead of the plan's.")] = "",
    steps: Annotated[int | None, typer.Option(metavar="N", min=1, help="Stop after this number of steps.", show_default=False)] = None,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the run folder; default: model, layout and time.", show_default=False)
    ] = "",
    runs: Annotated[
        Path, typer.Option(metavar="DIR|URL", help="Folder of the run folders, or s3://BUCKET/FOLDER or az://CONTAINER/FOLDER.")
    ] = Path("runs"),
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue a run as it was started; without --name, the newest in the runs folder."),
    ] = False,
    resume_if_exists: Annotated[
        bool, typer.Option("--resume-if-exists", help="Continue the run of that --name, or start it: for jobs that are restarted.")
    ] = False,
    keep_going: Annotated[
        bool,
        typer.Option(
            "--keep-going",
            help="Go on after a crash or a hang: without the lost replica, which is started again, or from the newest checkpoint.",
        ),
    ] = False,
    skip_batches: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Batches to skip in 1,000 steps whose loss is NaN or far too high twice; then the run stops."
        ),
    ] = 3,
    spike_deviations: Annotated[
        float,
        typer.Option(metavar="K", min=0.0, help="Standard deviations above the last losses from which a loss is too high; 0: never."),
    ] = 20.0,
    rebalance: Annotated[
        bool,
        typer.Option("--rebalance", help="Give replicas with a slow rank fewer micro-batches; the batch stays the same."),
    ] = False,
    bad_nodes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="List that suspect nodes are added to; default: bad-nodes.json in --runs.", show_default=False),
    ] = None,
    memory_every: Annotated[
        int,
        typer.Option(
            metavar="STEPS",
            min=0,
            help="With --keep-going: steps between copies of a sharded state in a neighbour's memory; 0: none.",
        ),
    ] = 1,
    memberships: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="With --keep-going: have as many replicas at each step as that run had; a run folder, or a file of its events.",
            show_default=False,
        ),
    ] = None,
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
    benchmark: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the benchmark in the MLPerf log; an official one is checked.")
    ] = "",
    checkpoint_every: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="STEPS", help="Steps between checkpoints; 0: only at the end; default: every few minutes.", show_default=False
        ),
    ] = None,
    save: Annotated[bool, typer.Option("--save/--no-save", help="Whether to save checkpoints during the run and at its end.")] = True,
    keep: Annotated[int, typer.Option(metavar="N", min=1, help="Number of checkpoints to keep.")] = 3,
    keep_every: Annotated[
        int, typer.Option(min=0, metavar="STEPS", help="Never delete checkpoints whose step is a multiple of this number; 0: none.")
    ] = 0,
    stall_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=1.0, help="Seconds that a rank may make no progress; at least five slow steps."),
    ] = 10.0,
    grace: Annotated[float, typer.Option(metavar="SECONDS", min=1.0, help="Seconds to save a checkpoint after SIGTERM.")] = 30.0,
    rendezvous_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1.0, help="Seconds in which the ranks of a launcher must find each other.")
    ] = 60.0,
    secret: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of the user alone with a secret that the ranks of a launcher prove to each other; without it, others may join.",
            show_default=False,
        ),
    ] = None,
    ranks_per_gpu: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=48,
            help="Ranks that share one GPU, to try a layout of many GPUs on few: needs NCCL 2.30 and MPS. Slower than real GPUs.",
        ),
    ] = 1,
    trace_from: Annotated[
        int,
        typer.Option(
            metavar="STEP",
            min=0,
            help="Profile three steps from this one on: traces and the share of communication behind compute; 0: none.",
        ),
    ] = 0,
    allow_changed: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT",
            help="plan, corpus or code: may differ from the checkpoint's. May be given several times.",
            show_default=False,
        ),
    ] = None,
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
    options = {key: value for key, value in locals().items() if key not in ("context", "allow_changed")}
    from meshwright.cli.train_arguments import Wishes
    from meshwright.cli.train_run import run

    asked = {RENAMED.get(key, key): value for key, value in options.items()}
    wishes = Wishes(**asked, allow_changed=tuple(allow_changed or ()), given=given_options(context, RENAMED))
    code = run(wishes)
    if code:
        raise typer.Exit(code)


def given_options(context: typer.Context, renamed: Mapping[str, str]) -> frozenset[str]:
    """What was written on the command line, by the names of the wishes: the rest are defaults."""
    written = {name for name in context.params if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE"}
    return frozenset(renamed.get(name, name) for name in written)

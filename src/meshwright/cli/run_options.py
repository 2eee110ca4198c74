"""Options of the commands that run ranks, `train` and `tune`, declared once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

Steps = Annotated[int | None, typer.Option(metavar="N", min=1, help="Stop after this number of steps.", show_default=False)]
RunsPlace = Annotated[
    Path, typer.Option(metavar="DIR|URL", help="Folder of the run folders, or s3://BUCKET/FOLDER or az://CONTAINER/FOLDER.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue a run as it was started; without --name, the newest in the runs folder.")]
ResumeIfExists = Annotated[
    bool, typer.Option("--resume-if-exists", help="Continue the run of that --name, or start it: for jobs that are restarted.")
]
KeepGoing = Annotated[
    bool,
    typer.Option(
        "--keep-going",
        help="Go on after a crash or a hang: without the lost replica, which is started again, or from the newest checkpoint.",
    ),
]
SkipBatches = Annotated[
    int,
    typer.Option(metavar="N", min=0, help="Batches to skip in 1,000 steps whose loss is NaN or far too high twice; then the run stops."),
]
SpikeDeviations = Annotated[
    float,
    typer.Option(metavar="K", min=0.0, help="Standard deviations above the last losses from which a loss is too high; 0: never."),
]
Rebalance = Annotated[
    bool, typer.Option("--rebalance", help="Give replicas with a slow rank fewer micro-batches; the batch stays the same.")
]
BadNodes = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="List that suspect nodes are added to; default: bad-nodes.json in --runs.", show_default=False),
]
MemoryEvery = Annotated[
    int,
    typer.Option(
        metavar="STEPS", min=0, help="With --keep-going: steps between copies of a sharded state in a neighbour's memory; 0: none."
    ),
]
Memberships = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN",
        help="With --keep-going: have as many replicas at each step as that run had; a run folder, or a file of its events.",
        show_default=False,
    ),
]
Nodes = Annotated[
    int, typer.Option(metavar="N", min=1, help="With --keep-going: nodes that the plan is dealt to; started on each of them.")
]
Node = Annotated[
    int, typer.Option(metavar="I", min=0, help="Number of this node: 0 leads the others; from N on, it is a spare for a node that is lost.")
]
Meet = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Where the nodes meet: an address of node 0 that all of them reach.", show_default=False)
]
Benchmark = Annotated[str, typer.Option(metavar="NAME", help="Name of the benchmark in the MLPerf log; an official one is checked.")]
CheckpointEvery = Annotated[
    int | None,
    typer.Option(
        min=0, metavar="STEPS", help="Steps between checkpoints; 0: only at the end; default: every few minutes.", show_default=False
    ),
]
Save = Annotated[bool, typer.Option("--save/--no-save", help="Whether to save checkpoints during the run and at its end.")]
Keep = Annotated[int, typer.Option(metavar="N", min=1, help="Number of checkpoints to keep.")]
KeepEvery = Annotated[
    int, typer.Option(min=0, metavar="STEPS", help="Never delete checkpoints whose step is a multiple of this number; 0: none.")
]
StallTimeout = Annotated[
    float, typer.Option(metavar="SECONDS", min=1.0, help="Seconds that a rank may make no progress; at least five slow steps.")
]
Grace = Annotated[float, typer.Option(metavar="SECONDS", min=1.0, help="Seconds to save a checkpoint after SIGTERM.")]
RendezvousTimeout = Annotated[
    float, typer.Option(metavar="SECONDS", min=1.0, help="Seconds in which the ranks of a launcher must find each other.")
]
Secret = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File of the user alone with a secret that the ranks of a launcher prove to each other; without it, others may join.",
        show_default=False,
    ),
]
RanksPerGpu = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        max=48,
        help="Ranks that share one GPU, to try a layout of many GPUs on few: needs NCCL 2.30 and MPS. Slower than real GPUs.",
    ),
]
TraceFrom = Annotated[
    int,
    typer.Option(
        metavar="STEP",
        min=0,
        help="Profile three steps from this one on: traces and the share of communication behind compute; 0: none.",
    ),
]
AllowChanged = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WHAT",
        help="plan, corpus, code, or base in fine-tuning: may differ from the checkpoint's. May be given several times.",
        show_default=False,
    ),
]

# Wishes have their unit in their name, and one name for what both commands read.
RENAMED = {
    "stall_timeout": "stall_timeout_s",
    "grace": "grace_s",
    "rendezvous_timeout": "rendezvous_timeout_s",
    "model_dir": "start_from",
    "data": "corpus",
}


def named_wishes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by the names that wishes have for them."""
    return {RENAMED.get(name, name): value for name, value in options.items()}


def given_options(context: typer.Context) -> frozenset[str]:
    """What was written on the command line, by the names of the wishes: the rest are defaults."""
    written = {name for name in context.params if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE"}
    return frozenset(RENAMED.get(name, name) for name in written)

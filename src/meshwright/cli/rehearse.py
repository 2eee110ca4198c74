"""Run one rank of a plan on the device at hand, alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.options import AsJson

if TYPE_CHECKING:
    from meshwright.layout import Layout
    from meshwright.plan.plan import Plan
    from meshwright.predict.forecast import Forecast
    from meshwright.predict.rehearsed import Rehearsal

STEPS = 3
MOST_PROCESSES = 8  # that kernels are timed in on a processor


def rehearse(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file written by `meshwright plan --out`.")],
    rank: Annotated[int | None, typer.Option(metavar="R", min=0, help="Rank to run.", show_default=False)] = None,
    stage: Annotated[
        int | None,
        typer.Option(metavar="S", min=0, help="Pipeline stage whose first rank to run; default: the fullest.", show_default=False),
    ] = None,
    steps: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Number of timed steps, after two others.")] = STEPS,
    software: Annotated[str, typer.Option(metavar="FILE", help="Software profile that the plan was made with.")] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Time this model's kernels too, and write a hardware profile for `plan --profile`.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run one rank of a plan for real, alone, and show compute and memory next to the forecast.

    The rank runs its own part of the model at full size; local copies stand in for communication, which stays predicted.

    Examples:

      meshwright rehearse plan.json

      meshwright rehearse plan.json --stage 7 --steps 5 --out rehearsed.json --json
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which counts memory, would announce itself
    from meshwright.cli.measure import check_place
    from meshwright.cli.show import show
    from meshwright.cli.train_run import torch_or_error
    from meshwright.plan.plan import forecast_of, read_plan
    from meshwright.plan.stack.own import check_trainable
    from meshwright.predict.practice import MESHWRIGHT
    from meshwright.predict.software import is_release
    from meshwright.say.rehearsal import rehearsal_document

    if out:
        check_place(out)
    found = read_plan(plan)
    check_trainable(found.model, found.workload, found.layout)
    forecast = forecast_of(found, software or (MESHWRIGHT if is_release(found.software) else ""))  # what runs is our own trainer
    number = _rank(found.layout, forecast, rank, stage)
    torch_or_error()
    from meshwright.train.rehearse.rank import Part, check_room, device_here, name_of, room_of, share_cores
    from meshwright.train.rehearse.rank import rehearse as rehearsed

    device = device_here()
    is_on_cores = found.cluster.accelerator.architecture == "cpu" and device.type == "cpu"
    crowd = share_cores(found.layout.num_ranks) if is_on_cores else 1.0
    part = Part(model=found.model, workload=found.workload, layout=found.layout, rank=number, num_steps=steps, crowd=crowd)
    predicted = next(one for one in forecast.memory if one.stage == part.stage)
    check_room(predicted, room_of(device), name_of(device), device.type)
    seen = rehearsed(part, device, report)
    document = rehearsal_document(found.name, forecast, seen, planned_for=found.software)
    if out:
        report("timing kernels for the profile")
        write_profile(out, found, seen, report)
    show(document.with_files({"profile": out}), as_json=as_json)


def report(what: str) -> None:
    """Say what is being done."""
    print(f"meshwright: {what}", file=sys.stderr, flush=True)


def write_profile(path: Path, plan: Plan, seen: Rehearsal, report: Callable[[str], None]) -> None:
    """Write a hardware profile: this model's kernels on the device at hand, and the chunks of the rank that was rehearsed."""
    from meshwright.describe.profile import profile_text
    from meshwright.files import write_whole
    from meshwright.train.measure.machine import QUICK, asked_of, device_here, measure
    from meshwright.train.rehearse.profile import with_rank

    device, layout, workload = device_here(), plan.layout, plan.workload
    asked = asked_of(
        plan.model, device, seq_len=workload.seq_len, micro_batch=layout.micro_batch, precisions=(workload.precision,), packed=False
    )
    processes = 1 if device.type == "cuda" else min(layout.num_ranks, MOST_PROCESSES)
    profile = measure([asked], device, processes, report, effort=QUICK)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, profile_text(with_rank(profile, plan.model, workload, layout, seen)))


def _rank(layout: Layout, forecast: Forecast, rank: int | None, stage: int | None) -> int:
    """The rank that is asked for; without a wish, the first of the stage that is predicted to be the fullest."""
    from meshwright.errors import InputError

    if rank is not None and stage is not None:
        raise InputError("a rank and a stage are given", where="--rank, --stage", fix="give one of them: a rank is on one stage")
    if rank is not None:
        if rank >= layout.num_ranks:
            raise InputError(
                f"the plan has no rank {rank:,}", where="--rank", fix=f"choose from 0 to {layout.num_ranks - 1:,}, or use --stage"
            )
        return rank
    if stage is None:
        stage = max(forecast.memory, key=lambda one: one.peak_bytes).stage
    if stage >= layout.pp:
        raise InputError(f"the plan has no stage {stage:,}", where="--stage", fix=f"choose from 0 to {layout.pp - 1}")
    return stage * layout.stride("pp")

"""The best plan at several numbers of accelerators: weak or strong scaling, with intervals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from meshwright.cli.options import (
    AsJson,
    ClusterName,
    FixedLayout,
    Ideal,
    ModelName,
    ProfileFile,
    Sets,
    SoftwareName,
    StackName,
    WorkloadName,
)
from meshwright.errors import InputError


def sweep(
    model: ModelName,
    cluster: ClusterName,
    workload: WorkloadName,
    gpus: Annotated[str, typer.Option(metavar="N,N,...", help="Numbers of accelerators to plan for: 512,1024,2048.")],
    mode: Annotated[str, typer.Option(metavar="MODE", help="weak: the batch grows with the cluster; strong: the batch stays.")] = "weak",
    base: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of accelerators that has the workload's own batch.", show_default=False)
    ] = None,
    layout: FixedLayout = "",
    sets: Sets = None,
    stack: StackName = "",
    software: SoftwareName = "",
    profile: ProfileFile = "",
    ideal: Ideal = False,
    as_json: AsJson = False,
) -> None:
    """Show how a job scales: the best plan at each size.

    Examples:

      meshwright sweep llama-3.1-405b azure-gb200-128 mlperf-llama31-405b --gpus 2048,4096,8192

      meshwright sweep llama-3.1-70b dgx-h100-superpod pretrain-1t --gpus 64,128,256 --mode strong --json
    """
    from meshwright.cli.progress import progress_bar
    from meshwright.cli.show import show
    from meshwright.job import Job
    from meshwright.plan.sweep import sweep_job
    from meshwright.predict.outcome import Terms
    from meshwright.say.sweep import sweep_document

    sizes = _sizes(gpus, sets or ())
    job = Job(model, cluster, workload, software, profile=profile, changes=sets or ())
    with progress_bar() as progress:
        found = sweep_job(job, sizes, mode=mode, base=base, layout=layout, stack=stack, terms=Terms(ideal=ideal), progress=progress)
    show(sweep_document(found), as_json=as_json)


def _sizes(text: str, sets: Iterable[str]) -> list[int]:
    """The numbers in `512,1024`; an error if something else sets them too."""
    if any(one.partition("=")[0].strip() == "gpus" for one in sets):
        raise InputError("the number of accelerators is given twice", where="--set gpus", fix="name the sizes in --gpus only")
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if sizes and min(sizes) < 1:
        raise InputError(f"{min(sizes)} accelerators cannot train", where="--gpus", fix="write whole numbers from 1: --gpus 512,1024")
    if not sizes:
        raise InputError(f"cannot read numbers of accelerators in {text!r}", where="--gpus", fix="write --gpus 512,1024,2048")
    return sizes

"""Make a software profile from the logs of one run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli.options import AsJson


def calibrate(
    logs: Annotated[list[Path], typer.Argument(metavar="LOG", help="MLPerf logs of one job, or CSV files with step,step_s.")],
    layout: Annotated[
        str, typer.Option(metavar="LAYOUT", help="Layout of the run: tp=8,cp=2,pp=8,vp=8,mbs=1,...; without dp, dp fills the cluster.")
    ],
    cluster: Annotated[str, typer.Option(metavar="NAME|FILE", help="Cluster: a catalogue name or a TOML file.")],
    model: Annotated[str, typer.Option(metavar="NAME|FILE", help="Model of the run; default: the benchmark's.")] = "",
    workload: Annotated[str, typer.Option(metavar="NAME|FILE", help="Workload of the run; default: the benchmark's.")] = "",
    gpus: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of accelerators in use; default: as logged.", show_default=False)
    ] = None,
    batch: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of sequences per step; default: as logged.", show_default=False)
    ] = None,
    precision: Annotated[
        str, typer.Option(metavar="NAME", help="Precision recipe of the run (bf16, fp8, mxfp8, nvfp4, ...); default: the workload's.")
    ] = "",
    release: Annotated[str, typer.Option(metavar="NAME", help="Software release to start from (v5.0); default: the closest.")] = "",
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the profile; default: from the first log.")] = "",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the profile to this file, for `predict --software`.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a software profile from one run: how fast its software computes.

    Examples:

      meshwright calibrate result_0.txt --layout tp=8,cp=2,pp=8,vp=8,mbs=1 --cluster dgx-h100-superpod --out profile.json

      meshwright calibrate steps.csv --model llama-3.1-8b --workload pretrain-1t --cluster dgx-h100-superpod --gpus 64 --layout tp=2 --json
    """
    from meshwright.cli.show import show
    from meshwright.evidence.calibrate import calibrate as calibrated
    from meshwright.evidence.calibrate import described, observe
    from meshwright.files import check_ending
    from meshwright.layout import read_choices
    from meshwright.say.calibration import calibration_document

    check_ending(out, "the profile", ".json")
    read_choices(layout)  # a mistyped layout is reported before any log is read
    observed = observe(logs)
    run = described(
        observed, layout, cluster, model=model, workload=workload, num_accelerators=gpus or 0, global_batch=batch or 0, precision=precision
    )
    result = calibrated(observed, run, release, name)
    if out:
        result.write(out)
    question = shlex.join([model or run.job.model.name, cluster, workload or run.job.workload.name, "--layout", layout])
    show(calibration_document(result, question, out), as_json=as_json)

"""Make a software profile from the logs of one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.options import AsJson

if TYPE_CHECKING:
    from meshwright.evidence.calibrate import Calibration


def calibrate(
    logs: Annotated[list[Path], typer.Argument(metavar="LOG", help="MLPerf logs of one job, or CSV files with step,step_time_s.")],
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
    from meshwright.cli.show import show_json
    from meshwright.evidence.calibrate import calibrate as calibrated
    from meshwright.evidence.calibrate import described, observe
    from meshwright.layout import read_choices

    read_choices(layout)  # reports a typing error before any log is read
    observed = observe(logs)
    run = described(
        observed, layout, cluster, model=model, workload=workload, num_accelerators=gpus or 0, global_batch=batch or 0, precision=precision
    )
    result = calibrated(observed, run, release, name)
    if out:
        result.write(out)
    if as_json:
        show_json(result.as_json())
    else:
        _show(result, f"{model or run.job.model.name} {cluster} {workload or run.job.workload.name} --layout {layout}", out)


def _show(result: Calibration, question: str, out: Path | None) -> None:
    from meshwright.cli.show import show_pairs, show_text

    show_pairs(f"software profile {result.profile.name}", _pairs(result))
    if result.is_unusual:
        show_text("So large a change is more often a wrong layout, precision or batch than other software: compare them with the run.\n")
    workload, file = result.run.job.workload, out or "profile.json"
    options = f"--gpus {result.run.job.cluster.num_accelerators} --batch {workload.global_batch} --seq {workload.seq_len}"
    show_text(f"written to {out}; use it with" if out else f"add --out {file} to keep it; then use it with")
    print(f"  meshwright predict {question} {options} --precision {workload.precision} --software {file}")


def _pairs(result: Calibration) -> list[tuple[str, str]]:
    from meshwright.units import seconds

    observed, job, workload = result.observed, result.run.job, result.run.job.workload
    measured_s, steps = observed.step_time_s, observed.steps
    spread = f"{steps.robust_std_pct:.2f} % from step to step"
    if len(observed.files) > 1:
        spread += f", {observed.run_spread_pct:.2f} % from the fastest to the slowest file"

    def against(predicted_s: float) -> str:
        error_pct = round(100 * (predicted_s / measured_s - 1), 2) + 0.0  # no minus before zero
        return f"{seconds(predicted_s)} ({error_pct:+.2f} %)"

    return [
        ("from", f"{len(observed.files)} files" if len(observed.files) > 1 else observed.files[0]),
        ("job", f"{job.model.name}, {workload.global_batch} x {workload.seq_len} tokens a step in {workload.precision}"),
        ("machine", f"{job.cluster.num_accelerators} {job.cluster.accelerator.name} as in {job.cluster.name}"),
        ("layout", str(result.run.layout)),
        ("measured step", f"{seconds(measured_s)}, median of {len(steps.steady_s)} steady steps ({steps.method})"),
        ("its spread", spread),
        (f"predicted before, release {result.release.release}", against(result.release_step_s)),
        ("predicted after", against(result.profile_step_s)),
        ("this software", result.verdict),
    ]

"""The document of a calibration: the software profile of one run, and how it changes the prediction."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshwright.evidence.calibrate import Calibration
from meshwright.say.document import Block, Document, Lines, Pairs, Text
from meshwright.say.forecast import layout_values
from meshwright.units import seconds

EXAMPLE_FILE = "profile.json"


def calibration_document(result: Calibration, question: str, out: Path | None) -> Document:
    """The whole document; `question` is what `meshwright predict` needs before its options, `out` the file that was written."""
    title = f"software profile {result.profile.name}"
    return Document(kind="calibration", title=title, blocks=tuple(_blocks(result, title, question, out)), values=_values(result, out))


def _blocks(result: Calibration, title: str, question: str, out: Path | None) -> Iterator[Block]:
    yield Pairs(title, tuple((name, value, "") for name, value in _pairs(result)))
    if result.is_unusual:
        yield Text("A change this large usually means a wrong layout, precision or batch, not other software: compare them with the run.")
    job = result.run.job
    changes = {"global_batch": job.workload.global_batch, "seq_len": job.workload.seq_len, "precision": job.workload.precision}
    options = " ".join(f"--set workload.{key}={value}" for key, value in changes.items())
    command = f"meshwright predict {question} --gpus {job.num_accelerators} {options} --software {shlex.quote(str(out or EXAMPLE_FILE))}"
    kept = f"written to {out}; use it with" if out else f"add --out {EXAMPLE_FILE} to keep it; then use it with"
    yield Lines(kept, (f"  {command}",))


def _pairs(result: Calibration) -> list[tuple[str, str]]:
    observed, job, workload = result.observed, result.run.job, result.run.job.workload
    measured_s, steps = observed.step_s, observed.steps
    spread = f"{steps.robust_std_pct:.2f} % from step to step"
    if len(observed.files) > 1:
        spread += f", {observed.run_spread_pct:.2f} % from the fastest to the slowest file"

    def against(predicted_s: float) -> str:
        error_pct = round(100 * (predicted_s / measured_s - 1), 2) + 0.0  # no minus before zero
        return f"{seconds(predicted_s)} ({error_pct:+.2f} %)"

    return [
        ("from", f"{len(observed.files)} files" if len(observed.files) > 1 else observed.files[0]),
        ("job", f"{job.model.name}, {workload.global_batch} x {workload.seq_len} tokens per step in {workload.precision}"),
        ("cluster", f"{job.num_accelerators} {job.cluster.accelerator.name} as in {job.cluster.name}"),
        ("layout", str(result.run.layout)),
        ("measured step", f"{seconds(measured_s)}, median of {len(steps.steady_s)} steady steps ({steps.method})"),
        ("its spread", spread),
        (f"predicted before, release {result.release.release}", against(result.release_step_s)),
        ("predicted after", against(result.profile_step_s)),
        ("this software", result.verdict),
    ]


def _values(result: Calibration, out: Path | None) -> dict[str, Any]:
    observed, job, layout = result.observed, result.run.job, result.run.layout
    return {
        "name": result.profile.name,
        "release": result.release.release,
        "logs": observed.files,
        "benchmark": observed.benchmark,
        "model": job.model.name,
        "cluster": job.cluster.name,
        "accelerator": job.cluster.accelerator.name,
        "num_accelerators": job.num_accelerators,
        "workload": job.workload.name,
        "precision": job.workload.precision,
        "seq_len": job.workload.seq_len,
        "global_batch": job.workload.global_batch,
        "layout": layout_values(layout),
        "num_micro_batches": layout.num_micro_batches(job.workload.global_batch),
        "measured_s": observed.step_s,
        "num_steps": len(observed.steps.steady_s),
        "robust_std_pct": observed.steps.robust_std_pct,
        "run_spread_pct": observed.run_spread_pct,
        "method": observed.steps.method,
        "release_step_s": result.release_step_s,
        "profile_step_s": result.profile_step_s,
        "change_pct": result.change_pct,
        "is_unusual": result.is_unusual,
        "profile": result.as_json(),
        "files": [{"what": "software profile", "path": str(out)}] if out else [],
    }

"""Mappings, runs and trials that the tests of mappings share."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from meshwright.describe.load import load_model, load_workload
from meshwright.job import Job
from meshwright.lab.cluster import lab_cluster
from meshwright.lab.description import Lab
from meshwright.lab.mapping import Mapping
from meshwright.lab.mapping_run import Tried
from meshwright.layout import Layout
from meshwright.plan.plan import plan_bytes, plan_of
from meshwright.predict.forecast import Forecast
from meshwright.record.entries import PARTS, StepRecord
from meshwright.record.header import RunHeader
from meshwright.record.writer import RunWriter


@cache
def forecast() -> Forecast:
    job = Job(load_model("llama-2m"), lab_cluster(Lab()), load_workload("python-stdlib"), profile="none")
    return job.forecast(Layout(tp=2, pp=2, dp=2, micro_batch=4, order=("tp", "cp", "dp", "pp")))


def a_mapping(name: str, predicted_s: float, slots: tuple[int, ...] = tuple(range(8))) -> Mapping:
    return Mapping(
        name=name,
        words=f"{name} across",
        layout=forecast().layout,
        slots=slots,
        predicted_s=predicted_s,
        forecast=forecast(),
        parts_s={**dict.fromkeys(PARTS, 0.0), "compute": predicted_s},
        crossing={"tp": 0.0, "pp": 1.0, "dp": 0.5},
    )


def a_trial(name: str, *, predicted_s: float, measured_s: float, error_s: float = 0.01, others_share: float = 0.0) -> Tried:
    parts = dict.fromkeys(PARTS, 0.0) | {"compute": measured_s * 0.75, "bubble": measured_s * 0.25}
    return Tried(
        mapping=a_mapping(name, predicted_s),
        run=Path("runs") / name,
        measured_s=measured_s,
        error_s=error_s,
        parts_s=parts,
        num_steps=10,
        others_share=others_share,
    )


def a_run(folder: Path, steps_s: list[float]) -> Path:
    """A run folder with steps of these lengths, all of it compute."""
    plan = plan_of(forecast())
    header = RunHeader(name=folder.name, kind="trained", seed=0, num_ranks=8, machine="a lab")
    with RunWriter.create(folder.parent, header, plan_bytes(plan)) as writer:
        for number, step_s in enumerate(steps_s, 1):
            writer.step(StepRecord(step=number, samples=number, loss=1.0, grad_norm=1.0, step_s=step_s, parts_s={"compute": step_s}))
    return folder

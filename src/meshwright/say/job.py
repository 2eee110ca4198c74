"""The document of a job without a layout: its model, cluster, workload and software."""

from __future__ import annotations

from meshwright.job import Job
from meshwright.say.document import Document, Pairs
from meshwright.units import parameters


def job_document(job: Job) -> Document:
    """A job as a table of its four parts."""
    cluster, workload = job.cluster, job.workload
    steps = workload.num_steps()
    rows = (
        ("model", job.model.name, f"{parameters(job.model.num_parameters)} parameters, {job.model.num_layers} layers"),
        ("cluster", cluster.name, f"{cluster.num_accelerators:,} {cluster.accelerator.name}"),
        (
            "workload",
            workload.name,
            f"{workload.global_batch:,} x {workload.seq_len:,} tokens per step" + (f", {steps:,} steps" if steps else ""),
        ),
        ("precision", workload.precision, ""),
        ("software", job.software.name, "priced by a hardware profile" if job.software.profile else ""),
    )
    return Document(kind="job", title=job.name, blocks=(Pairs(job.name, rows),))

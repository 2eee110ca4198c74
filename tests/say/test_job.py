"""A job as a table, before any layout is chosen."""

from __future__ import annotations

from meshwright.job import Job
from meshwright.say.job import job_document


def cells(job: Job) -> dict[str, tuple[str, ...]]:
    [block] = job_document(job).blocks
    return {row[0]: tuple(row[1:]) for row in block.rows}  # type: ignore[union-attr]


def test_a_job_names_its_parts() -> None:
    found = cells(Job("llama-3.1-8b", "dgx-h100-superpod", "mlperf-llama31-8b", gpus=64))
    assert found["model"][0] == "llama-3.1-8b" and "8.03 B parameters, 32 layers" in found["model"][1]
    assert found["cluster"][1] == "64 h100" and "tokens per step" in found["workload"][1]
    assert found["software"] == ("v6.0", "")


def test_a_workload_without_an_end_has_no_steps() -> None:
    ended = cells(Job("llama-3.1-8b", "dgx-h100-superpod", "pretrain-1t", gpus=64))
    assert "steps" in ended["workload"][1].rpartition(",")[2]


def test_a_notebook_shows_it() -> None:
    shown = Job("llama-3.1-8b", "dgx-h100-superpod", "pretrain-1t", gpus=64)._repr_html_()
    assert "<table" in shown and "dgx-h100-superpod" in shown

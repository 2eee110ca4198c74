"""Which noise a job has."""

from __future__ import annotations

import pytest

from meshwright.job import Job
from meshwright.simulator.noise_classes import CLASSES, COMMON, UNPIPELINED, class_named, class_of_job, fitted_noise, usual_noise


@pytest.mark.parametrize(
    "architecture, number_format, release, name",
    [
        ("hopper", "fp8", "v3.0", "first"),
        ("hopper", "fp8", "v4.1", "early"),
        ("hopper", "fp8", "v5.0", "hopper"),
        ("blackwell", "fp8", "v5.1", "blackwell"),
        ("blackwell-ultra", "fp4", "v6.0", "blackwell-fp4"),
        ("cdna3", "fp8", "v5.1", COMMON),
    ],
)
def test_software_chips_and_format_decide(architecture: str, number_format: str, release: str, name: str) -> None:
    assert class_named(architecture, number_format, release) == name and name in CLASSES


def test_without_a_pipeline_nothing_else_matters() -> None:
    job = Job("llama-3.1-8b", "dgx-h100-superpod", "mlperf-llama31-8b", gpus=64)
    assert class_of_job(job, job.layout("tp=2")) == UNPIPELINED != class_of_job(job, job.layout("tp=2,pp=2"))
    assert usual_noise(job, job.layout("tp=2")) == fitted_noise().of(UNPIPELINED)


def test_a_class_without_logs_has_the_common_values() -> None:
    assert fitted_noise().of("nobody") == fitted_noise().of(COMMON)
    assert all(count > 0 for count in fitted_noise().num_logs.values())

"""The best layouts of a job, for a stack."""

from __future__ import annotations

import pytest

from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.plan.best import best_forecasts
from meshwright.plan.stack import runs_on


def test_a_search_gives_forecasts_of_layouts_that_the_stack_runs() -> None:
    one = Job("llama-3.1-8b", "dgx-h100-superpod", "pretrain-1t", gpus=32)
    found = best_forecasts(one, keep=3, stack="torchtitan")
    assert len(found) == 3 and {forecast.job.software.kind for forecast in found} == {"torchtitan"}
    assert all("torchtitan" in runs_on(forecast.job, forecast.layout) for forecast in found)
    with pytest.raises(InputError, match="no stack named"):
        best_forecasts(one, stack="none such")

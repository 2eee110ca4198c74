"""Whose accelerators the stacks drive."""

from __future__ import annotations

from dataclasses import replace

import pytest
from stack_jobs import JOBS

from meshwright.describe.load import accelerator
from meshwright.errors import InputError
from meshwright.plan.stack import asked_of
from meshwright.plan.stack.rule import Asked
from meshwright.plan.stack.vendors import check_vendor


def test_a_launcher_of_ranks_knows_the_vendor() -> None:
    check_vendor("mpirun", asked_of(JOBS["dense"]))
    tpu = replace(JOBS["dense"].cluster, accelerator=accelerator("tpu-v5p"))
    with pytest.raises(InputError, match="mpirun does not run on tpu-v5p of Google"):
        check_vendor("mpirun", Asked(JOBS["dense"].model, JOBS["dense"].workload, tpu))

"""Programs of an engine are called with a time limit."""

from __future__ import annotations

import pytest

from meshwright.engines.programs import Answer, call
from meshwright.errors import InputError


def test_what_a_program_answers():
    assert call(["sh", "-c", "cat; echo b >&2; exit 3"], "X", text="a") == Answer(3, "a", "b\n")


def test_a_program_that_is_not_there_is_an_engine_that_is_not_there():
    with pytest.raises(InputError, match="there is no Slurm here: the command sbatchx is not found"):
        call(["sbatchx"], "Slurm")


def test_a_program_that_does_not_end_is_ended():
    with pytest.raises(InputError, match=r"Slurm did not answer within 0\.1 s"):
        call(["sleep", "30"], "Slurm", timeout_s=0.1)


@pytest.mark.parametrize(
    "out, err, reason",
    [
        ("", "warning: x\nsbatch: error: no\n", "sbatch: error: no"),
        ("", "first\nsecond", "first"),
        ("only", "", "only"),
        ("", "", "it ended with status 1"),
        ("", "a\x1b[2Jb", "a\\x1b[2Jb"),
    ],
)
def test_the_line_that_says_what_is_wrong(out, err, reason):
    assert Answer(1, out, err).reason == reason

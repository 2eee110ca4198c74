"""What a calibration says: measured, before and after, and a command that can be copied."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from meshwright.evidence.calibrate import Calibration, LoggedRun, Observed, calibrate
from meshwright.job import Job
from meshwright.layout import parse_layout
from meshwright.predict.software import software
from meshwright.record.step_times import StepTimes
from meshwright.say.calibration import calibration_document
from meshwright.say.document import Document, Lines
from meshwright.say.vocabulary import problems

from .conftest import pairs, sentences

JOB = Job("llama-3.1-8b", "dgx-h100-superpod", "pretrain-1t", gpus=16)
RUN = LoggedRun(job=JOB, layout=parse_layout("tp=2,dp=8", JOB.usual_layout()))
QUESTION = "llama-3.1-8b dgx-h100-superpod pretrain-1t --layout tp=2,dp=8"


def observed(step_s: float, *files: str, medians_s: tuple[float, ...] = ()) -> Observed:
    times = StepTimes(np.array([9.0, 0.99, 1.0, 1.01]) * step_s, np.array([True, False, False, False]), "by hand")
    return Observed(files=files or ("steps.csv",), steps=times, medians_s=medians_s or (step_s,))


@cache
def calibrated(slowdown: float = 1.1) -> Calibration:
    """Of a run that took so many times the seconds that release v5.0 is predicted to."""
    return calibrate(observed(slowdown * RUN.step_s(software("v5.0"))), RUN, "v5.0", "mine")


def command(document: Document) -> str:
    (lines,) = (block for block in document.blocks if isinstance(block, Lines))
    return lines.lines[0].strip()


def test_the_prediction_stands_beside_what_was_measured() -> None:
    document = calibration_document(calibrated(), QUESTION, None)
    said = pairs(document)
    assert document.title == "software profile mine" and said["from"] == "steps.csv"
    assert said["predicted after"].endswith("(+0.00 %)")
    assert said["predicted before, release v5.0"].endswith("(-9.09 %)")  # 1 / 1.1
    assert said["measured step"].endswith("median of 3 steady steps (by hand)") and said["its spread"] == "1.48 % from step to step"
    assert "slower than release v5.0" in said["this software"]


def test_several_files_show_their_spread_and_their_number() -> None:
    result = calibrated()
    two = replace(result, observed=replace(result.observed, files=("a", "b"), medians_s=(1.0, 1.05)))
    said = pairs(calibration_document(two, QUESTION, None))
    assert said["from"] == "2 files"
    assert said["its spread"] == "1.48 % from step to step, 5.00 % from the fastest to the slowest file"


def test_a_change_that_is_too_large_is_doubted() -> None:
    assert sentences(calibration_document(calibrated(), QUESTION, None)) == []
    (doubt,) = sentences(calibration_document(calibrated(2.0), QUESTION, None))
    assert "usually means a wrong layout" in doubt


@pytest.mark.parametrize("out", [None, Path("mine.json"), Path("my profiles/it's.json")])
def test_the_command_can_be_copied_whatever_the_file_is_called(out: Path | None) -> None:
    words = shlex.split(command(calibration_document(calibrated(), QUESTION, out)))
    assert words[:5] == ["meshwright", "predict", "llama-3.1-8b", "dgx-h100-superpod", "pretrain-1t"]
    assert words[words.index("--software") + 1] == str(out or "profile.json") and words[-1] == str(out or "profile.json")
    assert words[words.index("--gpus") + 1] == "16"
    assert f"workload.global_batch={JOB.workload.global_batch}" in words


def test_the_values_are_those_of_the_file_and_name_it() -> None:
    values = calibration_document(calibrated(), QUESTION, Path("mine.json")).to_json()
    assert problems(values) == [] and values["files"] == [{"what": "software profile", "path": "mine.json"}]
    assert json.dumps(values["profile"]) == json.dumps(calibrated().as_json())
    assert values["profile_step_s"] == pytest.approx(values["measured_s"]) and values["num_steps"] == 3
    assert calibration_document(calibrated(), QUESTION, None).values["files"] == []

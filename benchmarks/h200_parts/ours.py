"""A child: our trainer on one case, timed step by step, or one step under the profiler."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from h200_parts.cases import Case, case_of
from h200_parts.child import hand_over
from h200_parts.kinds import STEPS_BETWEEN, annotated, shares_of, traced
from h200_parts.recorder import Recorder
from h200_parts.stepper import Stepper, start
from meshwright.errors import InputError


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", type=case_of, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    if given.profile:
        annotate_trainer()
    try:
        stepper = Stepper(given.case, start(given.device))
    except InputError as error:
        hand_over({"refused": f"the trainer refuses: {error.what}"})
        return
    recorder = timed(stepper, given.case, given.warmup, given.steps)
    result = {"trainer": "meshwright", "num_parameters": stepper.num_parameters, **recorder.result(), **stepper.routing()}
    if given.profile:
        result["profile"] = profiled(stepper, result["mean_s"])
    hand_over(result)


def timed(stepper: Stepper, case: Case, num_warmup: int, num_steps: int) -> Recorder:
    """Times of steps, each from the making of its batch to the end of its update."""
    recorder = Recorder(stepper.device.type, num_warmup, case.num_tokens)
    for _ in range(num_warmup + num_steps):
        recorder.start()
        result = stepper.step()
        recorder.done(result.loss)
    return recorder


def profiled(stepper: Stepper, step_s: float) -> dict[str, object]:
    """Shares of one step by kind of work; `step_s`: what a step takes without the profiler."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        for num_untraced in (STEPS_BETWEEN, 0):
            with traced(path, stepper.device.type):
                stepper.step(around_update=lambda: torch.profiler.record_function("h200 optimizer"))
            for _ in range(num_untraced):
                stepper.step()
        return shares_of(path, step_s, stepper.device.type)


def annotate_trainer() -> None:
    """Mark what kernels' names do not show: the loss, and the norm for clipping."""
    from meshwright.train import replica
    from meshwright.train.model import transformer

    places = ((transformer, "summed_loss", "loss"), (replica, "summed_loss_in_fp8", "loss"), (replica, "square_sum", "optimizer"))
    for module, name, kind in places:
        if hasattr(module, name):
            setattr(module, name, annotated(getattr(module, name), kind))


if __name__ == "__main__":
    main()

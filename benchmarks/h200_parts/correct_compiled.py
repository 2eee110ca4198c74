"""A child: gradients of compiled layers against the same layers run plainly, for every layout that compiles on one GPU.

In fp32 both must agree. In narrower formats they round at different places, so both are held against float64: compiled layers may be no
further from it than plain ones are, with a quarter to spare.
"""

from __future__ import annotations

import argparse
import itertools
import secrets
from typing import Any

import torch

from h200_parts import reference
from h200_parts.child import hand_over, hand_row, note
from h200_parts.reference import Tensors, relative_error
from h200_parts.stepper import start
from h200_parts.trial import MODEL, Trial, case_for
from meshwright.errors import InputError

PRECISIONS = ("fp32", "bf16", "fp8-current")
RECOMPUTE = ("none", "selective", "full")
MICRO_BATCHES = (1, 2)
FP32_BOUND = 1e-4
SPARE = 1.25


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    device = start(given.device)
    if device.type == "cpu":
        note("nothing is compiled on a processor: plain layers are compared with themselves")
    seed = secrets.randbelow(2**31)
    for precision, recompute, count in itertools.product(PRECISIONS, RECOMPUTE, MICRO_BATCHES):
        what = f"compiled, {precision}, {recompute} recompute, {count} micro-batch{'es' if count > 1 else ''}"
        try:
            trial = Trial(case_for(precision, device, recompute, count), device, seed)
        except InputError as error:
            hand_row({"what": what, "skipped": f"the trainer refuses: {error.what}"})
            continue
        row = compared(trial, precision, what)
        hand_row(row)
        note(f"{what}: {row['error']:.2e} of {row['bound']:.2e}")
        torch._dynamo.reset()  # each layout compiles for itself, and none runs into the limit of recompilations
    hand_over({"seed": seed})


def compared(trial: Trial, precision: str, what: str) -> dict[str, Any]:
    """The worst tensor's error, and what it may be."""
    _, compiled = trial.gradients()
    with torch.compiler.set_stance("force_eager"):
        _, plain = trial.gradients()
    apart = _worst(compiled, plain)
    if precision == "fp32":
        return {"what": what, "against": "plain layers", "error": apart, "bound": FP32_BOUND}
    read = {name: tensor.bfloat16() for name, tensor in trial.weights().items()}
    _, wanted = reference.loss_and_gradients(MODEL, read, trial.tokens, trial.labels)
    bound = SPARE * _worst(plain, wanted)
    return {"what": what, "against": "float64", "error": _worst(compiled, wanted), "bound": bound, "from_plain": apart}


def _worst(found: Tensors, wanted: Tensors) -> float:
    return max(relative_error(found[name], wanted[name]) for name in wanted)


if __name__ == "__main__":
    main()

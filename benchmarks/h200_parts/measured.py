"""A child: the hardware profile of this machine for some cases, kernels and slices of the step at their shapes, written to a file."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from h200_parts.cases import Case, case_of, model_of
from h200_parts.child import hand_over, note
from meshwright.describe.profile import profile_text
from meshwright.files import write_whole
from meshwright.train.measure.waiting import waiting

if TYPE_CHECKING:
    import torch

    from meshwright.train.measure.machine import Asked

MODEL_S = 45.0  # on a card, for each slice of the step
Ask = Callable[["torch.device"], "list[Asked]"]


def main() -> None:
    given = arguments(case_of)
    cases = distinct(given.case)
    measure(lambda device: [asked_for(case, device) for case in cases], len(cases), given)


def arguments(read: Callable[[str], object]) -> argparse.Namespace:
    """The child's options; cases are read by `read`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", type=read, action="append", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit-s", type=float, default=0.0)
    return parser.parse_args()


def distinct(cases: Sequence[Case]) -> list[Case]:
    """Cases that differ in what a slice is of, the first of each kind."""
    found: dict[tuple[object, ...], Case] = {}
    for case in cases:
        found.setdefault((case.model, case.batch, case.micro_batch, case.seq_len, case.precision, case.document > 0), case)
    return list(found.values())


def asked_for(case: Case, device: torch.device) -> Asked:
    """What is timed for a case: nothing is computed again in its slices."""
    from meshwright.train.measure.machine import asked_of

    shape = {"seq_len": case.seq_len, "micro_batch": case.micro_batch or case.batch, "packed": case.document > 0}
    return asked_of(model_of(case), device, precisions=(case.precision,), **shape)


def measure(ask: Ask, num_slices: int, given: argparse.Namespace) -> None:
    """Measure what `ask` says, write the profile, and hand over how long it took and what was left out."""
    started_s = time.perf_counter()
    limit_s = given.limit_s or MODEL_S * num_slices
    with waiting(num_slices if given.device == "cuda" else 0) as ready:  # these processes load torch while this one does
        import torch

        from meshwright.train.measure.machine import QUICK
        from meshwright.train.measure.machine import measure as measured

        device = torch.device("cuda", 0) if given.device == "cuda" else torch.device("cpu")
        say = note if given.device == "cuda" else lambda what: None
        profile = measured(ask(device), device, 1, say, limit_s=limit_s, started_s=started_s, ready=ready, effort=QUICK)
    write_whole(given.out, profile_text(profile))
    hand_over({"measured_s": profile.measured_s, "num_slices": len(profile.slices), "left_out": list(profile.left_out)})


if __name__ == "__main__":
    main()

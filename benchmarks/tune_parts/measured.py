"""A child: the hardware profile of this machine for layers with adapters, written to a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from h200_parts.measured import arguments, measure

from tune_parts.cases import Case, case_of, layout_of, model_of, workload_of

if TYPE_CHECKING:
    import torch

    from meshwright.train.measure.machine import Asked


def main() -> None:
    given = arguments(case_of)
    measure(lambda device: [asked_for(case, device) for case in given.case], len(given.case), given)


def asked_for(case: Case, device: torch.device) -> Asked:
    """What is timed for a case."""
    from meshwright.train.measure.machine import asked_of

    workload, shape = workload_of(case), {"seq_len": case.seq_len, "micro_batch": case.batch, "recompute": layout_of(case).recompute}
    return asked_of(model_of(case), device, precisions=(workload.precision,), adapters=workload.adapters, **shape)


if __name__ == "__main__":
    main()

"""Whether the training state of the model fits into the memory of the machine."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.audit.claim import Claim
from meshwright.audit.figures import count, figure
from meshwright.audit.verdict import CONSISTENT, IMPLAUSIBLE, Statement
from meshwright.audit.work import is_trained_whole
from meshwright.describe.load import accelerator, load_model
from meshwright.evidence.mlperf import BENCHMARKS
from meshwright.units import GB

# The least that is used in practice: weights and gradients in bf16, moments in 8 bits; for a frozen base, weights in 4 bits. Moving state
# to
# the host's memory needs less, but is far slower than any run on record.
TRAINED_BYTES, FROZEN_BYTES = 6.0, 0.5


def check(claim: Claim) -> Iterator[Statement]:
    """A statement where model and machine are known."""
    run = claim.run
    if not (run.gpus and run.accelerator and (run.benchmark or run.model or run.parameters)):
        return
    parameters, frozen = _parameters(claim)
    each = FROZEN_BYTES if frozen else TRAINED_BYTES
    chip = accelerator(run.accelerator)
    need, have = parameters * each, run.gpus * chip.memory_bytes
    lines = (
        f"state: {figure(parameters)} parameters x {each:g} bytes, the least in use = {figure(need / GB)} GB",
        f"memory: {count(run.gpus)} x {figure(chip.memory_bytes / GB)} GB = {figure(have / GB)} GB",
    )
    if need > have:
        why = f"the training state alone takes {need / have:.2f} times the memory of the machine"
        yield Statement(about="memory", verdict=IMPLAUSIBLE, why=why, arithmetic=lines)
    else:
        yield Statement(about="memory", verdict=CONSISTENT, why="the training state has room", arithmetic=lines)


def _parameters(claim: Claim) -> tuple[float, bool]:
    """Parameters of the model, and whether its base is frozen."""
    run = claim.run
    if run.benchmark:
        return float(load_model(BENCHMARKS[run.benchmark][0]).num_parameters), not is_trained_whole(run.benchmark)
    return (float(load_model(run.model).num_parameters) if run.model else run.parameters), False

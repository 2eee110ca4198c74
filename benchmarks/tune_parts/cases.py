"""What is measured: models, sequences and frozen bases. A case is data, so that a child process gets it as one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from h200_parts.cases import TINY

from meshwright.describe.load import load_model
from meshwright.describe.model import Model
from meshwright.describe.workload import Adapters, Training, Workload
from meshwright.layout import Layout

TRAINING = Training(learning_rate=2e-4, clip_norm=1.0)
RANK, ALPHA = 16, 32.0
MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing to time: adapters on all linear layers of a model, a batch of sequences, and what the base is kept in."""

    name: str
    model: str  # in the catalogue, or the tiny one
    batch: int
    seq_len: int
    base: str = "bf16"
    recompute: str = "none"

    @property
    def num_tokens(self) -> int:
        """Tokens of a step."""
        return self.batch * self.seq_len

    @property
    def words(self) -> str:
        """The case as a table shows it."""
        size = {"llama-3.1-8b": "8B", "llama-3.1-70b": "70B", "llama-2-70b": "70B"}.get(self.model, self.model)
        again = "" if self.recompute == "none" else f", recompute {self.recompute}"
        return f"{size}, {self.batch} x {self.seq_len:,} tokens, {self.base} base{again}"

    def to_json(self) -> str:
        """The case as one line."""
        return json.dumps(asdict(self))


CASES = (
    Case(name="8b-8192", model="llama-3.1-8b", batch=1, seq_len=8192),
    Case(name="8b-2048", model="llama-3.1-8b", batch=4, seq_len=2048),
    Case(name="8b-8192-fp8", model="llama-3.1-8b", batch=1, seq_len=8192, base="fp8"),
    Case(name="8b-2048-fp8", model="llama-3.1-8b", batch=4, seq_len=2048, base="fp8"),
    Case(name="8b-8192-nf4", model="llama-3.1-8b", batch=1, seq_len=8192, base="nf4"),
    Case(name="8b-2048-nf4", model="llama-3.1-8b", batch=4, seq_len=2048, base="nf4"),
    Case(name="70b-8192-fp8", model="llama-3.1-70b", batch=1, seq_len=8192, base="fp8", recompute="mlp"),
    Case(name="70b-8192-nf4", model="llama-3.1-70b", batch=1, seq_len=8192, base="nf4", recompute="mlp"),
)
# What fits into one call of nine minutes each: first the checks of kernels, 8B in bf16 and the peers; then the bases in few bits and 70B.
CALLS = {
    "first": ("8b-8192", "8b-2048"),
    "second": ("70b-8192-fp8", "8b-8192-fp8", "70b-8192-nf4", "8b-8192-nf4", "8b-2048-fp8", "8b-2048-nf4"),
}
NAMES = tuple(case.name for case in CASES)


def chosen(names: Sequence[str], *, is_dry: bool) -> list[Case]:
    """The cases of these names in their order, or all; where nothing is to be claimed, the same with a tiny model."""
    found = [case for name in names or NAMES for case in CASES if case.name == name]
    return [replace(case, model=TINY.name, seq_len=case.seq_len // 64) for case in found] if is_dry else found


def case_of(line: str) -> Case:
    """The case that `to_json` wrote."""
    return Case(**json.loads(line))


def model_of(case: Case) -> Model:
    """The case's shapes."""
    return TINY if case.model == TINY.name else load_model(case.model)


def workload_of(case: Case) -> Workload:
    """The case's sequences and adapters."""
    adapters = Adapters(rank=RANK, alpha=ALPHA, targets=MATRICES, base=case.base)
    numbers = {"seq_len": case.seq_len, "global_batch": case.batch, "precision": "bf16"}
    return Workload(name=case.name, model="", training=TRAINING, adapters=adapters, **numbers)  # type: ignore[arg-type]


def layout_of(case: Case) -> Layout:
    """One GPU, the whole batch at once."""
    return Layout(micro_batch=case.batch, zero_stage=0, recompute=case.recompute, overlap_tp=False, cuda_graphs=False)

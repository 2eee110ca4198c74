"""A small replica with gradients that can be looked at by name."""

from __future__ import annotations

import torch

from h200_parts.cases import TRAINING, Case, layout_of, workload_of
from h200_parts.reference import Tensors
from meshwright.describe.model import Model
from meshwright.train.model.initial import initial_weights
from meshwright.train.model.transformer import Context
from meshwright.train.parallel.mesh import make_mesh
from meshwright.train.parallel.pipeline import MicroBatch
from meshwright.train.replica import Replica
from meshwright.train.sums import StepResult

MODEL = Model(
    name="trial", num_layers=2, hidden=256, ffn_hidden=768, num_heads=4, num_kv_heads=2, head_dim=64, vocab_size=2048, rotary_theta=500000.0
)
SEQ_LEN, BATCH = 256, 4


def case_for(precision: str, device: torch.device, recompute: str = "none", num_micro_batches: int = 1) -> Case:
    """A case of the small model."""
    seq_len = SEQ_LEN if device.type == "cuda" else SEQ_LEN // 4
    size = BATCH // num_micro_batches
    numbers = {"precision": precision, "states": "fp32", "recompute": recompute}
    return Case(name="trial", model="trial", batch=BATCH, seq_len=seq_len, micro_batch=size, **numbers)


class Trial:
    """A replica of the small model on fresh random weights and tokens."""

    def __init__(self, case: Case, device: torch.device, seed: int) -> None:
        self.case = case
        self.replica = Replica(MODEL, workload_of(case), make_mesh(layout_of(case), device), TRAINING)
        self.replica.fill_weights(initial_weights(MODEL, seed))
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randint(0, MODEL.vocab_size, (case.batch, case.seq_len + 1), generator=generator).to(device)
        self.tokens, self.labels = drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()
        self.context = Context(positions=torch.arange(case.seq_len, device=device))

    def weights(self) -> Tensors:
        """The tensors, as the optimizer keeps them."""
        return {piece.name.partition("/")[2]: piece.tensor.clone() for piece in self.replica.weights()}

    def gradients(self) -> tuple[StepResult, Tensors]:
        """One forward and backward; the gradients of the mean loss by name."""
        size = self.case.micro_batch
        cut = zip(self.tokens.split(size), self.labels.split(size), strict=True)
        result = self.replica.gradients([MicroBatch(tokens=tokens, labels=labels, context=self.context) for tokens, labels in cut])
        found = {}
        for shard in self.replica.shards:
            for piece in shard.pieces(shard.gradient, "gradient"):
                found[piece.name.partition("/")[2]] = piece.tensor.clone()
        return result, found

    def update(self, result: StepResult, rate: float) -> None:
        """Apply the gradients."""
        self.replica.update(result, rate)

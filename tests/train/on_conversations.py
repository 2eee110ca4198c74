"""Loss and gradients of samples of conversations, packed or not, on the ranks of a layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from parity import LLAMA, SEED, TRAINING, WORKLOAD, Steps, replica_of

from meshwright.describe.workload import Adapters, Workload
from meshwright.layout import Layout
from meshwright.train.tuning.dataset import Sequences, packed
from meshwright.train.tuning.marking import Sample

SEQ_LEN = 32
LENGTHS = (9, 30, 14, 6, 22, 12, 17, 8)


def samples() -> list[Sample]:
    """Made-up samples of different lengths, with different shares that carry loss."""
    made = []
    for number, length in enumerate(LENGTHS):
        rng = np.random.default_rng([SEED, number])
        trained = np.arange(length) >= 1 + number % 5
        made.append(Sample(tokens=rng.integers(0, LLAMA.vocab_size, length).astype(np.int32), trained=trained, where=f"row {number}"))
    return made


def sequences(pack: bool) -> Sequences:
    rows = packed([length - 1 for length in LENGTHS], SEQ_LEN) if pack else [(number,) for number in range(len(LENGTHS))]
    return Sequences("training", samples(), rows, SEQ_LEN, None)


def workload_of(pack: bool, adapters: Adapters | None = None) -> Workload:
    return replace(WORKLOAD, seq_len=SEQ_LEN, global_batch=len(sequences(pack)), packed=pack, adapters=adapters)


def gradients_of(pack: bool, layout: Layout, adapters: Adapters | None) -> Any:
    """Loss and gradients of one batch with all samples; pieces of this rank."""
    from meshwright.train.parallel.batches import micro_batches

    workload, source = workload_of(pack, adapters), sequences(pack)

    def read(numbers: Any) -> Any:
        batch = source.batch(list(numbers))
        return batch.tokens, batch.labels, batch.documents

    found = Steps([], [], {"pieces": []})
    with replica_of(LLAMA, workload, layout) as (replica, mesh):
        result = replica.gradients(micro_batches(read, 0, workload, mesh))
        scale = workload.tokens_per_step / result.num_tokens
        for shard in replica.shards:
            for piece in shard.pieces(shard.gradient * scale, "gradient"):
                found.gradients["pieces"].append((piece.name, piece.shape, piece.start, piece.tensor.float().numpy().copy()))
        found.losses.append(result.loss)
        found.norms.append(result.grad_norm)
        assert result.num_tokens == sum(sample.num_trained for sample in samples()) and TRAINING.clip_norm == 1.0
    return found


def differing(one: Any, other: Any) -> list[str]:
    """The names of gradients that are not the same, to 1e-5 of the largest."""
    found = ["loss"] if abs(one.losses[0] / other.losses[0] - 1) > 1e-5 else []
    for name, gradient in other.gradients.items():
        if np.abs(one.gradients[name] - gradient).max() > 1e-5 * max(np.abs(gradient).max(), 1e-2 * other.norms[0]):
            found.append(name)
    return found

"""Steps of a small model under a layout, with all that parity compares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from meshwright.describe.model import LatentAttention, Model, RotaryScaling
from meshwright.describe.workload import Training, Workload
from meshwright.layout import Layout

if TYPE_CHECKING:
    from meshwright.train.checkpoint import Piece
    from meshwright.train.parallel.mesh import Mesh
    from meshwright.train.parallel.pipeline import MicroBatch
    from meshwright.train.replica import Replica

# Every factorisation of eight ranks is legal: eight key-value heads and columns by the dozen for tp, 2 x 8 pieces of a sequence for cp.
LLAMA = Model(
    name="small-llama",
    num_layers=4,
    hidden=32,
    ffn_hidden=64,
    num_heads=16,
    num_kv_heads=8,
    head_dim=4,
    vocab_size=96,
    rotary_theta=500000.0,
    rotary_scaling=RotaryScaling(factor=8.0, original_positions=16),
)
GPT = Model(
    name="small-gpt",
    num_layers=4,
    hidden=32,
    ffn_hidden=64,
    num_heads=8,
    num_kv_heads=8,
    head_dim=4,
    vocab_size=96,
    gated=False,
    biases=True,
    tied_embeddings=True,
    num_positions=48,
    layer_norm=True,
)
# More tensor ranks than key-value heads: several ranks hold the same head.
SHARED = {"few": replace(LLAMA, name="few-heads", num_kv_heads=2), "one": replace(GPT, name="one-head", num_kv_heads=1)}
# A vocabulary that no tensor degree divides, and one so small that of four ranks the last holds padding alone.
PADDED = {
    "prime": replace(LLAMA, name="prime-vocabulary", vocab_size=97),
    "prime-tied": replace(LLAMA, name="prime-tied", vocab_size=97, tied_embeddings=True),
    "tiny": replace(GPT, name="tiny-vocabulary", vocab_size=5),
}
# Attention of other families: norms of queries and keys, biases, windows in all layers or in some, sinks, latent vectors.
ATTENTIONS = {
    "qwen3": replace(LLAMA, name="small-qwen3", qk_norm=True, rotary_scaling=None),
    "mistral": replace(LLAMA, name="small-mistral", window=5, num_windowed_layers=4, rotary_scaling=None),
    "gpt-oss": replace(
        LLAMA,
        name="small-gpt-oss",
        attention_biases=True,
        attention_sinks=True,
        window=6,
        num_windowed_layers=2,
        rotary_scaling=RotaryScaling(kind="yarn", factor=4.0, original_positions=16, low_turns=1.0, high_turns=32.0, truncates=False),
    ),
    "latent": replace(
        LLAMA,
        name="small-latent",
        num_heads=8,
        latent=LatentAttention(query_rank=12, key_value_rank=10, nope_dim=6, rope_dim=4, value_dim=7),
        rotary_scaling=RotaryScaling(
            kind="yarn", factor=4.0, original_positions=16, low_turns=1.0, high_turns=32.0, mscale=1.0, mscale_all_dim=1.0
        ),
    ),
    "direct": replace(
        LLAMA,
        name="latent-direct",
        num_heads=8,
        latent=LatentAttention(query_rank=0, key_value_rank=10, nope_dim=2, rope_dim=4, value_dim=9),
        attention_sinks=True,
        window=7,
        num_windowed_layers=2,
        windowed_layers=(1, 2),
    ),
    "few-norms": replace(LLAMA, name="few-norms", num_kv_heads=2, qk_norm=True, attention_sinks=True),
}
MODELS = {"llama": LLAMA, "tied": replace(LLAMA, name="tied-llama", tied_embeddings=True), "gpt": GPT}
WORKLOAD = Workload(name="parity", model="", seq_len=32, global_batch=8, precision="fp32", packed=True)
TRAINING = Training(learning_rate=1e-3, warmup_samples=16, decay_samples=200, clip_norm=1.0)
SEED = 7

LOSS_TOLERANCE = 1e-5  # relative, every step
ENTRY_TOLERANCE = 1e-5  # of a gradient's largest entry
NORM_TOLERANCE = 1e-7  # of the global norm: some gradients are zero by nature


@dataclass
class Steps:
    """What some steps gave: losses and norms, and the first step's gradients as whole tensors (or pieces on a rank)."""

    losses: list[float]
    norms: list[float]
    gradients: dict[str, Any]
    routing: list[Any] = field(default_factory=list)  # of each step and layer: loads, auxiliary loss, z-loss, entropy, norm of the bias

    def first(self, num_steps: int) -> Steps:
        """The first steps of them."""
        return replace(self, losses=self.losses[:num_steps], norms=self.norms[:num_steps], routing=self.routing[:num_steps])


def samples(workload: Workload, vocab_size: int, first: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Made-up packed samples, a function of their number: tokens, labels, documents."""
    tokens, labels, documents = [], [], []
    for number in range(first, first + count):
        rng = np.random.default_rng([SEED, number])
        row = rng.integers(0, vocab_size, workload.seq_len + 1)
        starts = np.sort(rng.choice(np.arange(1, workload.seq_len), 2, replace=False))
        which = np.searchsorted(starts, np.arange(workload.seq_len + 1), side="right")
        if not workload.packed:
            which[:] = 0
        tokens.append(row[:-1])
        labels.append(np.where(which[1:] == which[:-1], row[1:], -100))
        documents.append(which[:-1])
    return np.stack(tokens), np.stack(labels), np.stack(documents)


@contextmanager
def replica_of(model: Model, workload: Workload, layout: Layout, training: Training = TRAINING) -> Iterator[tuple[Replica, Mesh]]:
    """This rank's replica with its first weights, and its mesh, which is given back at the end."""
    from ranks import device_here

    from meshwright.train.model.initial import initial_weights
    from meshwright.train.parallel.mesh import make_mesh
    from meshwright.train.replica import Replica

    mesh = make_mesh(layout, device_here(), key_copies=model.key_copies(layout.tp), has_experts=model.experts is not None)
    replica = Replica(model, workload, mesh, training, SEED)
    if workload.adapters:
        replica.fill_base(initial_weights(model, SEED))
        replica.fill_weights(some_pairs)
    else:
        replica.fill_weights(initial_weights(model, SEED))
    replica.ready()
    yield replica, mesh
    replica.ready()
    mesh.close()


def some_pairs(piece: Piece) -> None:
    """Fill a piece of an adapter with numbers that depend on its name alone; none are zero, so that every gradient counts."""
    import torch

    rng = np.random.default_rng([SEED, *piece.name.encode()])
    whole = torch.from_numpy(rng.normal(0.0, 0.1, piece.shape)).float()
    piece.tensor.copy_(whole[tuple(slice(first, first + size) for first, size in zip(piece.start, piece.tensor.shape, strict=True))])


def batch_of(step: int, model: Model, workload: Workload, mesh: Mesh, deal: tuple[int, ...] | None = None) -> list[MicroBatch]:
    """This rank's micro-batches of one step."""
    from meshwright.train.parallel.batches import micro_batches

    first = step * workload.global_batch
    return micro_batches(
        lambda numbers: samples(workload, model.vocab_size, numbers[0], len(numbers)),
        first,
        workload,
        mesh,
        deal,
        num_ahead=model.num_prediction_layers,
    )


def run_dealt(model: Model, workload: Workload, layout: Layout, deals: Sequence[tuple[int, ...]]) -> list[tuple[float, float]]:
    """Loss and norm of steps whose micro-batches are dealt to the replicas in different ways, on this rank."""
    found = []
    with replica_of(model, workload, layout) as (replica, mesh):
        for step, deal in enumerate(deals):
            replica.set_deal(deal)
            result = replica.gradients(batch_of(step, model, workload, mesh, deal))
            replica.update(result, TRAINING.rate((step + 1) * workload.global_batch))
            found.append((result.loss, result.grad_norm))
    return found


def run_steps(
    model: Model, workload: Workload, layout: Layout, num_steps: int, tries: bool = False, training: Training = TRAINING
) -> Steps:
    """Take steps on this rank, after a trial of its chunks if `tries`; gradients are (name, shape, start, values) pieces of this rank."""
    found = Steps([], [], {"pieces": []})
    with replica_of(model, workload, layout, training) as (replica, mesh):
        if tries:
            replica.try_chunks(batch_of(1, model, workload, mesh)[0])
        for step in range(num_steps):
            sums = replica.launched(batch_of(step, model, workload, mesh))
            result = sums.result()
            found.routing.append(replica.routing(sums))
            if step == 0:
                scale = workload.tokens_per_step / result.num_tokens
                for shard in replica.shards:
                    for piece in shard.pieces(shard.gradient * scale, "gradient"):
                        found.gradients["pieces"].append((piece.name, piece.shape, piece.start, piece.tensor.float().cpu().numpy().copy()))
            replica.update(result, TRAINING.rate((step + 1) * workload.global_batch))
            found.losses.append(result.loss)
            found.norms.append(result.grad_norm)
    return found


def run_evaluations(model: Model, workload: Workload, layout: Layout, num_samples: int) -> list[tuple[float, float, int]]:
    """The loss of a step, then summed loss and tokens of an evaluation; twice, so that what the first one left behind is found."""
    from meshwright.train.parallel.batches import micro_batch, sample_numbers

    found = []
    with replica_of(model, workload, layout) as (replica, mesh):
        groups = sample_numbers(layout, mesh.dp.index, 0, num_samples)
        for step in range(2):
            result = replica.gradients(batch_of(step, model, workload, mesh))
            replica.update(result, 1e-3)
            batch = [micro_batch(samples(workload, model.vocab_size, group[0], len(group)), group, workload, mesh) for group in groups]
            found.append((result.loss, *replica.evaluate(batch)))
    return found


def joined(of_ranks: Sequence[Steps]) -> Steps:
    """The ranks' findings as one: all must agree on losses and norms, and pieces must fill every tensor."""
    whole: dict[str, np.ndarray] = {}
    for steps in of_ranks:
        assert steps.losses == of_ranks[0].losses
        assert steps.norms == of_ranks[0].norms
        assert steps.routing == of_ranks[0].routing
        for name, shape, start, values in steps.gradients["pieces"]:
            tensor = whole.setdefault(name, np.full(shape, np.nan, dtype=np.float32))
            spans = tuple(slice(a, a + n) for a, n in zip(start, values.shape, strict=True))
            there = tensor[spans]
            assert np.isnan(there).all() or np.allclose(there, values, rtol=1e-4, atol=1e-9), f"ranks disagree on {name}"
            tensor[spans] = values
    assert not any(np.isnan(tensor).any() for tensor in whole.values()), "a part of a gradient is on no rank"
    return Steps(of_ranks[0].losses, of_ranks[0].norms, whole, of_ranks[0].routing)


def differences(found: Steps, wanted: Steps) -> list[str]:
    """Where a run departs from the reference by more than parity allows."""
    differences = []
    for step, (a, b) in enumerate(zip(found.losses, wanted.losses, strict=True)):
        if not abs(a - b) <= LOSS_TOLERANCE * abs(b):
            differences.append(f"loss of step {step}: {a} and {b}")
    for step, (a, b) in enumerate(zip(found.norms, wanted.norms, strict=True)):
        # After an update the weights differ by roundings, which Adam enlarges where a gradient is nearly zero.
        if not abs(a - b) <= (LOSS_TOLERANCE if step == 0 else 10 * LOSS_TOLERANCE) * abs(b):
            differences.append(f"norm of step {step}: {a} and {b}")
    differences += [
        f"routing of step {step}: {a} and {b}"
        for step, (a, b) in enumerate(zip(found.routing, wanted.routing, strict=True))
        if not _is_same_routing(a, b)
    ]
    if found.gradients.keys() != wanted.gradients.keys():
        differences.append(f"tensors differ: {found.gradients.keys() ^ wanted.gradients.keys()}")
    for name in found.gradients.keys() & wanted.gradients.keys():
        apart, largest = np.abs(found.gradients[name] - wanted.gradients[name]).max(), np.abs(wanted.gradients[name]).max()
        if not apart <= max(ENTRY_TOLERANCE * largest, NORM_TOLERANCE * wanted.norms[0]):
            differences.append(f"{name}: {apart} apart, of {largest}")
    return differences


def _is_same_routing(found: Any, wanted: Any) -> bool:
    """Whether loads are equal, and losses, entropies and biases equal but for rounding."""
    if [one.loads for one in found] != [one.loads for one in wanted]:
        return False
    numbers = [[(one.auxiliary, one.z, one.entropy, one.bias_norm) for one in layers] for layers in (found, wanted)]
    return bool(np.allclose(*numbers, rtol=LOSS_TOLERANCE)) if found else True

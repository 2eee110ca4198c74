"""A run's state on some ranks: saved in one layout, read back in another."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from parity import SEED
from ranks import device_here

from meshwright.plan.plan import Plan
from meshwright.train.data.corpus import Corpus
from meshwright.train.data.samples import Samples
from meshwright.train.job import TrainingJob
from meshwright.train.loop import Progress
from meshwright.train.model.initial import initial_weights
from meshwright.train.parallel.batches import micro_batch, sample_numbers
from meshwright.train.parallel.mesh import Mesh, make_mesh
from meshwright.train.parallel.pipeline import MicroBatch
from meshwright.train.replica import Replica
from meshwright.train.saves import Saves, restore, tensor_names

NUM_STEPS = 2  # before the state is saved


@dataclass
class Next:
    """What one rank holds after loading, and what its next step gives."""

    pieces: list[tuple[str, tuple[int, ...], Any]]  # name, start, values
    samples: dict[int, str]  # number of each next sample -> a hash of its tokens
    loss: float
    grad_norm: float
    random_state: str


def save_at(plan: Plan, corpus: Path, folder: Path) -> Next:
    """Take steps from the first weights, save, and take one more."""
    mesh = make_mesh(
        plan.layout, device_here(), key_copies=plan.model.key_copies(plan.layout.tp), has_experts=plan.model.experts is not None
    )
    replica = _replica(plan, mesh)
    replica.fill_weights(initial_weights(plan.model, SEED))
    torch.manual_seed(SEED)
    samples = Samples(Corpus.open(corpus).train, plan.workload.seq_len, SEED)
    progress = Progress()
    for _ in range(NUM_STEPS):
        replica.update(replica.gradients(_batch(plan, mesh, samples, progress.samples)), 1e-3)
        progress.step, progress.samples = progress.step + 1, progress.samples + plan.workload.global_batch
    job = TrainingJob(plan=plan, runs=folder.parent, name=folder.name, corpus=corpus, seed=SEED)
    saves = Saves(job, replica, {"corpus": "x"})
    report = saves.save_now(progress, 60.0)
    assert report is not None
    report.raise_if_failed()
    saves.close()
    found = _next(plan, mesh, replica, samples, progress.samples)
    mesh.close()
    return found


def load_at(plan: Plan, corpus: Path, paths: Sequence[Path]) -> list[Next]:
    """Read each checkpoint into this layout, and take one step from it."""
    mesh = make_mesh(
        plan.layout, device_here(), key_copies=plan.model.key_copies(plan.layout.tp), has_experts=plan.model.experts is not None
    )
    samples = Samples(Corpus.open(corpus).train, plan.workload.seq_len, SEED)
    found = []
    for path in paths:
        replica = _replica(plan, mesh)
        torch.manual_seed(SEED + 1)
        manifest = restore(replica, path, tensor_names(replica))
        assert manifest.step == NUM_STEPS
        found.append(_next(plan, mesh, replica, samples, int(manifest.scalars["samples"])))
    mesh.close()
    return found


def _replica(plan: Plan, mesh: Mesh) -> Replica:
    assert plan.workload.training is not None
    return Replica(plan.model, plan.workload, mesh, plan.workload.training)


def _batch(plan: Plan, mesh: Mesh, samples: Samples, first: int) -> list[MicroBatch]:
    made = []
    for numbers in sample_numbers(plan.layout, mesh.dp.index, first, plan.workload.global_batch):
        batch = samples.batch(numbers)
        made.append(micro_batch((batch.tokens, batch.labels, batch.documents), numbers, plan.workload, mesh))
    return made


def _next(plan: Plan, mesh: Mesh, replica: Replica, samples: Samples, first: int) -> Next:
    replica.ready()
    pieces = [(piece.name, tuple(piece.start), piece.tensor.detach().cpu().numpy().copy()) for piece in replica.state()]
    random_state = hashlib.sha256(torch.random.get_rng_state().numpy().tobytes()).hexdigest()
    numbers = [n for group in sample_numbers(plan.layout, mesh.dp.index, first, plan.workload.global_batch) for n in group]
    seen = {number: hashlib.sha256(samples.batch([number]).tokens.tobytes()).hexdigest() for number in numbers}
    result = replica.gradients(_batch(plan, mesh, samples, first))
    return Next(pieces, seen, result.loss, result.grad_norm, random_state)

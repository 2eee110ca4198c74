"""Our trainer on one device, ready to take steps of a case."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.distributed as dist

from h200_parts.cases import END, TRAINING, Case, batch_of, layout_of, model_of, workload_of
from meshwright.train.model.initial import apart, initial_weights
from meshwright.train.parallel.batches import micro_batch
from meshwright.train.parallel.mesh import Mesh, make_mesh
from meshwright.train.parallel.pipeline import MicroBatch
from meshwright.train.replica import Replica
from meshwright.train.sums import StepResult

SEED = 1


def start(device_type: str) -> torch.device:
    """The device, with the one-rank group that the trainer asks for."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    device = torch.device("cuda", 0) if device_type == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, device_id=device if device.type == "cuda" else None)
    return device


class Stepper:
    """A replica with first weights, and random tokens for it, made on the host and moved as the trainer moves its own."""

    def __init__(self, case: Case, device: torch.device, *, seed: int = SEED) -> None:
        self.case, self.device = case, device
        self.model = model_of(case)
        self.mesh: Mesh = make_mesh(layout_of(case), device)
        self.replica = Replica(self.model, workload_of(case), self.mesh, TRAINING)
        first = initial_weights(self.model, seed)
        self.replica.fill_weights(apart(first) if self.model.experts else first)
        self._generator = np.random.default_rng(seed)

    @property
    def num_parameters(self) -> int:
        """Weights held."""
        return sum(piece.tensor.numel() for piece in self.replica.weights())

    def routing(self) -> dict[str, object]:
        """The loads of experts in one more step: of the layer whose fullest expert is the median one; nothing without experts."""
        if self.model.experts is None:
            return {}
        sums = self.replica.launched(self.batch())
        layers = sorted(self.replica.routing(sums), key=lambda layer: layer.peak)
        return {"loads": list(layers[len(layers) // 2].loads), "expert_peaks": [layer.peak for layer in layers]}

    def batch(self) -> list[MicroBatch]:
        """A batch of random tokens on the device."""
        drawn, size = batch_of(self.case, self._generator), layout_of(self.case).micro_batch
        tokens, labels = drawn[:, :-1], drawn[:, 1:]
        documents = np.cumsum(drawn == END, axis=1)[:, :-1] - (tokens == END)  # a token that ends one belongs to it
        numbers = [range(first, min(first + size, self.case.batch)) for first in range(0, self.case.batch, size)]
        workload = workload_of(self.case)
        return [micro_batch((tokens[rows], labels[rows], documents[rows]), rows, workload, self.mesh) for rows in numbers]

    def step(self, batch: Sequence[MicroBatch] | None = None, *, around_update: Callable[[], object] | None = None) -> StepResult:
        """Take one step; `around_update` makes what the update is to run inside of."""
        result = self.replica.gradients(self.batch() if batch is None else batch)
        if around_update is None:
            self.replica.update(result, self.case.learning_rate)
        else:
            with around_update():  # type: ignore[attr-defined]
                self.replica.update(result, self.case.learning_rate)
        return result

"""Our trainer on one device, ready to take steps of a case."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from h200_parts.cases import TRAINING, Case, layout_of, model_of, workload_of
from meshwright.train.model.attention import Context
from meshwright.train.model.initial import initial_weights
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
        self.replica.fill_weights(initial_weights(self.model, seed))
        self.context = Context(positions=torch.arange(case.seq_len, device=device))
        self._generator = torch.Generator().manual_seed(seed)

    @property
    def num_parameters(self) -> int:
        """Weights held."""
        return sum(piece.tensor.numel() for piece in self.replica.weights())

    def batch(self) -> list[MicroBatch]:
        """A batch of random tokens on the device."""
        size = layout_of(self.case).micro_batch
        tokens = torch.randint(0, self.model.vocab_size, (self.case.batch, self.case.seq_len + 1), generator=self._generator)
        return [self._micro_batch(part) for part in tokens.split(size)]

    def step(self, batch: Sequence[MicroBatch] | None = None, *, around_update: Callable[[], object] | None = None) -> StepResult:
        """Take one step; `around_update` makes what the update is to run inside of."""
        result = self.replica.gradients(self.batch() if batch is None else batch)
        if around_update is None:
            self.replica.update(result, TRAINING.learning_rate)
        else:
            with around_update():  # type: ignore[attr-defined]
                self.replica.update(result, TRAINING.learning_rate)
        return result

    def _micro_batch(self, tokens: torch.Tensor) -> MicroBatch:
        here = tokens.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tokens
        return MicroBatch(tokens=here[:, :-1].contiguous(), labels=here[:, 1:].contiguous(), context=self.context)

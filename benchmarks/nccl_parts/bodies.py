"""What the ranks of `benchmarks/nccl.py` run."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import torch
from parity import Steps, run_steps

from meshwright.describe.model import Model
from meshwright.describe.workload import Workload
from meshwright.layout import Layout


def plain_steps(model: Model, workload: Workload, layout: Layout, num_steps: int) -> Steps:
    """Steps with layers as they are written: compiling takes longer than such a small run, and is tried elsewhere."""
    torch.compiler.set_stance("force_eager")
    return run_steps(model, workload, layout, num_steps)


def full_steps(model: Model, workload: Workload, layout: Layout, num_steps: int) -> tuple[Steps, dict[str, Any]]:
    """Steps as a run takes them, with compiled layers and FlashAttention where a layout has them; and which of the two it had."""
    torch.compiler.set_stance("default")
    torch._dynamo.reset()  # each case has a model of its own, and recompiling is limited
    with _counted() as used:
        found = run_steps(model, workload, layout, num_steps)
    gc.collect()
    return found, used


@contextlib.contextmanager
def _counted() -> Iterator[dict[str, Any]]:
    """Whether layers were compiled and attention was FlashAttention's, of the replicas made inside."""
    from meshwright.train import replica
    from meshwright.train.model.compiled import compiles

    used: dict[str, Any] = {}
    make = replica.Replica.__init__

    def noted(self: replica.Replica, model: Model, workload: Workload, mesh: Any, training: Any) -> None:
        make(self, model, workload, mesh, training)
        used.update(compiled=compiles(mesh.layout, mesh.device), attention=self.attention)

    replica.Replica.__init__ = noted  # type: ignore[method-assign]
    try:
        yield used
    finally:
        replica.Replica.__init__ = make  # type: ignore[method-assign]


def facts() -> dict[str, str]:
    """The NCCL library that a rank has loaded, and its GPU."""
    from meshwright.train.shared_gpu import loaded_nccl

    version = loaded_nccl()
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU"
    return {"nccl": ".".join(map(str, version)) if version else "none", "device": device, "torch": torch.__version__}

"""What tests run on gloo ranks whose weights, gradients and states are all shared out."""

from __future__ import annotations

from typing import Any

from parity import batch_of, replica_of

from meshwright.describe.model import Model
from meshwright.describe.workload import Workload
from meshwright.layout import Layout


def shared_out(model: Model, workload: Workload, layout: Layout) -> dict[str, Any]:
    """This rank's rows of every tensor, (name, first row, number of rows), after a step; and what was booked in it."""
    with replica_of(model, workload, layout) as (replica, mesh):
        mesh.timer.take()
        result = replica.gradients(batch_of(0, model, workload, mesh))
        booked = {part: len(times) for part, times in mesh.timer.take().items()}
        sizes = [(shard.values.numel(), shard.gradient.numel()) for shard in replica.shards if shard.gradient is not None]
        rows = [(piece.name.partition("/")[2], piece.start[0], piece.tensor.shape[0]) for piece in replica.weights()]
        replica.update(result, 1e-3)
        (data,) = replica.data
        data.forget()
        return {
            "rows": rows,
            "booked": booked,
            "sizes": sizes,
            "copies": sorted({shard.copies for shard in replica.shards}),
            "waits": mesh.marks.waits,
            "gradients left": sum(parameter.grad is not None for parameter in data.parameters.values()),
        }

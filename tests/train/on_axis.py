"""What tests run on gloo ranks to see one axis's collectives and their gradients."""

from __future__ import annotations

import torch
import torch.distributed as dist

from meshwright.layout import Layout
from meshwright.train.parallel.collectives import Exchange, Gather, ScatterSum, everyones_whole_texts
from meshwright.train.parallel.mesh import make_mesh

Numbers = list[list[float]]


def collectives() -> dict[str, Numbers]:
    """Each collective of rank r's [[r, r + 10], [r + 20, r + 30]], and the gradient of each differentiable one."""
    mesh = make_mesh(Layout(tp=2), torch.device("cpu"))
    axis = mesh.tp
    own = torch.tensor([[0.0, 10.0], [20.0, 30.0]]) + axis.index
    found = {
        "gather 0": axis.all_gather(own, 0),
        "gather 1": axis.all_gather(own, 1),
        "scatter 0": axis.reduce_scatter(own, 0),
        "scatter 1": axis.reduce_scatter(own, 1),
        "sum": axis.all_reduce(own.clone()),
        "max": axis.all_reduce(own.clone(), op=torch.distributed.ReduceOp.MAX),
        "switch": axis.all_to_all(own),
    }
    gradient = torch.tensor([[1.0, 2.0], [3.0, 4.0]]) * (axis.index + 1)
    found["back of gather"] = _back(lambda x: Gather.apply(x, axis, 0), own[:1], gradient)
    found["back of scatter"] = _back(lambda x: ScatterSum.apply(x, axis, 0), own, gradient[:1])
    found["back of switch"] = _back(lambda x: Exchange.apply(x, axis), own, gradient)
    mesh.close()
    return {name: tensor.tolist() for name, tensor in found.items()}


def _back(function: object, x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    function(x).backward(gradient)  # type: ignore[operator]
    assert x.grad is not None
    return x.grad


def bookkeeping() -> tuple[list[str], bool, int]:
    """Parts that the axis's timer saw, whether a wait is still marked, and how often the rank moved."""
    mesh = make_mesh(Layout(tp=2), torch.device("cpu"))
    mesh.tp.all_gather(torch.ones(2), 0)
    mesh.tp.all_reduce(torch.ones(2))
    mesh.dp.all_reduce(torch.ones(2))  # alone on that axis: nothing to wait for
    spans = mesh.timer.take()
    found = [name for name, times in spans.items() for _ in times], mesh.marks.waits is not None, mesh.marks.num_moves
    mesh.close()
    return found


def texts() -> list[str]:
    """What both ranks say: the second much more than the first."""
    return everyones_whole_texts("a" if dist.get_rank() == 0 else "b" * 5000, torch.device("cpu"))

"""Matrix products whose weight gradient can be postponed: a zero-bubble schedule first sends the gradient of the input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.train.kernels.layer_functions import Made, value_of


class PutOff:
    """Postponed weight gradients, one list for each micro-batch of each chunk."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], tuple[nn.Parameter, Tensor]]] = []

    def append(self, compute: Callable[[], tuple[nn.Parameter, Tensor]]) -> None:
        """Keep a gradient for later."""
        self._waiting.append(compute)

    def take(self) -> list[Callable[[], tuple[nn.Parameter, Tensor]]]:
        """The gradients that were postponed since the last call."""
        taken, self._waiting = self._waiting, []
        return taken


class _SplitProduct(torch.autograd.Function):
    """`x @ weight.T` whose backward gives the gradient of the input at once, and that of the weight when it is asked for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: Linear) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        x, weight = ctx.saved_tensors
        layer = ctx.layer

        def weight_gradient() -> tuple[nn.Parameter, Tensor]:
            return layer.weight, gradient.flatten(0, -2).T @ x.flatten(0, -2)

        layer.put_off.append(weight_gradient)
        return gradient @ weight, None, None


def product(factor: Tensor | Made, layer: Linear) -> Tensor:
    """The product of a layer, in the number format of its weight."""
    x = value_of(factor)
    if layer.put_off is not None and torch.is_grad_enabled():
        made: Tensor = _SplitProduct.apply(x, layer.weight.detach(), layer)
        return made
    return F.linear(x, layer.weight)


class Linear(nn.Module):
    """A matrix product with a separate bias: a product that is divided by rows adds the bias after the sum."""

    def __init__(self, num_in: int, num_out: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_out, num_in))
        self.bias = nn.Parameter(torch.empty(num_out)) if bias else None
        self.put_off: PutOff | None = None
        self.multiply: Callable[[Tensor | Made, Linear], Tensor] = product

    def product(self, x: Tensor | Made) -> Tensor:
        """The product without the bias."""
        return self.multiply(x, self)

    def add_bias(self, x: Tensor) -> Tensor:
        """The product plus the bias, if there is one."""
        return x if self.bias is None else x + self.bias

    def forward(self, x: Tensor | Made) -> Tensor:
        return self.add_bias(self.product(x))

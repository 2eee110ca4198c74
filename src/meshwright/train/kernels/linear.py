"""Matrix products whose weight gradient can be postponed: a zero-bubble schedule first sends the gradient of the input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


Tensors = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How a product and its two gradients are computed, step by step, for products that do other things between the steps.

    Inputs and gradients are rows, [tokens, width]. What one step gives the others is a tuple of tensors.
    """

    forward: Callable[[Tensor, Tensor], tuple[Tensor, Tensors]]  # input, weight -> product, what gradients need
    to_input: Callable[[Tensor, Tensor, Tensors], tuple[Tensor, Tensors]]  # gradient, weight -> input's gradient, what the weight's needs
    to_weight: Callable[[Tensors, Tensor, Tensors], Tensor]  # that, and the input -> the gradient of the weight


def _forward(rows: Tensor, weight: Tensor) -> tuple[Tensor, Tensors]:
    return F.linear(rows, weight), ()


def _to_input(gradient: Tensor, weight: Tensor, kept: Tensors) -> tuple[Tensor, Tensors]:
    return gradient @ weight, (gradient,)


def _to_weight(carried: Tensors, rows: Tensor, kept: Tensors) -> Tensor:
    return carried[0].T @ rows


PLAIN = Arithmetic(_forward, _to_input, _to_weight)


class _SplitProduct(torch.autograd.Function):
    """`x @ weight.T` whose backward gives the gradient of the input at once, and that of the weight when it is asked for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: Linear) -> Tensor:
        out, kept = layer.arithmetic.forward(x.flatten(0, -2), weight)
        ctx.save_for_backward(x, weight, *kept)
        ctx.layer = layer
        return torch.unflatten(out, 0, x.shape[:-1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        x, weight, *kept = ctx.saved_tensors
        layer = ctx.layer
        d_rows, carried = layer.arithmetic.to_input(gradient.flatten(0, -2), weight, tuple(kept))

        def weight_gradient() -> tuple[nn.Parameter, Tensor]:
            return layer.weight, layer.arithmetic.to_weight(carried, x.flatten(0, -2), tuple(kept))

        layer.put_off.append(weight_gradient)
        return d_rows.view(x.shape), None, None


def split_product(factor: Tensor | Made, layer: Linear) -> Tensor:
    """The product of a layer, with the gradient of its weight postponed."""
    made: Tensor = _SplitProduct.apply(value_of(factor), layer.weight.detach(), layer)
    return made


def product(factor: Tensor | Made, layer: Linear) -> Tensor:
    """The product of a layer, in the number format of its weight."""
    if layer.puts_off:
        return split_product(factor, layer)
    return F.linear(value_of(factor), layer.weight)


class Linear(nn.Module):
    """A matrix product with a separate bias: a product that is divided by rows adds the bias after the sum."""

    def __init__(self, num_in: int, num_out: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_out, num_in))
        self.bias = nn.Parameter(torch.empty(num_out)) if bias else None
        self.put_off: PutOff | None = None
        self.arithmetic = PLAIN
        self.multiply: Callable[[Tensor | Made, Linear], Tensor] = product
        self.adapter: nn.Module | None = None  # trained beside a frozen weight: `train.model.adapters.Adapter`
        self.few_bits: nn.Module | None = None  # the frozen weight, if it is kept in few bits: `train.kernels.few_bits.FewBits`

    @property
    def puts_off(self) -> bool:
        """Whether the gradient of the weight of the product that is computed now is postponed."""
        return self.put_off is not None and torch.is_grad_enabled()

    def product(self, x: Tensor | Made) -> Tensor:
        """The product without the bias."""
        return self.multiply(x, self)

    def add_bias(self, x: Tensor) -> Tensor:
        """The product plus the bias, if there is one."""
        return x if self.bias is None else x + self.bias

    def forward(self, x: Tensor | Made) -> Tensor:
        return self.add_bias(self.product(x))

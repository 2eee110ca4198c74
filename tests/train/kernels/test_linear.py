"""Products whose weight gradient is put off: the input's comes at once, the weight's when it is asked for, and both are torch's."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from meshwright.train.kernels.layer_functions import Made
from meshwright.train.kernels.linear import Linear, PutOff


def layer(*, bias: bool = False) -> Linear:
    torch.manual_seed(1)
    made = Linear(6, 4, bias=bias)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_()
    return made


def test_a_product_is_torchs_with_the_bias_apart() -> None:
    made, x = layer(bias=True), torch.randn(2, 3, 6)
    torch.testing.assert_close(made(x), F.linear(x, made.weight, made.bias))
    torch.testing.assert_close(made.product(x), F.linear(x, made.weight))
    torch.testing.assert_close(made.add_bias(made.product(x)), made(x))


def test_a_product_reads_the_value_of_what_can_be_made_again() -> None:
    made, x = layer(), torch.randn(3, 6)
    assert torch.equal(made(Made(x, "norm", ())), made(x))


def test_a_weight_gradient_that_is_put_off_is_the_same_later() -> None:
    plain, waiting = layer(), layer()
    waiting.put_off = PutOff()
    x, gradient = torch.randn(2, 3, 6), torch.randn(2, 3, 4)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    waiting(ours).backward(gradient)
    plain(theirs).backward(gradient)
    assert waiting.weight.grad is None and plain.weight.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad)
    ((parameter, found),) = [compute() for compute in waiting.put_off.take()]
    assert parameter is waiting.weight
    torch.testing.assert_close(found, plain.weight.grad)
    assert waiting.put_off.take() == []  # taken once


def test_nothing_is_put_off_where_nothing_is_learned() -> None:
    made = layer()
    made.put_off = PutOff()
    with torch.no_grad():
        made(torch.randn(3, 6))
    assert made.put_off.take() == []

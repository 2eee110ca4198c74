"""A child: what the trainer computes with fused and compiled kernels, against float64, on fresh random inputs.

Errors are relative: the distance from float64 over its length, the worst tensor of all. Bounds are what the number formats allow: rounding
of every activation and every product's inputs to bf16 (8 bits), or of inputs to fp8 (4 bits), over the depth of the model.
"""

from __future__ import annotations

import argparse
import math
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from h200_parts import reference
from h200_parts.cases import TRAINING
from h200_parts.child import hand_over, hand_row, note
from h200_parts.reference import relative_error
from h200_parts.stepper import start
from h200_parts.trial import MODEL, Trial, case_for
from meshwright.errors import InputError

GRADIENT_BOUNDS = {"fp32": 1e-4, "bf16": 4e-2, "fp8-current": 2e-1}
KERNEL_BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
UPDATE_BOUNDS = {"bf16": 1e-3, "bf16-pure": 1e-2}  # with fp32 states of what changed; bf16 states round that, so of the weights
FP8_BOUNDS = {"value": 5e-2, "gradient of input": 8e-2, "gradient of weight": 8e-2}
FP8_LOSS_BOUND = 1e-1
RATE = 1e-2
HEADS = ((32, 8, 64), (24, 8, 128), (32, 8, 128))  # queries, keys and width: of 1B, 3B and 8B
ATTENDED = 600  # tokens: several blocks of a kernel, the last not full
Checks = Iterator[dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    device = start(given.device)
    seed = secrets.randbelow(2**31)
    note(f"inputs drawn from seed {seed}")
    torch.manual_seed(seed)
    num_checks = 0
    for check in (whole_steps, updates, blocked_loss, small_kernels, attentions, fp8_products):
        for row in guarded(check, device, seed):
            hand_row(row)
            num_checks += 1
            outcome = f"{row['error']:.2e} of {row['bound']:.0e}" if "error" in row else str(row.get("broke", row.get("skipped")))
            note(f"{row['what']}: {outcome}")
    hand_over({"num_checks": num_checks, "seed": seed})


def guarded(check: Callable[[torch.device, int], Checks], device: torch.device, seed: int) -> Checks:
    """The rows of a check; where it breaks, a row that says so and is not passed."""
    try:
        yield from check(device, seed)
    except Exception as error:  # one check that breaks must not hide the others
        yield {"what": check.__name__.replace("_", " "), "broke": f"{type(error).__name__}: {str(error)[:300]}"}


def whole_steps(device: torch.device, seed: int) -> Checks:
    """Gradients of a small model's step, tensor by tensor."""
    for precision, bound in GRADIENT_BOUNDS.items():
        what = f"gradients of a step in {precision}"
        try:
            trial = Trial(case_for(precision, device), device, seed)
        except InputError as error:
            yield {"what": what, "skipped": f"the trainer refuses: {error.what}"}
            continue
        result, found = trial.gradients()
        read = {name: tensor if precision == "fp32" else tensor.bfloat16() for name, tensor in trial.weights().items()}
        loss, wanted = reference.loss_and_gradients(MODEL, read, trial.tokens, trial.labels)
        errors = {name: relative_error(found[name], wanted[name]) for name in wanted}
        worst = max(errors, key=lambda name: errors[name])
        yield {"what": f"{what}, worst tensor {worst}", "against": "float64", "error": errors[worst], "bound": bound, "all": errors}
        yield {"what": f"loss of a step in {precision}", "against": "float64", "error": abs(result.loss / loss - 1), "bound": bound / 10}


def updates(device: torch.device, seed: int) -> Checks:
    """What three updates change, by the optimizer's kernel."""
    for precision, bound in UPDATE_BOUNDS.items():
        trial = Trial(case_for(precision, device), device, seed)
        before = trial.weights()
        wanted = reference.AdamW64(before, TRAINING)
        for _ in range(3):
            result, gradients = trial.gradients()
            norm = math.sqrt(sum(tensor.double().square().sum().item() for tensor in gradients.values()))
            scale = min(1.0, TRAINING.clip_norm / norm)
            wanted.step({name: gradient.double() * scale for name, gradient in gradients.items()}, RATE)
            trial.update(result, RATE)
        after = trial.weights()
        is_pure = precision == "bf16-pure"
        base = {name: torch.zeros_like(tensor, dtype=torch.float64) if is_pure else tensor.double() for name, tensor in before.items()}
        error = max(relative_error(after[name].double() - base[name], wanted.values[name] - base[name]) for name in before)
        what = f"{'weights after' if is_pure else 'change by'} three updates in {precision}, worst tensor"
        yield {"what": what, "against": "float64 AdamW", "error": error, "bound": bound}


def blocked_loss(device: torch.device, seed: int) -> Checks:
    """The loss in blocks, and its gradients."""
    from meshwright.train.kernels.fused_loss import summed_loss

    for dtype, bound in KERNEL_BOUNDS.items():
        yield from _loss_rows(str(dtype).removeprefix("torch."), summed_loss, dtype, device, bound)


def _loss_rows(words: str, summed: Callable[..., Tensor], dtype: torch.dtype, device: torch.device, bound: float) -> Checks:
    """A loss over 4,096 classes against float64: its value, and both gradients."""
    hidden = torch.randn(2, 320, 128, device=device).to(dtype).requires_grad_()
    weight = (torch.randn(4096, 128, device=device) / 8).to(dtype).requires_grad_()
    labels = torch.randint(0, 4096, (2, 320), device=device)
    labels[:, ::7] = -100
    loss = summed(hidden, weight, labels)
    (loss * 0.5).backward()
    h, w = (x.detach().double().requires_grad_() for x in (hidden, weight))
    wanted = F.cross_entropy((h @ w.T).flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
    (wanted * 0.5).backward()
    for name, ours, theirs in (("loss", loss, wanted), ("gradient of hidden", hidden.grad, h.grad), ("of weight", weight.grad, w.grad)):
        error = relative_error(ours.detach(), theirs.detach())
        yield {"what": f"blocked loss in {words}: {name}", "against": "float64", "error": error, "bound": bound}


def small_kernels(device: torch.device, seed: int) -> Checks:
    """Norm with what goes past it, rotary and SwiGLU, compiled as in a layer, with their gradients."""
    from meshwright.train.kernels.layer_functions import gated, past_and_normed, turned_heads
    from meshwright.train.model.transformer import Rotary

    rotary, positions = Rotary(MODEL), torch.arange(128, device=device)
    num_keys, heads = MODEL.num_kv_heads, MODEL.num_heads + 2 * MODEL.num_kv_heads
    for dtype, bound in KERNEL_BOUNDS.items():
        turns = rotary(positions, dtype)
        kernels = {
            "norm": (lambda x, w: past_and_normed(x, w, 1e-5), lambda x, w: (x, reference.normed(x, w, 1e-5)), [(4, 128, 256), (256,)]),
            "rotary": (lambda x, turns=turns: turned_heads(x, num_keys, *turns), _turned, [(4, 128, heads, MODEL.head_dim)]),
            "SwiGLU": (lambda x: (gated(x),), lambda x: (reference.swiglu(*x.chunk(2, dim=-1)),), [(4, 128, 512)]),
        }
        for name, (function, wanted, shapes) in kernels.items():
            inputs = [torch.randn(shape, device=device).to(dtype).requires_grad_() for shape in shapes]
            what = f"{name} in {str(dtype).removeprefix('torch.')}, values and gradients"
            yield {"what": what, "against": "float64", "error": _apart(function, wanted, inputs), "bound": bound}


def attentions(device: torch.device, seed: int) -> Checks:
    """Attention as a layer calls it, of heads as the cases have them, by the kernel that the trainer takes here."""
    from meshwright.train.kernels import flash_attention
    from meshwright.train.model.transformer import Context, attend

    context = Context(positions=torch.arange(ATTENDED, device=device))
    for num_queries, num_keys, width in HEADS:
        kernel = flash_attention.prepare(num_queries, num_keys, width, ATTENDED, device) or "torch"
        inputs = [torch.randn(2, ATTENDED, count, width, device=device).bfloat16() for count in (num_queries, num_keys, num_keys)]
        error = _apart(lambda *heads: (attend(*heads, context),), _attended, [x.requires_grad_() for x in inputs])
        what = f"attention of {num_queries} and {num_keys} heads of {width} by {kernel}"
        yield {"what": f"{what}, values and gradients", "against": "float64", "error": error, "bound": KERNEL_BOUNDS[torch.bfloat16]}


def _attended(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Causal attention written out."""
    share = query.shape[2] // key.shape[2]
    key, value = (x.repeat_interleave(share, dim=2) for x in (key, value))
    scores = torch.einsum("btnd,bsnd->bnts", query, key) / math.sqrt(query.shape[-1])
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return (torch.einsum("bnts,bsnd->btnd", scores.masked_fill(later, -math.inf).softmax(-1), value),)


def _turned(heads: Tensor) -> tuple[Tensor, ...]:
    query, key, value = heads.split([MODEL.num_heads, MODEL.num_kv_heads, MODEL.num_kv_heads], dim=-2)
    return reference.rotated(query, MODEL.rotary_theta), reference.rotated(key, MODEL.rotary_theta), value


def _apart(function: Callable[..., Any], wanted: Callable[..., Any], inputs: list[Tensor]) -> float:
    """The worst relative error of a function's values and gradients, compiled on a GPU, against the same in float64."""
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    outs = (torch.compile(function, dynamic=False) if inputs[0].is_cuda else function)(*inputs)
    gradients = [torch.randn(out.shape, device=out.device).to(out.dtype) for out in outs]
    found = (*outs, *torch.autograd.grad(outs, inputs, gradients))
    values = wanted(*doubles)
    right = (*values, *torch.autograd.grad(values, doubles, [gradient.double() for gradient in gradients]))
    return max(relative_error(ours, theirs) for ours, theirs in zip(found, right, strict=True))


def fp8_products(device: torch.device, seed: int) -> Checks:
    """The trainer's fp8 product with both gradients, and its loss in fp8."""
    from meshwright.train.kernels import fp8
    from meshwright.train.kernels.fused_loss import summed_loss_in_fp8
    from meshwright.train.kernels.linear import Linear

    layer = Linear(256, 384, bias=False).to(device, torch.bfloat16)
    torch.nn.init.normal_(layer.weight)
    fp8.use_fp8(torch.nn.Sequential(layer), device)
    x = torch.randn(4, 128, 256, device=device).bfloat16().requires_grad_()
    gradient = torch.randn(4, 128, 384, device=device).bfloat16()
    out = layer(x)
    found = (out, *torch.autograd.grad(out, (x, layer.weight), gradient))
    wide, tall, given = x.detach().double(), layer.weight.detach().double(), gradient.double()
    wanted = (wide @ tall.T, given @ tall, given.flatten(0, 1).T @ wide.flatten(0, 1))
    for (name, bound), ours, theirs in zip(FP8_BOUNDS.items(), found, wanted, strict=True):
        yield {"what": f"fp8 product: {name}", "against": "float64", "error": relative_error(ours, theirs), "bound": bound}
    yield from _loss_rows("fp8", summed_loss_in_fp8, torch.bfloat16, device, FP8_LOSS_BOUND)


if __name__ == "__main__":
    main()

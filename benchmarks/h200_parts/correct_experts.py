"""A child: every step of a layer with experts, by the kernels that the trainer takes here, against plain definitions in float64.

Visits are as uneven as they can be: many experts without a token, one with most of them. Grouped products are checked by each way that
there is here, and timed at the shapes of the cases, because a way that is right may still be the slower one. At last a whole layer: its
result twice, bit by bit, its gradients, and whether the host waits for the device anywhere in it.
"""

from __future__ import annotations

import argparse
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from h200_parts.child import hand_over, hand_row, note
from h200_parts.correct_kernels import guarded
from h200_parts.mixtures import DEEPSEEK, QWEN, TINY_QWEN
from h200_parts.reference import relative_error
from h200_parts.stepper import start
from meshwright.describe.model import Model
from meshwright.train.kernels import grouped
from meshwright.train.kernels.expert_gate import Groups, weighted_gate
from meshwright.train.kernels.grouped import LOOP, OWN, TORCH, GroupedArithmetic
from meshwright.train.kernels.layer_functions import HAS_KERNELS
from meshwright.train.kernels.routes import collected, routes_to, spread, weights_of_copies
from meshwright.train.kernels.scores import highest, logits_of
from meshwright.train.model.attention import Context, attend
from meshwright.train.model.experts import ExpertLayer
from meshwright.train.model.transformer import Block, feed_forward

BOUND = 2e-2  # bf16, as other kernels have it
FP8_BOUND = 5e-2
ROUTER_BOUND = 1e-5  # tensor cores add up fp32 a little less exactly than a processor does
COUNTS = ((0, 300, 0, 1, 77, 0), (0, 0, 512, 0, 0, 0), (1, 0, 0, 0, 0, 0))  # of one length: kernels are compiled and tuned once
LAYER = replace(TINY_QWEN, hidden=256, experts=replace(QWEN.experts, hidden=128, num_active=4, num_experts=32))
ROUNDS = 10  # of timed products
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
    for check in (routing, gates, router, products, narrow_products, latent_heads, layers, compiled_router, rates):
        for row in guarded(check, device, seed):
            hand_row(row)
            num_checks += 1
            outcome = f"{row['error']:.2e} of {row['bound']:.0e}" if "error" in row else row.get("broke") or row["timed"]
            note(f"{row['what']}: {outcome}")
    hand_over({"num_checks": num_checks, "seed": seed})


def choices(device: torch.device) -> dict[str, tuple[Tensor, int]]:
    """Experts that tokens visit, and how many there are: an even choice and the worst ones."""
    drawn = torch.rand(700, 128, device=device).argsort(dim=1)[:, :8]
    return {
        "drawn": (drawn, 128),
        "all to the same": (torch.tensor([5, 2], device=device).expand(700, 2).contiguous(), 16),
        "one token": (torch.tensor([[3, 1]], device=device), 64),
        "some dropped": (torch.where(torch.rand_like(drawn.float()) < 0.3, -1, drawn), 128),
    }


def routing(device: torch.device, seed: int) -> Checks:
    """Sorting, copies of rows and their sums, and the weights of visits; forward and backward."""
    for words, (chosen, num_experts) in choices(device).items():
        x = torch.randn(len(chosen), 96, device=device).bfloat16().requires_grad_()
        weights = torch.rand(chosen.shape, device=device).requires_grad_()
        routes = routes_to(chosen, num_experts)
        keys = torch.where(chosen == -1, num_experts, chosen).flatten()
        wanted_order = torch.sort(keys, stable=True).indices[: len(routes.order)]
        is_sorted = torch.equal(routes.order, wanted_order) and torch.equal(routes.counts, keys.bincount(minlength=num_experts + 1)[:-1])
        yield _row(f"visits sorted, {words}", "a stable sort", 0.0 if is_sorted else 1.0, 0.5)
        visits = weights_of_copies(weights, routes)
        out = collected(3 * spread(x, routes), routes)
        wide, factors = x.detach().double().requires_grad_(), weights.detach().double().requires_grad_()
        wanted = 3 * wide * (chosen != -1).sum(dim=1, keepdim=True)
        cotangent = torch.randn(out.shape, device=device).bfloat16()
        found = (out, *torch.autograd.grad(out, x, cotangent))
        right = (wanted, *torch.autograd.grad(wanted, wide, cotangent.double()))
        yield _row(f"copies and sums, {words}", "float64", _worst(found, right), BOUND)
        given = torch.randn(visits.shape, device=device)
        (d_weights,) = torch.autograd.grad(visits, weights, given)
        (d_factors,) = torch.autograd.grad(factors.flatten()[wanted_order], factors, given.double())
        yield _row(f"weights of visits, {words}", "float64", _worst((d_weights,), (d_factors,)), 1e-6)


def gates(device: torch.device, seed: int) -> Checks:
    """The weighted gate and its gradients, SwiGLU and gpt-oss's, with and without biases."""
    counts = torch.tensor([0, 200, 0, 1, 57, 0], device=device)
    for limit in (0.0, 1.5):
        for has_bias in (False, True):
            inputs = [torch.randn(258, 2 * 768, device=device).bfloat16(), torch.rand(258, device=device)]
            inputs += [torch.randn(6, 2 * 768, device=device).bfloat16()] if has_bias else []
            wide = [one.double().cpu().requires_grad_() for one in inputs]
            inputs = [one.requires_grad_() for one in inputs]
            found = weighted_gate(inputs[0], inputs[1], limit, Groups(inputs[2], counts) if has_bias else None)
            wanted = weighted_gate(wide[0], wide[1], limit, Groups(wide[2], counts.cpu()) if has_bias else None)
            cotangent = torch.randn(found.shape, device=device).bfloat16()
            ours = (found, *torch.autograd.grad(found, inputs, cotangent))
            theirs = (wanted, *torch.autograd.grad(wanted, wide, cotangent.double().cpu()))
            what = f"{'clamped' if limit else 'SwiGLU'} gate of experts{' with biases' if has_bias else ''}, values and gradients"
            yield _row(what, "float64", _worst([one.cpu() for one in ours], theirs), BOUND)


def router(device: torch.device, seed: int) -> Checks:
    """The router's product with its gradients, and the best scores."""
    x = torch.randn(4, 100, 256, device=device).bfloat16().requires_grad_()
    weight = torch.randn(128, 256, device=device).bfloat16().requires_grad_()
    found = logits_of(x, weight, None)
    wide = [one.detach().double().requires_grad_() for one in (x, weight)]
    wanted = wide[0] @ wide[1].T
    yield _row("logits of a router in fp32", "float64", relative_error(found.detach(), wanted.detach()), ROUTER_BOUND)
    given = torch.randn(found.shape, device=device)
    pairs = zip(torch.autograd.grad(found, (x, weight), given), torch.autograd.grad(wanted, wide, given.double()), strict=True)
    yield _row("gradients of a router's product", "float64", max(relative_error(one, other) for one, other in pairs), 4e-3)
    scores = torch.randn(3, 500, 128, device=device).round(decimals=1)
    right = torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :8]
    yield _row("highest scores, many of them equal", "a stable sort", float((highest(scores, 8) != right).float().mean()), 1e-9)


def ways() -> list[GroupedArithmetic]:
    """The ways to compute grouped products that there may be here."""
    return [TORCH, OWN] if HAS_KERNELS and torch.cuda.is_available() else [LOOP]


def products(device: torch.device, seed: int) -> Checks:
    """Grouped products and both gradients by each way, with empty groups."""
    chosen = grouped.arithmetic_for(device, torch.bfloat16)
    note(f"the trainer's grouped products are by: {chosen.name}")
    for counts in COUNTS:
        for way in ways():
            yield from _guarded_rows(f"grouped products by {way.name}, {counts} rows", _product_rows, way, counts, device, BOUND)


def narrow_products(device: torch.device, seed: int) -> Checks:
    """Grouped products in fp8; gradients of weights are in bf16."""
    from meshwright.train.kernels.grouped_fp8 import fp8_arithmetic_for

    way = fp8_arithmetic_for(device, torch.bfloat16)
    note(f"the trainer's grouped products in fp8 are by: {way.name}")
    yield from _product_rows(f"grouped products in fp8 by {way.name}", way, COUNTS[0], device, FP8_BOUND)


def latent_heads(device: torch.device, seed: int) -> Checks:
    """Attention of heads whose values are narrower than their keys, as the trainer leaves them on a GPU."""
    wide = [torch.randn(2, 700, 4, width, device=device).bfloat16() for width in (192, 192, 128)]
    context, cotangent = Context(positions=torch.arange(700, device=device)), torch.randn(2, 700, 4, 128, device=device).bfloat16()
    found = _attended(wide, cotangent, lambda q, k, v: attend(q, k, v, context))
    wanted = _attended([one.double() for one in wide], cotangent.double(), _written_out)
    yield _row("attention with values narrower than keys, values and gradients", "float64", _worst(found, wanted), BOUND)


def _attended(heads: list[Tensor], cotangent: Tensor, attention: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    inputs = [one.clone().requires_grad_() for one in heads]
    out = attention(*inputs)
    return out, *torch.autograd.grad(out, inputs, cotangent)


def _written_out(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention by its definition."""
    scores = torch.einsum("bthd,bshd->bhts", query, key) / query.shape[-1] ** 0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).triu(1)
    return torch.einsum("bhts,bshd->bthd", scores.masked_fill(hidden, float("-inf")).softmax(dim=-1), value)


def _guarded_rows(what: str, check: Callable[..., Checks], *arguments: Any) -> Checks:
    try:
        yield from check(what, *arguments)
    except Exception as error:  # a way that is not there must not hide the others
        yield {"what": what, "broke": f"{type(error).__name__}: {str(error)[:200]}"}


def _product_rows(what: str, way: GroupedArithmetic, counts: tuple[int, ...], device: torch.device, bound: float) -> Checks:
    rows, gradient = torch.randn(sum(counts), 256, device=device), torch.randn(sum(counts), 384, device=device)
    factors = [one.bfloat16() for one in (rows, gradient, torch.randn(len(counts), 384, 256, device=device))]
    sizes = torch.tensor(counts, device=device)
    found, wanted = (
        (arithmetic.forward(r, w, sizes), arithmetic.to_input(g, w, sizes), arithmetic.to_weight(g, r, sizes))
        for arithmetic, (r, g, w) in ((way, factors), (LOOP, [one.double() for one in factors]))
    )
    yield _row(what, "float64", _worst(found, wanted), bound)


def layers(device: torch.device, seed: int) -> Checks:
    """A whole layer twice, against float64, and without a wait of the host."""
    layer = _filled(feed_forward(LAYER, 0), device, torch.bfloat16)
    x = torch.randn(2, 150, LAYER.hidden, device=device).bfloat16().requires_grad_()
    cotangent = torch.randn(x.shape, device=device).bfloat16()
    parameters = [x, *layer.experts.parameters()]

    def run() -> tuple[Tensor, ...]:
        out = layer(x)
        return out, *torch.autograd.grad(out, parameters, cotangent)

    found, again = run(), run()
    differs = not all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
    yield _row("a layer with experts twice, bit by bit", "itself", float(differs), 0.5)
    wide, choice = x.detach().double().requires_grad_(), layer.router(x.detach())
    matrices = [one.detach().double().requires_grad_() for one in layer.experts.parameters()]
    out = _plain(wide.flatten(0, 1), choice.experts, choice.weights.detach().double(), matrices, LAYER)
    wanted = torch.autograd.grad(out, [wide, *matrices], cotangent.double().flatten(0, 1))
    # The gradient of x also goes through the router, which the definition here holds fixed: so it is left out.
    ours, right = (found[0].flatten(0, 1), *found[2:]), (out, *wanted[1:])
    yield _row("a layer with experts, values and gradients of its experts", "float64", _worst(ours, right), 3 * BOUND)
    if device.type != "cuda":
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
        waits = ""
    except RuntimeError as error:
        waits = str(error)[:200]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    yield {**_row("waits of the host in a layer with experts", "none", float(bool(waits)), 0.5), **({"where": waits} if waits else {})}


def compiled_router(device: torch.device, seed: int) -> Checks:
    """The norm with the router as one compiled piece without a break, which is how the trainer runs it, against the same as written."""
    block = Block(LAYER, 0)
    _filled(block.mlp, device, torch.bfloat16)
    torch.nn.init.ones_(block.mlp_norm.weight)  # without first weights it has whatever the memory held
    block = block.to(device, torch.bfloat16)
    x = torch.randn(2, 150, LAYER.hidden, device=device).bfloat16()
    scored = torch.compile(block.scored, fullgraph=True, backend="inductor" if device.type == "cuda" else "aot_eager")
    (past, rows, found), (old, wide, wanted) = scored(x), block.scored(x)
    yield _row("the norm before a router, compiled", "as written", _worst((past, rows), (old, wide)), BOUND)
    # Scores that are nearly equal may change places where the norm rounds otherwise, so that weights are compared in their order.
    yield _row("weights of visits, compiled", "as written", _worst((found.weights,), (wanted.weights,)), BOUND)


def _filled(module: torch.nn.Module, device: torch.device, dtype: torch.dtype) -> ExpertLayer:
    assert isinstance(module, ExpertLayer), "every layer of the model has experts"
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape) / parameter.shape[-1] ** 0.5)
    return module.to(device, dtype)


def _plain(rows: Tensor, chosen: Tensor, weights: Tensor, matrices: list[Tensor], model: Model) -> Tensor:
    """What experts make of rows, expert by expert."""
    assert model.experts is not None
    gate_up, down = (one.view(model.experts.num_experts, -1, one.shape[-1]) for one in matrices)
    out = torch.zeros_like(rows)
    for expert in range(model.experts.num_experts):
        row, slot = (chosen == expert).nonzero(as_tuple=True)
        gate, up = (rows[row] @ gate_up[expert].T).chunk(2, dim=-1)
        made = (torch.nn.functional.silu(gate) * up) @ down[expert].T
        out = out.index_add(0, row, made * weights[row, slot, None])
    return out


def rates(device: torch.device, seed: int) -> Checks:
    """How fast each way is at the shapes of the cases."""
    for model in (QWEN, DEEPSEEK) if device.type == "cuda" else (TINY_QWEN,):
        assert model.experts is not None
        counts = torch.randint(0, model.experts.num_experts, (8192 * model.experts.num_active if device.type == "cuda" else 64,))
        sizes = counts.bincount(minlength=model.experts.num_experts).to(device)
        for way in ways():
            yield from _guarded_rows(f"grouped products of {model.name} by {way.name}", _rate_rows, way, model, sizes, device)


def _rate_rows(what: str, way: GroupedArithmetic, model: Model, sizes: Tensor, device: torch.device) -> Checks:
    assert model.experts is not None
    num_rows, num_in, num_out = int(sizes.sum()), model.hidden, 2 * model.experts.hidden
    rows, gradient = (torch.randn(num_rows, side, device=device).bfloat16() for side in (num_in, num_out))
    weight = torch.randn(len(sizes), num_out, num_in, device=device).bfloat16()
    works = {
        "forward": lambda: way.forward(rows, weight, sizes),
        "input gradient": lambda: way.to_input(gradient, weight, sizes),
        "weight gradient": lambda: way.to_weight(gradient, rows, sizes),
    }
    flops = 2.0 * num_rows * num_in * num_out
    found = {name: flops / _seconds(work, device) / 1e12 for name, work in works.items()}
    yield {"what": what, "timed": ", ".join(f"{name} {rate:.0f} TFLOP/s" for name, rate in found.items())}


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    finish = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    for _ in range(3):
        work()
    finish()
    started_s = time.perf_counter()
    for _ in range(ROUNDS):
        work()
    finish()
    return (time.perf_counter() - started_s) / ROUNDS


def _row(what: str, against: str, error: float, bound: float) -> dict[str, Any]:
    return {"what": what, "against": against, "error": error, "bound": bound}


def _worst(found: Any, wanted: Any) -> float:
    """The largest relative error; of what is zero, the largest entry."""
    return max(
        relative_error(one.detach(), other.detach()) if bool(other.detach().abs().max() > 0) else float(one.detach().abs().max())
        for one, other in zip(found, wanted, strict=True)
    )


if __name__ == "__main__":
    main()

"""A child: whether the kernels that make weights from few bits, and the products that use them, are right on this card.

Weights made by a kernel must equal those of plain operations to the last bit: both round once, from fp32. Products with adapters, and their
gradients, are compared with fp32 arithmetic on the same weights.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from h200_parts.child import hand_over, note

from meshwright.train.kernels import few_bits
from meshwright.train.kernels.adapted import adapted
from meshwright.train.kernels.few_bits import KINDS, FewBits, Held

# Rows, columns of the whole matrix, and those on a rank: odd numbers of rows, parts that begin within a block, and the largest of 70B.
SHAPES = (
    (5, 64, slice(0, 64)),
    (33, 320, slice(96, 224)),
    (128, 4096, slice(0, 4096)),
    (7, 200, slice(0, 200)),
    (64, 14336, slice(0, 14336)),
)
LARGE = ((57344, 8192, slice(0, 8192)),)
RANKS, TOKENS = 48, 512
TOLERANCE = 2.0**-6  # of the largest entry: roundings to bf16


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    device = torch.device(parser.parse_args().device)
    shapes = SHAPES + (LARGE if device.type == "cuda" else ())
    rows = [weights_of(base, shape, device) for base in KINDS for shape in shapes]
    rows += [product_of(base, device) for base in ("bf16", *KINDS)]
    for row in rows:
        note(f"{row['what']}: {'right' if row['is_right'] else 'WRONG'}, worst difference {row['worst']:.2e}")
    hand_over({"rows": rows, "has_kernels": few_bits.HAS_KERNELS and device.type == "cuda"})


def filled(base: str, rows: int, whole_columns: int, columns: slice, device: torch.device) -> FewBits:
    """A random matrix in few bits on the device."""
    generator = torch.Generator(device=device).manual_seed(rows + whole_columns)
    few = KINDS[base](rows, columns, torch.bfloat16, device)
    for first in range(0, rows, 4096):
        few.store(first, torch.randn(min(4096, rows - first), whole_columns, generator=generator, device=device) * 0.02)
    return few


def weights_of(base: str, shape: tuple[int, int, slice], device: torch.device) -> dict[str, Any]:
    """The weights that the device makes, against those of plain operations."""
    few = filled(base, *shape, device)
    found, held = few.weight(), few.held()
    on_host = Held(*(part.cpu() if isinstance(part, torch.Tensor) else part for part in held))
    wanted = on_host.weight(few.num_columns, few.dtype)
    worst = float((found.cpu().float() - wanted.float()).abs().max())
    return {"what": f"{base} {shape[0]} x {few.num_columns}", "is_right": torch.equal(found.cpu(), wanted), "worst": worst}


def product_of(base: str, device: torch.device) -> dict[str, Any]:
    """A product with adapters and its gradients in bf16, against fp32."""
    generator = torch.Generator(device=device).manual_seed(7)

    def drawn(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator, device=device) / 16).to(torch.bfloat16).requires_grad_()

    x, a, b, seed = drawn(1, TOKENS, 512), drawn(RANKS, 512), drawn(768, RANKS), drawn(1, TOKENS, 768).detach()
    held = Held(drawn(768, 512).detach()) if base == "bf16" else filled(base, 768, 512, slice(0, 512), device).held()
    out = adapted(x, held, a, b, 2.0)
    found = [out.detach(), *torch.autograd.grad(out, (x, a, b), seed)]
    inputs = [each.detach().float().requires_grad_() for each in (x, a, b)]
    plain = inputs[0] @ held.weight(512, torch.bfloat16).float().T + 2.0 * (inputs[0] @ inputs[1].T) @ inputs[2].T
    wanted = [plain.detach(), *torch.autograd.grad(plain, inputs, seed.float())]
    worst = max(float((one.float() - other).abs().max() / other.abs().max()) for one, other in zip(found, wanted, strict=True))
    return {"what": f"product and gradients, {base} base", "is_right": worst <= TOLERANCE, "worst": worst}


if __name__ == "__main__":
    main()

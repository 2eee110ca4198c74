"""Layouts to try over NCCL: the whole matrix of the tests in fp32, and a set of other precisions that has every pair of choices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations, product

from layout_cases import Case, every_option, factorisations, matrix

from meshwright.describe.model import Model
from meshwright.describe.workload import Workload
from meshwright.layout import CP_KINDS, USUAL_RECOMPUTE, Layout, parse_layout

# Wide enough for fp8 (multiples of 16 on each of four ranks) and for FlashAttention (heads of 64).
MODEL = Model(
    name="wide-llama",
    num_layers=4,
    hidden=512,
    ffn_hidden=1024,
    num_heads=8,
    num_kv_heads=4,
    head_dim=64,
    vocab_size=512,
)
WIDE = replace(MODEL, num_layers=8, hidden=2048, ffn_hidden=4096, num_heads=16, head_dim=128)  # whose kernels take longer than their launch
WORKLOAD = Workload(name="wide", model="", seq_len=256, global_batch=8, precision="fp32", packed=False)

# Bounds on losses, and on a gradient's distance from the fp32 one of one rank, of its norm: those of `h200.py correct`.
LOSS_BOUND = {"fp32": 1e-5, "bf16": 5e-3, "fp8-current": 1e-2}
GRADIENT_BOUND = {"fp32": 1e-5, "bf16": 4e-2, "fp8-current": 0.2}

CHOICES: Mapping[str, tuple[str, ...]] = {
    "degrees": ("dp=4", "pp=4", "tp=4", "cp=4", "pp=2,dp=2", "tp=2,dp=2", "cp=2,dp=2", "tp=2,pp=2", "cp=2,pp=2", "tp=2,cp=2"),
    "schedule": ("schedule=1f1b", "schedule=interleaved,vp=2", "schedule=zero-bubble"),
    "zero": ("zero=0", "zero=1", "zero=2", "zero=3"),
    "kind": tuple(f"cp_kind={kind}" for kind in CP_KINDS),
    "recompute": tuple(f"recompute={kind}" for kind in USUAL_RECOMPUTE),
    "precision": tuple(LOSS_BOUND),
    "packed": ("whole", "packed"),
}

Choice = dict[str, str]


def fp32_cases(world_sizes: tuple[int, ...], *, whole: bool = False) -> list[Case]:
    """Every factorisation of so many ranks once, with choices that take turns, few ranks first; or the `whole` matrix of the tests."""
    if whole:
        return sorted((case for case in matrix() if case.layout.num_ranks in world_sizes), key=lambda case: case.layout.num_ranks)
    found = []
    for num_ranks in world_sizes:
        for turn, degrees in enumerate(factorisations(num_ranks)):
            options = list(every_option(degrees, turn))
            found.append(options[turn % len(options)])
    return found


def pairwise() -> list[Choice]:
    """Choices in which every two values that can be together are together once or more: those with the most new pairs first."""
    legal = [choice for values in product(*CHOICES.values()) if (choice := _legal(dict(zip(CHOICES, values, strict=True)))) is not None]
    pairs = [frozenset(combinations(sorted(choice.items()), 2)) for choice in legal]
    missing = frozenset().union(*pairs)
    chosen = []
    while missing:
        best = max(range(len(legal)), key=lambda i: len(pairs[i] & missing))
        chosen.append(legal[best])
        missing -= pairs[best]
    return chosen


def _legal(choice: Choice) -> Choice | None:
    """The choice without what means nothing in its layout; None where two of its values exclude each other."""
    layout = parse_layout(choice["degrees"])
    if layout.pp == 1:
        del choice["schedule"]
    if layout.dp * layout.cp == 1:
        del choice["zero"]
    if layout.cp == 1:
        del choice["kind"]
    if layout.pp == 4 and "vp=2" in choice.get("schedule", ""):
        return None  # eight chunks of four layers
    if "zero-bubble" in choice.get("schedule", "") and choice.get("zero") == "zero=3":
        return None
    return choice


def layout_of(choice: Choice) -> Layout:
    """The layout of a choice; micro-batches as small as the pipeline likes."""
    text = ",".join(choice[name] for name in ("degrees", "schedule", "zero", "kind", "recompute") if name in choice)
    layout = parse_layout(text)
    return replace(layout, micro_batch=1 if layout.dp * layout.pp > 2 else 2)


def workload_of(choice: Choice) -> Workload:
    """What is trained under a choice."""
    return replace(WORKLOAD, precision=choice["precision"], packed=choice["packed"] == "packed")


def words(choice: Choice) -> Iterator[str]:
    """The choice for a table, without what goes without saying."""
    yield choice["precision"]
    yield from (choice[name] for name in ("degrees", "schedule", "zero", "kind", "recompute") if name in choice)
    yield choice["packed"]

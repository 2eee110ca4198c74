"""Layouts whose runs must equal the run of one process: those that tests take on gloo, and `benchmarks/nccl.py` on a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations, product

from parity import ATTENTIONS, MODELS, PADDED, SHARED, WORKLOAD

from meshwright.describe.model import Model
from meshwright.describe.workload import Workload
from meshwright.layout import AXES, CP_KINDS, USUAL_RECOMPUTE, Layout, parse_layout

SCHEDULES = ("schedule=1f1b", "schedule=interleaved,vp=2", "schedule=zero-bubble", "schedule=zero-bubble,vp=2")
ZEROS = ("zero=0", "zero=1", "zero=2", "zero=3", "zero=1,zero_ranks=2", "zero=2,zero_ranks=2", "zero=3,zero_ranks=2")
KINDS = tuple(f"cp_kind={kind}" for kind in CP_KINDS)
RECOMPUTES = tuple(f"recompute={kind}" for kind in USUAL_RECOMPUTE)
ORDERS = ("order=tp-cp-pp-dp", "order=dp-tp-cp-pp", "order=pp-dp-cp-tp")
OVERLAPS = ("overlap_dp=yes", "overlap_dp=yes", "overlap_dp=no")


@dataclass(frozen=True)
class Case:
    """A layout, and what is trained under it."""

    layout: Layout
    model: str = "llama"
    packed: bool = True

    @property
    def shapes(self) -> Model:
        """The model, with as many layers as the pipeline needs."""
        model = {**MODELS, **SHARED, **PADDED, **ATTENTIONS}[self.model]
        return replace(model, num_layers=8) if self.layout.pp * self.layout.vp > 6 else model

    @property
    def workload(self) -> Workload:
        """The workload."""
        return replace(WORKLOAD, packed=self.packed)

    def __str__(self) -> str:
        layout = self.layout
        named = f"{layout},{layout.schedule},{layout.cp_kind},{'-'.join(layout.order)}"
        uneven = f",{layout.first_stage_layers}to{layout.last_stage_layers}" if layout.first_stage_layers else ""
        return f"{self.model},{'packed' if self.packed else 'whole'},{named}{uneven}{'' if layout.overlap_dp else ',no-overlap'}"


def case(text: str, model: str = "llama", packed: bool = True) -> Case:
    """A case from a layout as users write it."""
    return Case(parse_layout(text), model, packed)


def factorisations(num_ranks: int) -> Iterator[tuple[int, int, int, int]]:
    """Every (dp, pp, cp, tp) whose product is `num_ranks`."""
    divisors = [d for d in range(1, num_ranks + 1) if num_ranks % d == 0]
    yield from (degrees for degrees in product(divisors, repeat=4) if math.prod(degrees) == num_ranks)


def every_option(degrees: tuple[int, int, int, int], offset: int) -> Iterator[Case]:
    """Cases of one factorisation that have each legal schedule, ZeRO stage and kind once or more, and take turns in the rest."""
    dp, pp, cp, tp = degrees
    schedules = (("",), SCHEDULES[::2], SCHEDULES)[(pp > 1) + (1 < pp < 8)]
    zeros = (("",), ZEROS[:4], ZEROS)[(dp * cp > 1) + (dp * cp > 2)]
    kinds = KINDS if cp > 1 else ("",)
    for i in range(max(len(schedules), len(zeros), len(kinds))):
        turn = i + offset
        schedule, zero, kind = schedules[turn % len(schedules)], zeros[i % len(zeros)], kinds[turn % len(kinds)]
        micro_batch = max(8 // (dp * max(pp, 1 + turn % 2)), 1)
        rest = [RECOMPUTES[turn % 3], ORDERS[turn // 2 % 3], OVERLAPS[turn // 3 % 3], f"mbs={micro_batch}"]
        chosen = [f"dp={dp},pp={pp},cp={cp},tp={tp}", zero, schedule, kind, *rest]
        model, packed = tuple(MODELS)[turn // 2 % 3], turn % 4 != 0
        if "zero-bubble" in schedule and "zero=3" in zero:  # the two exclude each other: one case for each
            yield case(",".join(chosen).replace("schedule=zero-bubble", "schedule=interleaved"), model, packed)
            chosen[1] = "zero=2"
        yield case(",".join(filter(None, chosen)), model, packed)


def matrix() -> list[Case]:
    """Every case of the full matrix, each once."""
    found: dict[Case, None] = {}
    for num_ranks in (1, 2, 4, 8):
        for offset, degrees in enumerate(factorisations(num_ranks)):
            found.update(dict.fromkeys(every_option(degrees, offset)))
    found.update(dict.fromkeys(every_option((2, 2, 2, 2), 0)))
    products = [
        ("pp=2,dp=2,mbs=2", SCHEDULES, ZEROS[:4]),
        ("cp=2,dp=2,mbs=2", KINDS, ZEROS),
        ("pp=2,cp=2,mbs=2", KINDS, SCHEDULES),
        ("tp=2,cp=2,mbs=4", KINDS, RECOMPUTES),
        ("tp=2,pp=2,dp=2,mbs=2", [f"order={'-'.join(order)}" for order in permutations(AXES)], ["zero=1"]),
    ]
    for base, ones, others in products:
        for one, other in product(ones, others):
            if not ("zero-bubble" in one and "zero=3" in other):
                found.setdefault(case(f"{base},{one},{other}"))
    return list(found)


COVERING = [
    case("pp=2,vp=2,cp=2,tp=2,mbs=4,zero=0,schedule=zero-bubble,cp_kind=all-gather,recompute=full,order=dp-tp-cp-pp", packed=False),
    case("dp=2,cp=2,tp=2,mbs=4,zero=0,cp_kind=all-to-all,recompute=selective,order=pp-dp-cp-tp,overlap_dp=no", "gpt"),
    case("dp=2,pp=2,mbs=2,zero=3,schedule=1f1b,recompute=full,order=dp-tp-cp-pp,overlap_dp=no", packed=False),
    case("pp=2,cp=2,mbs=4,schedule=1f1b,cp_kind=all-to-all,recompute=selective,order=pp-dp-cp-tp", packed=False),
    case("dp=2,cp=2,mbs=2,zero_ranks=2,cp_kind=all-gather,recompute=full,overlap_dp=no", packed=False),
    case("cp=2,tp=2,mbs=4,zero=3,cp_kind=all-gather,recompute=selective,overlap_dp=no"),
    case("dp=2,tp=2,mbs=4,recompute=selective,overlap_dp=no", packed=False),
    case("dp=2,cp=2,mbs=2,zero=2,zero_ranks=2,cp_kind=ring,order=pp-dp-cp-tp", "tied", packed=False),
    case("dp=2,cp=2,mbs=2,zero=3,zero_ranks=2,cp_kind=all-gather,recompute=full", "gpt"),
    case("pp=2,tp=2,mbs=4,schedule=zero-bubble,recompute=full,order=dp-tp-cp-pp"),
    case("pp=2,tp=2,mbs=4,schedule=1f1b,recompute=full,order=pp-dp-cp-tp,overlap_dp=no", "tied", packed=False),
    case("pp=2,cp=2,mbs=4,schedule=zero-bubble,cp_kind=all-gather,recompute=selective,overlap_dp=no", "tied", packed=False),
    case("dp=2,pp=2,vp=2,mbs=2,zero=0,schedule=zero-bubble,recompute=full,order=dp-tp-cp-pp,overlap_dp=no", "gpt", packed=False),
    # Stages of unequal size; in the last, four layers and the two ends share six chunks, and the first is the embedding alone.
    case("pp=2,first_stage_layers=1,last_stage_layers=3,mbs=2"),
    case("pp=2,dp=2,first_stage_layers=3,last_stage_layers=1,schedule=zero-bubble,zero=2", "gpt"),
    case("pp=2,vp=3,mbs=2", "tied"),
    # A tied table under ZeRO 3: on one stage, and on both ends of a pipeline.
    case("dp=2,mbs=4,zero=3", "tied"),
    case("pp=2,dp=2,mbs=2,zero=3", "tied"),
    # A state of which every rank holds a whole copy is sharded in name only.
    case("dp=2,mbs=4,zero=3,zero_ranks=1"),
    case("dp=2,cp=2,mbs=4,zero=1,zero_ranks=1,cp_kind=all-gather"),
]
COPIES = [
    case("tp=4,mbs=4,recompute=full", "few"),
    case("tp=4,dp=2,mbs=2,zero=1,order=dp-tp-cp-pp", "few", packed=False),
    case("tp=2,pp=2,vp=2,mbs=2,schedule=zero-bubble,recompute=selective", "one"),
    case("tp=2,dp=2,mbs=2,zero=0,overlap_dp=no", "one", packed=False),
    case("tp=2,dp=2,mbs=2,zero=2", "one"),
    case("tp=2,dp=2,mbs=2,zero=3,recompute=full,order=dp-tp-cp-pp", "one"),
    case("tp=2,cp=2,mbs=4,cp_kind=ring,zero=1", "one"),
    case("tp=2,cp=2,mbs=4,cp_kind=all-gather,zero=3", "one"),
]
PADDINGS = [
    case("tp=2,mbs=4", "prime"),
    case("tp=4,mbs=4,recompute=full", "prime-tied"),
    case("tp=4,mbs=8", "tiny"),
    case("tp=2,dp=2,mbs=2,zero=0", "prime", packed=False),
    case("tp=2,dp=2,mbs=2,zero=1,order=dp-tp-cp-pp", "prime-tied"),
    case("tp=2,dp=2,mbs=2,zero=3", "prime"),
    case("tp=4,dp=2,mbs=2,zero=3", "tiny"),
    case("tp=2,pp=2,mbs=2,schedule=zero-bubble", "prime-tied"),
]
ATTENDING = [
    case("tp=2,cp=2,mbs=4,cp_kind=ring,zero=1,recompute=selective", "gpt-oss"),
    case("cp=4,mbs=4,cp_kind=all-gather,zero=3", "gpt-oss", packed=False),
    case("cp=2,tp=2,mbs=4,cp_kind=all-to-all,recompute=full", "gpt-oss"),
    case("tp=2,pp=2,vp=2,mbs=2,schedule=zero-bubble", "mistral"),
    case("cp=4,mbs=4,cp_kind=ring,recompute=full", "mistral", packed=False),
    case("tp=4,mbs=4,recompute=full", "few-norms"),
    case("tp=2,dp=2,mbs=2,zero=3", "qwen3"),
    case("tp=2,pp=2,mbs=2,schedule=zero-bubble,recompute=selective", "latent"),
    case("tp=2,dp=2,mbs=2,zero=3,recompute=full", "latent", packed=False),
    case("tp=2,cp=2,mbs=4,cp_kind=all-to-all", "latent"),
    case("tp=2,cp=2,mbs=4,cp_kind=all-gather,zero=2", "direct"),
    case("tp=2,cp=2,pp=2,vp=2,mbs=4,cp_kind=ring", "direct", packed=False),
]
SIXTEEN = case("dp=2,pp=2,cp=2,tp=2,vp=2,mbs=2,zero=2", "tied")
MATRIX = [found for found in matrix() if found not in COVERING]

"""Small mixtures of experts, and layouts under which their runs must equal the run of one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from layout_cases import KINDS, ORDERS, RECOMPUTES, SCHEDULES, ZEROS, factorisations
from parity import ATTENTIONS, LLAMA, TRAINING, WORKLOAD

from meshwright.describe.model import Experts, Model
from meshwright.describe.router import Balance, Router
from meshwright.describe.workload import Training, Workload
from meshwright.layout import Layout, parse_layout

MIXTRAL = replace(LLAMA, name="small-mixtral", experts=Experts(num_experts=8, num_active=2, hidden=16))
DEEPSEEK = replace(
    LLAMA,
    name="small-deepseek",
    experts=Experts(
        num_experts=16,
        num_active=3,
        hidden=8,
        num_shared=2,
        num_dense_layers=1,
        router=Router(scores="sigmoid", scale=2.5, num_groups=4, num_chosen_groups=2, has_selection_bias=True),
    ),
)
GPT_OSS = replace(
    LLAMA,
    name="small-gpt-oss",
    biases=True,
    experts=Experts(num_experts=8, num_active=4, hidden=16, activation_limit=1.0, router=Router(chooses_first=True, has_bias=True)),
)
MODELS = {"mixtral": MIXTRAL, "deepseek": DEEPSEEK, "gpt-oss": GPT_OSS}
# The same experts with the attention of their families: the name begins with the mixture.
WHOLE = {
    "deepseek with latent attention": replace(ATTENTIONS["latent"], name="whole-deepseek", experts=DEEPSEEK.experts),
    "gpt-oss with sinks and windows": replace(
        ATTENTIONS["gpt-oss"], name="whole-gpt-oss", biases=True, attention_biases=False, experts=GPT_OSS.experts
    ),
    "mixtral with norms of heads": replace(ATTENTIONS["qwen3"], name="whole-qwen3", experts=MIXTRAL.experts),
}
# Rates are large enough to change choices within a few steps.
TRAININGS = {
    "mixtral": replace(TRAINING, balance=Balance(auxiliary=0.1, z=0.01)),
    "deepseek": replace(TRAINING, balance=Balance(auxiliary=0.01, bias_rate=0.05)),
    "gpt-oss": replace(TRAINING, balance=Balance(auxiliary=0.1, scope="batch")),
}
# One sequence in a micro-batch and four tokens on a rank: fewer tokens than experts, and some experts get none.
SHORT = replace(WORKLOAD, seq_len=16)


@dataclass(frozen=True)
class Case:
    """A layout, and the mixture that is trained under it."""

    layout: Layout
    model: str = "mixtral"
    short: bool = False

    @property
    def shapes(self) -> Model:
        """The model, with as many layers as the pipeline needs."""
        model = WHOLE[self.model] if self.model in WHOLE else MODELS[self.model]
        return replace(model, num_layers=8) if self.layout.pp * self.layout.vp > 6 else model

    @property
    def workload(self) -> Workload:
        """The workload."""
        return SHORT if self.short else WORKLOAD

    @property
    def training(self) -> Training:
        """How it is trained, with the balance of its family."""
        return TRAININGS[self.model.partition(" ")[0]]

    def __str__(self) -> str:
        layout = self.layout
        return f"{self.model}{',short' if self.short else ''},{layout},{layout.schedule},{layout.cp_kind},{'-'.join(layout.order)}"


def case(text: str, model: str = "mixtral", short: bool = False) -> Case:
    """A case from a layout as users write it."""
    return Case(parse_layout(text), model, short)


def degrees() -> Iterator[tuple[int, int, int, int, int, int]]:
    """Every (dp, pp, cp, tp, ep) of 1, 2, 4 and 8 ranks, with every micro-batch that gives 1, 2 or 4 rounds, or as many as stages."""
    for num_ranks in (1, 2, 4, 8):
        for dp, pp, cp, tp in factorisations(num_ranks):
            for ep, rounds in product((1, 2, 4, 8), (1, 2, 4)):
                micro_batch = WORKLOAD.global_batch // (dp * max(rounds, pp))
                if (dp * cp * tp) % ep == 0 and micro_batch:
                    yield dp, pp, cp, tp, ep, micro_batch


def matrix() -> Iterator[Case]:
    """Every one of `degrees`, taking turns in schedules, ZeRO stages, kinds of context parallelism, recompute, order and model."""
    for turn, (dp, pp, cp, tp, ep, micro_batch) in enumerate(dict.fromkeys(degrees())):
        schedules = (("",), SCHEDULES[::2], SCHEDULES)[(pp > 1) + (1 < pp < 8)]
        schedule = schedules[turn % len(schedules)]
        zeros = ZEROS if dp * cp > 2 else ZEROS[:4]
        zero = zeros[turn % len(zeros)]
        zero = zero.replace("zero=3", "zero=2") if "zero-bubble" in schedule else zero  # the two exclude each other
        chosen = [f"dp={dp},pp={pp},cp={cp},tp={tp},ep={ep},mbs={micro_batch}", zero, schedule]
        chosen += [KINDS[turn % 3] if cp > 1 else "", RECOMPUTES[turn // 2 % 3], ORDERS[turn // 3 % 3]]
        yield case(",".join(filter(None, chosen)), tuple(MODELS)[turn % 3])


COVERING = [
    case("ep=2,dp=2,mbs=2,zero=0"),
    case("ep=2,dp=4,mbs=1,zero=2,recompute=full", "deepseek"),
    case("ep=4,dp=2,tp=2,mbs=4,zero=1", "gpt-oss"),
    case("ep=2,cp=2,tp=2,mbs=4,zero=3,cp_kind=all-gather,recompute=selective", "deepseek"),
    case("tp=2,mbs=4,zero=1", "mixtral"),
    case("ep=2,tp=2,mbs=4", "deepseek with latent attention"),
    case("ep=2,cp=2,mbs=4,cp_kind=ring", "gpt-oss with sinks and windows"),
    case("ep=2,dp=2,mbs=2,zero=3,recompute=full", "mixtral with norms of heads"),
    case("ep=2,pp=2,dp=2,mbs=2,schedule=zero-bubble,zero=1", "mixtral"),
    case("ep=2,pp=2,vp=2,tp=2,mbs=2,schedule=interleaved,recompute=full,order=pp-dp-cp-tp", "deepseek"),
    case("ep=2,dp=2,cp=2,mbs=2,zero=3,zero_ranks=2,cp_kind=ring", "gpt-oss"),
    case("ep=4,dp=2,cp=2,tp=2,mbs=4,zero=2,cp_kind=all-to-all", "deepseek", short=True),
    case("ep=8,dp=8,mbs=1,zero=3,order=dp-tp-cp-pp", "mixtral", short=True),
    # Each expert divided over ranks, which are of tp, of dp, or of neither alone; also where all experts are on every part.
    case("dp=2,tp=2,ep=2,etp=2,mbs=2,zero=1", "deepseek"),
    case("etp=2,dp=2,mbs=2,zero=2", "gpt-oss"),
    case("ep=2,etp=2,dp=4,mbs=1,zero=3,recompute=full", "gpt-oss"),
    case("etp=2,tp=2,pp=2,mbs=2,schedule=zero-bubble", "mixtral"),
    case("ep=2,etp=2,dp=2,cp=2,tp=2,mbs=2,zero=2,zero_ranks=2,cp_kind=ring", "mixtral"),
]
MATRIX = [found for found in matrix() if found not in COVERING]
PRODUCTS = [
    case(f"{base},{one},{other}", model)
    for base, ones, others, model in (
        ("ep=2,pp=2,dp=2,mbs=2", SCHEDULES, ZEROS[:4], "deepseek"),
        ("ep=2,cp=2,dp=2,mbs=2", KINDS, ZEROS, "mixtral"),
        ("ep=2,tp=2,cp=2,mbs=4", KINDS, RECOMPUTES, "gpt-oss"),
    )
    for one, other in product(ones, others)
    if not ("zero-bubble" in one and "zero=3" in other)
]

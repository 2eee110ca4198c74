"""Memory of a rehearsed rank: by part, and the same as that of a rank whose others exist."""

from __future__ import annotations

from dataclasses import replace

import pytest
from expert_cases import DEEPSEEK, MIXTRAL
from on_rehearsal import kept_by_a_layer, memory_among_others, rehearsed_memory
from parity import LLAMA, WORKLOAD
from ranks import Pools

from meshwright.describe.model import Model
from meshwright.describe.workload import Adapters
from meshwright.layout import parse_layout
from meshwright.predict.footprint import stages
from meshwright.train.rehearse.memory import Held, Moment, levels_between, peak_of
from meshwright.train.rehearse.rank import Part

HELD = Held(weights_bytes=10, gradients_bytes=20, optimizer_bytes=30)
GLOO = 0.3  # of a peak, at most: copies that gloo makes of its own, and lets go of late; much in shapes as small as these

EARLY = 0.03  # of a peak: ranks that wait for one another take some buffers of ZeRO 3 one after another that a rank alone takes at once


# ZeRO 2: with as many ranks, in groups, and with gradients that are computed later.
SUMS_ALONE = ("ep=2,dp=4,zero=2", "ep=2,dp=4,zero=2,zero_ranks=2", "pp=2,dp=2,zero=2,schedule=zero-bubble")


def part_of(text: str, precision: str) -> Part:
    return Part(model=LLAMA, workload=replace(WORKLOAD, precision=precision), layout=parse_layout(text), rank=0, num_steps=1)


def test_levels_are_read_at_boundaries_and_peaks_between_them() -> None:
    # 5 are there at the first boundary; within it up to 12; 4 at the second, up to 6; the third ends the step
    changes = [(0, 5), (1, None), (2, 7), (3, -8), (4, None), (5, 2), (6, -1), (7, None), (8, 100)]
    assert levels_between(changes) == [(5, 12), (4, 6)]


def test_the_fullest_operation_is_taken_apart() -> None:
    moments = [Moment("forward of micro-batch 0, chunk 0", HELD, 60, 75), Moment("backward of micro-batch 0, chunk 0", HELD, 70, 100)]
    found = peak_of(moments)
    assert found.peak_at.startswith("backward") and found.peak_bytes == 100
    assert found.parts == {"weights": 10, "gradients": 20, "optimizer": 30, "activations": 10, "working": 30}
    assert sum(found.parts.values()) == found.peak_bytes


def test_what_a_forward_leaves_is_part_of_the_activations_where_it_is_the_fullest() -> None:
    moments = [Moment("forward of micro-batch 0, chunk 0", HELD, 60, 100), Moment("backward of micro-batch 0, chunk 0", HELD, 85, 90)]
    found = peak_of(moments)
    assert (found.activations_bytes, found.working_bytes, found.peak_at) == (25, 15, "forward of micro-batch 0, chunk 0")


def test_a_rank_without_others_takes_the_same_bytes_as_in_training(pools: Pools) -> None:
    part = part_of("mbs=2", "bf16")
    (real,) = pools.of(1).run(memory_among_others, part)
    assert rehearsed_memory(part) == real and real.activations_bytes > 0


@pytest.mark.parametrize(
    "text, precision",
    [("tp=2,dp=2", "bf16"), ("pp=4", "fp32"), ("dp=4,zero=3", "bf16")],
)
def test_a_rehearsed_rank_takes_the_memory_of_a_real_one(text: str, precision: str, pools: Pools) -> None:
    part = part_of(text, precision)
    for rank, real in enumerate(pools.of(part.layout.num_ranks).run(memory_among_others, part)):
        found = rehearsed_memory(replace(part, rank=rank))
        for name in ("weights_bytes", "gradients_bytes", "optimizer_bytes"):
            assert getattr(found, name) == getattr(real, name), f"{name} of rank {rank}"
        assert sum(found.parts.values()) == found.peak_bytes
        assert (1 - GLOO) * real.peak_bytes <= found.peak_bytes <= (1 + EARLY) * real.peak_bytes


def test_gradients_of_zero_3_are_there_once() -> None:
    found = rehearsed_memory(part_of("dp=4,zero=3", "fp32"))
    assert found.gradients_bytes <= found.weights_bytes == LLAMA.num_parameters  # 4 bytes each, shared out to four


@pytest.mark.parametrize("model", [MIXTRAL, DEEPSEEK], ids=lambda model: model.name)
@pytest.mark.parametrize(
    "text",
    [
        "ep=2,dp=2,zero=0",
        "ep=2,dp=4,zero=1",
        "ep=2,dp=2,tp=2,zero=1",
        "ep=4,dp=2,tp=2,zero=1",
        "ep=2,pp=2,dp=2,zero=1",
        "ep=2,etp=2,dp=4,zero=1",
        *SUMS_ALONE,
    ],
)
def test_states_of_experts_are_those_of_the_footprint(text: str, model: Model, pools: Pools) -> None:
    part = replace(part_of(text, "fp32"), model=model)
    wanted = stages(model, part.workload, part.layout, is_own=True)
    found = pools.of(part.layout.num_ranks).run(memory_among_others, part)
    for stage in wanted:
        of_stage = [found[rank] for rank in range(len(found)) if part.layout.coordinate(rank)["pp"] == stage.stage]
        for name in ("weights_bytes", "gradients_bytes", "optimizer_bytes"):
            assert max(getattr(one, name) for one in of_stage) == pytest.approx(getattr(stage, name), rel=0.05), name


@pytest.mark.parametrize("model", [LLAMA, MIXTRAL], ids=lambda model: model.name)
@pytest.mark.parametrize("text", ["pp=2,dp=2,zero=1", "tp=2,dp=2,zero=2", "tp=2,pp=2,zero=1"])
def test_states_of_prediction_layers_are_those_of_the_footprint(text: str, model: Model) -> None:
    part = replace(part_of(text, "fp32"), model=replace(model, num_prediction_layers=2))
    for stage in stages(part.model, part.workload, part.layout, is_own=True):
        rank = next(rank for rank in range(part.layout.num_ranks) if part.layout.coordinate(rank)["pp"] == stage.stage)
        found = rehearsed_memory(replace(part, rank=rank))
        for name in ("weights_bytes", "gradients_bytes", "optimizer_bytes"):
            assert getattr(found, name) == pytest.approx(getattr(stage, name), rel=0.01), (stage.stage, name)


@pytest.mark.parametrize("model", [LLAMA, MIXTRAL], ids=lambda model: model.name)
@pytest.mark.parametrize("text", ["dp=4,zero=2", "dp=4,zero=2,zero_ranks=2", "pp=2,dp=4,zero=2"])
def test_whole_gradients_of_zero_2_take_the_room_that_the_footprint_says(text: str, model: Model) -> None:
    """The difference to ZeRO 1, whose gradients are whole all the time; of the fuller of both peaks, 5 %."""
    both = [replace(part_of(each, "fp32"), model=model) for each in (text, text.replace("zero=2", "zero=1"))]
    found = [rehearsed_memory(part) for part in both]
    wanted = [stages(model, part.workload, part.layout, is_own=True)[0].peak_bytes for part in both]
    assert found[0].peak_bytes < found[1].peak_bytes
    assert found[0].peak_bytes - found[1].peak_bytes == pytest.approx(wanted[0] - wanted[1], abs=0.05 * found[1].peak_bytes)


@pytest.mark.parametrize("precision", ["bf16", "bf16-pure"])
def test_nothing_but_sums_stays_of_gradients_in_zero_2(precision: str) -> None:
    part = part_of("dp=4,zero=2", precision)
    wanted = stages(LLAMA, part.workload, part.layout, is_own=True)[0].gradients_bytes
    assert rehearsed_memory(part).gradients_bytes == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize("text", ["mbs=1", "tp=2,mbs=1"])
def test_a_prediction_layer_takes_as_much_more_than_another_as_the_footprint_says(text: str) -> None:
    """The difference of both peaks without their states; of the fuller peak, 5 %."""
    wide = replace(LLAMA, num_layers=3, hidden=128, ffn_hidden=256, head_dim=8)
    short = replace(part_of(text, "fp32").workload, seq_len=512, global_batch=1, packed=False)
    parts = [
        replace(part_of(text, "fp32"), model=model, workload=short)
        for model in (wide, replace(wide, num_layers=2, num_prediction_layers=1))
    ]
    found = [rehearsed_memory(part) for part in parts]
    wanted = [stages(part.model, part.workload, part.layout, is_own=True)[0] for part in parts]
    more = [one.activations_bytes + one.working_bytes for one in found]
    priced = [one.activations_bytes + one.loss_bytes + one.buffers_bytes for one in wanted]
    assert more[1] - more[0] == pytest.approx(priced[1] - priced[0], abs=0.05 * more[1])
    assert more[1] > 1.05 * more[0]


@pytest.mark.parametrize("num_shared", [0, 1])
def test_experts_keep_as_much_more_than_a_dense_layer_as_the_footprint_says(num_shared: int) -> None:
    """The difference of both, as wide as each other: a processor keeps more of attention, norms and gates than a GPU does. Of gates, that
    is what silu makes; routed experts do not keep it anywhere."""
    wide = replace(LLAMA, num_layers=2, hidden=128, ffn_hidden=128 * (2 + num_shared), head_dim=8)
    assert MIXTRAL.experts is not None
    mixed = replace(wide, experts=replace(MIXTRAL.experts, hidden=128, num_shared=num_shared))
    parts = [replace(part_of("mbs=1", "bf16"), model=model) for model in (wide, mixed)]
    parts = [replace(part, workload=replace(part.workload, seq_len=512, global_batch=1, packed=False)) for part in parts]
    dense, experts = (rehearsed_memory(part).activations_bytes for part in parts)
    wanted = [stages(part.model, part.workload, part.layout, is_own=True)[0].activations_bytes for part in parts]
    not_kept = 2 * 512 * wide.num_layers * 2 * 128  # bytes in bf16: of each token the two experts' silu
    assert experts + not_kept - dense == pytest.approx(wanted[1] - wanted[0], rel=0.05)


EVERY = ("q", "k", "v", "o", "gate", "up", "down")
LORA = Adapters(rank=8, targets=EVERY)
# Sides in the proportions of Llama 3.1 8B, an eighth as wide.
EIGHTH = replace(LLAMA, name="eighth", num_layers=2, hidden=512, ffn_hidden=1792, num_heads=8, num_kv_heads=2, head_dim=64)


def tuned(text: str, adapters: Adapters, model: Model = EIGHTH, precision: str = "bf16") -> Part:
    part = replace(part_of(text, precision), model=model)
    return replace(part, workload=replace(part.workload, seq_len=256, global_batch=part.layout.dp, packed=False, adapters=adapters))


@pytest.mark.filterwarnings("ignore")  # of torch's own compiler
@pytest.mark.parametrize(
    "text, adapters",
    [
        ("mbs=1", LORA),
        ("mbs=1", Adapters(rank=8, targets=("q", "v"))),
        ("mbs=1", replace(LORA, dropout=0.1, base="nf4")),
        ("recompute=mlp,mbs=1", replace(LORA, rank=32, base="fp8")),
        ("recompute=full,mbs=1", LORA),
        ("cp=2,mbs=1", LORA),
        ("tp=2,mbs=1", LORA),
    ],
)
def test_a_tuned_layer_keeps_what_the_footprint_says(text: str, adapters: Adapters, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor by tensor; all but the scales of the norms, which are 8 bytes of a token."""
    part = tuned(text, adapters)
    (wanted,) = stages(part.model, part.workload, part.layout, is_own=True)
    assert kept_by_a_layer(part, monkeypatch) == pytest.approx(wanted.activations_bytes / wanted.layers, rel=2e-3)


@pytest.mark.parametrize("base", ["bf16", "fp8", "nf4"])
@pytest.mark.parametrize("text", ["mbs=1", "tp=2,mbs=1", "pp=2,mbs=1", "dp=4,zero=2,mbs=1", "dp=2,tp=2,zero=1,mbs=1"])
def test_states_of_tuning_are_those_of_the_footprint(text: str, base: str) -> None:
    part = tuned(text, replace(LORA, base=base))
    part = replace(part, workload=replace(part.workload, seq_len=32))
    for stage in stages(part.model, part.workload, part.layout, is_own=True):
        rank = next(rank for rank in range(part.layout.num_ranks) if part.layout.coordinate(rank)["pp"] == stage.stage)
        found = rehearsed_memory(replace(part, rank=rank))
        names = ("weights_bytes", "optimizer_bytes", *(("gradients_bytes",) if part.layout.dp > 1 else ()))  # alone, a backward makes them
        for name in names:
            assert getattr(found, name) == pytest.approx(getattr(stage, name), rel=0.01), (stage.stage, name)

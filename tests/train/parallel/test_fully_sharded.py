"""ZeRO 3 by torch's `fully_shard`: which modules gather alone, whose rows a rank holds, and whose waits are booked."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from on_shards import shared_out
from parity import LLAMA, MODELS, WORKLOAD
from ranks import Pools
from torch.distributed.fsdp import fully_shard

from meshwright.describe.model import Model
from meshwright.layout import Layout, parse_layout
from meshwright.train.model.transformer import Transformer
from meshwright.train.parallel import fully_sharded
from meshwright.train.parallel.buckets import Numbers
from meshwright.train.parallel.fully_sharded import WAITS, FullySharded, book_waits, local_of, set_prefetch, units
from meshwright.train.parallel.marks import Marks
from meshwright.train.parallel.mesh import make_mesh

CPU = torch.device("cpu")
ODD = replace(LLAMA, name="odd", vocab_size=97)  # rows that two ranks cannot share evenly


def chunk_of(model: Model, layers: range | None = None, **ends: bool) -> Transformer:
    with torch.device("meta"):
        return Transformer(model, layers, **ends)


def test_layers_and_ends_gather_alone_and_a_tied_table_with_the_chunk() -> None:
    whole = chunk_of(LLAMA)
    assert units(whole) == [*whole.blocks(), whole.embed, whole.head, whole]
    tied = chunk_of(MODELS["tied"])
    assert units(tied) == [*tied.blocks(), tied]
    last = chunk_of(MODELS["tied"], range(2, 4), is_first=False)  # its table is a copy, and the head's own
    assert units(last) == [*last.blocks(), last.head, last]


@pytest.mark.parametrize("model", [ODD, MODELS["tied"], MODELS["gpt"]], ids=lambda model: model.name)
def test_rows_of_every_tensor_are_on_one_rank_each_as_torch_cuts_them(model: Model, pools: Pools) -> None:
    ranks = pools.of(2).run(shared_out, model, WORKLOAD, parse_layout("dp=2,zero=3,mbs=2"))
    of_tensor = defaultdict(list)
    for rank, found in enumerate(ranks):
        for name, first, count in found["rows"]:
            of_tensor[name].append((first, first + count, rank))
    shapes = {name: tensor.shape for name, tensor in chunk_of(model).named_tensors()}
    assert of_tensor.keys() == shapes.keys()
    for name, spans in of_tensor.items():
        assert [first for first, _, _ in sorted(spans)] == [0, *(last for _, last, _ in sorted(spans)[:-1])], name
        assert max(last for _, last, _ in spans) == shapes[name][0]
    if model is ODD:
        assert sorted(of_tensor["embed.weight"]) == [(0, 49, 0), (49, 97, 1)]  # 97 rows: the first half is the larger
    for found in ranks:
        assert all(values == gradient for values, gradient in found["sizes"]) and found["copies"] == [1]
        assert (found["waits"], found["gradients left"]) == (None, 0)
        assert found["booked"]["exposed_dp"] > 0


def test_groups_of_replicas_that_share_a_state_each_hold_it_whole(pools: Pools) -> None:
    layout = replace(parse_layout("dp=4,zero=3,mbs=2"), zero_ranks=2)
    ranks = pools.of(4).run(shared_out, LLAMA, WORKLOAD, layout)
    assert ranks[0]["rows"] == ranks[2]["rows"] != ranks[1]["rows"] == ranks[3]["rows"]
    assert all(found["copies"] == [2] for found in ranks)


def test_each_backward_gathers_the_unit_before_it(world: None, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: dict[int, int] = {}
    mesh = make_mesh(Layout(), CPU)
    chunk = chunk_of(LLAMA)
    for module in units(chunk):
        fully_shard(module, mesh=mesh.replicas.device_mesh(mesh.rank))
    for module in units(chunk):
        monkeypatch.setattr(
            type(module),
            "set_modules_to_backward_prefetch",
            lambda self, others: wanted.update({id(self): id(others[0])}) or None,
            raising=False,
        )
    set_prefetch(chunk)
    order = [chunk.embed, *chunk.blocks(), chunk.head, chunk]
    assert [wanted[id(unit)] for unit in order] == [id(unit) for unit in (chunk.embed, *order[:-1])]  # the first gathers nothing new
    mesh.close()


def test_units_that_are_not_sharded_have_nothing_to_gather() -> None:
    with pytest.raises(AssertionError, match="must be sharded before"):
        set_prefetch(chunk_of(LLAMA))


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
def test_shards_are_the_weights_themselves_in_the_optimizers_precision(state: torch.dtype, world: None) -> None:
    mesh = make_mesh(Layout(), CPU)
    data = FullySharded(chunk_of(LLAMA), mesh, Numbers(compute=torch.bfloat16, state=state))
    assert data.loss_scale == 1.0 and {shard.values.dtype for shard in data.shards} == {state}
    for shard, (name, parameter) in zip(data.shards, data.parameters.items(), strict=True):
        assert shard.values.data_ptr() == local_of(parameter.data).data_ptr()
        assert shard.decays == (parameter.dim() > 1) and not shard.is_partial, name
    mesh.close()


def test_gradients_are_handed_over_flat_and_dropped_for_the_next_step(world: None) -> None:
    mesh = make_mesh(Layout(), CPU)
    data = FullySharded(chunk_of(LLAMA), mesh, Numbers())
    first, *others = data.parameters.values()
    first.grad = torch.ones_like(first)
    data.finish()
    assert data.shards[0].gradient.tolist() == [1.0] * first.numel() and all(shard.gradient is None for shard in data.shards[1:])
    data.start()
    data.finish()
    assert first.grad is None and data.shards[0].gradient is None and all(other.grad is None for other in others)
    mesh.close()


def test_torch_waits_where_waits_are_booked(world: None) -> None:
    """The names are torch's own, and private: a release that has others must be noticed."""
    mesh = make_mesh(Layout(), CPU)
    chunk = chunk_of(LLAMA)
    unit = fully_shard(chunk.blocks()[0], mesh=mesh.replicas.device_mesh(mesh.rank))
    state = unit._get_fsdp_state()
    (group,) = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
    before = {name: getattr(group, name) for name in WAITS}
    book_waits(unit, mesh.shard)
    assert all(callable(call) and getattr(group, name) is not call for name, call in before.items())
    mesh.close()


def test_a_wait_is_marked_timed_and_passed_on() -> None:
    timed, marks = [], Marks()

    class Part:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            timed.append(("begin", self.name))

        def __exit__(self, *_: object) -> None:
            timed.append(("end", self.name))

    axis = SimpleNamespace(name="dp", ranks=[0, 1], marks=marks, timer=SimpleNamespace(part=Part))

    def call(a: int, *, b: int) -> tuple[int, object]:
        timed.append(("call", marks.waits))
        return a + b, marks.waits

    booked = fully_sharded._booked(call, "all-gather of weights", axis)  # type: ignore[arg-type]
    assert booked(1, b=2) == (3, ("all-gather of weights", "dp", [0, 1])) and marks.waits is None
    assert [what for what, _ in timed] == ["begin", "call", "end"] and timed[0] == ("begin", "exposed_dp")


def test_a_tensor_that_is_not_distributed_is_its_own_part() -> None:
    plain = torch.ones(3)
    assert local_of(plain) is plain

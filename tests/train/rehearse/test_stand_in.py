"""Stand-ins exchange what real ranks do: the flows of a rehearsed rank are those that `meshwright.predict.traffic` says it sends."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from on_rehearsal import CPU, Exchanged, exchanged
from parity import LLAMA, MODELS, SHARED, WORKLOAD

from meshwright.layout import parse_layout
from meshwright.predict.traffic import Step, flows
from meshwright.train.parallel.collectives import all_gather_single, reduce_scatter_single
from meshwright.train.parallel.mesh import make_mesh
from meshwright.train.rehearse.rank import Part
from meshwright.train.rehearse.stand_in import PART, stand_in_world

SHAPES = {**MODELS, **SHARED}
CASES = [
    ("tp=2,dp=64,pp=2", "llama", "fp32", 5),
    ("tp=4,cp=2,pp=4,dp=16,cp_kind=ring", "llama", "bf16", 100),
    ("tp=2,cp=4,dp=8,cp_kind=all-gather,recompute=selective", "llama", "bf16", 63),
    ("tp=2,cp=2,dp=4,cp_kind=all-to-all,recompute=full", "llama", "fp32", 0),
    ("pp=2,vp=2,dp=32", "tied", "fp32", 1),
    ("pp=4,tp=2,dp=4,schedule=zero-bubble", "gpt", "bf16", 6),
    ("dp=32,zero=0", "llama", "fp32", 31),
    ("dp=32,zero=2,zero_ranks=8", "llama", "fp32", 9),
    ("dp=16,zero=3", "llama", "bf16", 3),
    ("pp=2,dp=8,zero=3,zero_ranks=4", "tied", "fp32", 15),
    ("tp=4,dp=8,zero=1", "few", "bf16", 2),
]


def part_of(text: str, model: str, precision: str, rank: int) -> Part:
    layout = parse_layout(text)
    workload = replace(WORKLOAD, precision=precision, global_batch=4 * layout.dp * layout.micro_batch)
    return Part(model=SHAPES[model], workload=workload, layout=layout, rank=rank, num_steps=1)


def wanted(part: Part, found: Exchanged) -> dict[tuple[str, str, int, int], int]:
    """The predicted flows, counted as far as process groups can distinguish them."""
    counts: Counter[tuple[str, str, int, int]] = Counter()
    for flow in flows(Step(part.model, part.workload, part.layout, found.stage, shard=found.shard)):
        counts[found.shared[flow.axis], flow.kind, flow.num_ranks, flow.payload_bytes] += flow.count
    return dict(counts)


@pytest.mark.parametrize("text, model, precision, rank", CASES)
def test_a_rehearsed_rank_exchanges_what_is_predicted_and_stays_finite(text: str, model: str, precision: str, rank: int) -> None:
    part = part_of(text, model, precision, rank)
    found = exchanged(part)
    assert found.stage == part.stage and found.flows == wanted(part, found)
    assert found.num_sums == 1 and found.is_finite


def test_a_world_of_thousands_is_one_process() -> None:
    layout = parse_layout("tp=4,cp=2,pp=8,dp=128")
    with stand_in_world(5000, layout.num_ranks, CPU):
        assert (dist.get_rank(), dist.get_world_size()) == (5000, 8192)
        mesh = make_mesh(layout, CPU)
        assert mesh.coordinate == layout.coordinate(5000)
        assert (mesh.tp.size, mesh.cp.size, mesh.pp.size, mesh.shard.size) == (4, 2, 8, 256)
        mesh.close()
    assert not dist.is_initialized()


def test_each_collective_has_a_finite_result_of_its_own_values() -> None:
    with stand_in_world(2, 4, CPU) as ledger:
        own = torch.arange(3.0)
        gathered = torch.full((12,), float("nan"))
        all_gather_single(gathered, own)
        assert torch.equal(gathered, own.repeat(4))
        within = torch.arange(8.0)
        all_gather_single(within, within[2:4])  # a weight's shard inside the weight
        assert torch.equal(within, torch.tensor([2.0, 3.0]).repeat(4))
        part = torch.full((2,), float("nan"))
        reduce_scatter_single(part, torch.arange(8.0))
        assert torch.equal(part, torch.tensor([4.0, 5.0]))
        summed = own.clone()
        dist.all_reduce(summed)
        assert torch.equal(summed, own)
        switched = torch.full((4,), float("nan"))
        dist.all_to_all_single(switched, torch.arange(4.0))
        assert torch.equal(switched, torch.arange(4.0))
        message = torch.full((1000,), float("nan"))
        work = dist.irecv(message, 3)
        assert work.is_completed() and bool(message.isfinite().all()) and float(message.std()) == pytest.approx(1.0, rel=0.2)
        assert dist.isend(own, 1).is_completed()
        dist.barrier()
        assert sum(ledger.sent.values()) == 6 and len(ledger.timer.take()[PART]) == 5  # sums and sends do nothing


def test_a_send_in_flight_is_not_kept() -> None:
    """The trainer keeps what it sends until the work is over: work that is never over would fill the memory of a step."""
    found = exchanged(part_of("pp=2", "llama", "fp32", 0))
    assert sum(count for (_, kind, *_), count in found.flows.items() if kind == "message") == 4
    assert LLAMA.hidden * 32 * 4 in {payload for _, kind, _, payload in found.flows if kind == "message"}

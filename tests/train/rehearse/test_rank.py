"""One rank of a plan, run alone: what is measured, and how it fails."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from on_rehearsal import CPU
from parity import LLAMA, WORKLOAD

from meshwright.describe.workload import Adapters
from meshwright.errors import FitError
from meshwright.layout import parse_layout
from meshwright.predict.footprint import StageMemory, stages
from meshwright.train.parallel.pipeline import Flight, Operation
from meshwright.train.rehearse import rank as module
from meshwright.train.rehearse.rank import Part, check_room, rehearse


def part_of(text: str, rank: int, num_steps: int = 2) -> Part:
    layout = parse_layout(text)
    workload = replace(WORKLOAD, global_batch=4 * layout.dp * layout.micro_batch)
    return Part(model=LLAMA, workload=workload, layout=layout, rank=rank, num_steps=num_steps)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_every_chunk_of_a_stage_is_measured() -> None:
    said: list[str] = []
    part = part_of("tp=2,pp=2,vp=2,dp=32", 67)
    found = rehearse(part, CPU, said.append)
    assert (found.rank, found.stage, found.num_steps, found.num_micro_batches) == (67, 1, 2, 4)
    assert [(chunk.chunk, chunk.num_layers) for chunk in found.chunks] == [(0, 1), (1, 1)]
    assert all(chunk.forward_s > 0 and chunk.backward_s > 0 and chunk.weight_s == 0 for chunk in found.chunks)
    assert found.optimizer_s > 0 and found.end_s > 0 and found.stand_in_s > 0 and found.step_s > found.optimizer_s
    assert found.idle_s is None and found.first_step_s is None and found.device_type == "cpu"
    assert found.memory.peak_bytes == sum(found.memory.parts.values()) > 0
    assert said[0].startswith("rank 67 of 128 (stage 1)") and "2 timed steps of 4 micro-batches" in said


def test_seconds_of_ranks_that_share_cores_count_as_often_as_they_share(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    read = module.Stopwatch.read
    monkeypatch.setattr(module.Stopwatch, "read", lambda watch: [seen.append(read(watch)), seen[-1]][1])
    found = rehearse(replace(part_of("tp=2", 0, 1), crowd=4.0), CPU, lambda what: None)
    (*operations, end, _) = seen[-1]
    assert found.crowd == 4.0 and found.end_s == pytest.approx(4 * end[0])
    assert found.step_s == pytest.approx(4 * sum(seconds for seconds, _ in seen[-1])) and len(operations) == 8


def test_cores_are_shared_as_the_trainer_shares_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(module, "num_cores", lambda: 4)
    try:
        assert [(module.share_cores(ranks), torch.get_num_threads()) for ranks in (1, 2, 8)] == [(1.0, 4), (1.0, 2), (2.0, 1)]
    finally:
        torch.set_num_threads(1)


def test_weight_gradients_that_are_put_off_are_part_of_the_backward() -> None:
    found = rehearse(part_of("pp=4,schedule=zero-bubble", 1, 1), CPU, lambda what: None)
    (chunk,) = found.chunks
    assert 0 < chunk.weight_s < chunk.backward_s


def test_running_out_of_memory_is_an_error_that_names_the_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Flight.forward

    def too_much(flight: Flight, operation: Operation) -> None:
        if operation.micro_batch == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        forward(flight, operation)

    monkeypatch.setattr(Flight, "forward", too_much)
    with pytest.raises(FitError, match=r"rank 3 \(stage 1\) ran out of memory, in: forward of micro-batch 2, chunk 0"):
        rehearse(part_of("tp=2,pp=2", 3), CPU, lambda what: None)
    assert not dist.is_initialized()


def test_running_out_of_memory_before_the_first_step_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_much(*_: object) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(module, "Rehearsed", too_much)
    with pytest.raises(FitError, match="its weights, gradients and optimizer states were made"):
        rehearse(part_of("tp=2", 0), CPU, lambda what: None)


def test_other_errors_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("shapes do not agree")

    monkeypatch.setattr(Flight, "backward", broken)
    with pytest.raises(RuntimeError, match="shapes do not agree"):
        rehearse(part_of("tp=2", 0), CPU, lambda what: None)


@pytest.fixture
def predicted() -> StageMemory:
    return stages(LLAMA, WORKLOAD, parse_layout("tp=2"))[0]


def test_a_rank_far_beyond_the_device_is_not_tried(predicted: StageMemory) -> None:
    with pytest.raises(FitError, match="It was not tried") as refused:
        check_room(predicted, predicted.peak_bytes / 1.6, "a card", "cuda")
    assert "weights" in refused.value.what and refused.value.fix.endswith("or rehearse on a larger device")
    static = predicted.weights_bytes + predicted.gradients_bytes + predicted.optimizer_bytes
    with pytest.raises(FitError):
        check_room(replace(predicted, peak_bytes=static), static * 0.99, "a card", "cuda")


def test_a_rank_a_little_beyond_is_tried_on_a_gpu_and_not_on_a_processor(predicted: StageMemory) -> None:
    check_room(predicted, predicted.peak_bytes / 1.2, "a card", "cuda")
    check_room(predicted, predicted.peak_bytes, "cores", "cpu")
    with pytest.raises(FitError):
        check_room(predicted, predicted.peak_bytes / 1.2, "cores", "cpu")


WIDE = replace(LLAMA, name="wide", num_layers=4, hidden=256, ffn_hidden=768, num_heads=4, num_kv_heads=2, head_dim=64, vocab_size=640)


def test_memory_of_a_frozen_base_is_as_forecast() -> None:
    """Weights to two thousandths; and what a base in few bits saves at the peak, to a twentieth of the peak: processors keep other
    activations than the kernels of a GPU, whatever the base is."""
    layout, found, said = parse_layout("mbs=2"), {}, {}
    for base in ("bf16", "fp8"):
        adapters = Adapters(rank=8, targets=("q", "k", "v", "o", "gate", "up", "down"), base=base)
        workload = replace(WORKLOAD, seq_len=64, global_batch=2, packed=False, adapters=adapters)
        found[base] = rehearse(Part(model=WIDE, workload=workload, layout=layout, rank=0, num_steps=1), CPU, lambda text: None).memory
        (said[base],) = stages(WIDE, workload, layout, is_own=True)
        assert found[base].weights_bytes == pytest.approx(said[base].weights_bytes, rel=2e-3)
    saved = found["bf16"].peak_bytes - found["fp8"].peak_bytes
    assert saved == pytest.approx(said["bf16"].peak_bytes - said["fp8"].peak_bytes, abs=found["bf16"].peak_bytes / 20)

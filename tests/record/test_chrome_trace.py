"""Traces are read event by event in any form that profilers write, and a file that is not a trace is refused with the reason."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.errors import InputError
from meshwright.record import chrome_trace
from meshwright.record.chrome_trace import Kind, kind_of, read_trace

KERNEL = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10.0, "dur": 5.0, "args": {"stream": 7}}
REDUCE = {**KERNEL, "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "tid": 20, "ts": 12.0}


def trace_file(path: Path, events: list[dict[str, Any]], **header: Any) -> Path:
    path.write_text(json.dumps({**header, "traceEvents": events, "traceName": "x"}))
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return trace_file(tmp_path / "trace.json", [KERNEL, REDUCE], schemaVersion=1, distributedInfo={"backend": "nccl", "rank": 3})


def test_events_become_lanes_in_seconds_from_the_first(trace: Path) -> None:
    read = read_trace(trace)
    assert (read.rank, read.on_gpu, read.num_events, read.notes) == (3, True, 2, ())
    assert [(lane.process, lane.stream) for lane in read.lanes] == [("0", "20"), ("0", "7")]
    assert read.lanes[0].start_s.tolist() == pytest.approx([2e-6]) and read.lanes[0].end_s.tolist() == pytest.approx([7e-6])
    assert [lane.kind.tolist() for lane in read.lanes] == [[Kind.COMMUNICATION], [Kind.COMPUTE]]


@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 20])
def test_chunks_of_any_size_give_the_same(trace: Path, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome_trace, "CHUNK", chunk)
    assert [lane.end_s.tolist() for lane in read_trace(trace).lanes] == [[pytest.approx(7e-6)], [pytest.approx(5e-6)]]


def test_compressed_files_are_known_by_their_content(trace: Path) -> None:
    packed = trace.with_name("packed")
    half = len(trace.read_bytes()) // 2
    packed.write_bytes(gzip.compress(trace.read_bytes()[:half]) + gzip.compress(trace.read_bytes()[half:]))  # in two pieces
    assert read_trace(packed).num_events == 2


@pytest.mark.parametrize("chunk", [2, 50, 4096])
def test_what_packs_well_is_unpacked_whole(tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome_trace, "CHUNK", chunk)
    text = json.dumps({"blank": " " * 20_000, "traceEvents": [KERNEL] * 300}) + "\n" * 5000
    (tmp_path / "trace.json.gz").write_bytes(gzip.compress(text.encode()))
    read = read_trace(tmp_path / "trace.json.gz")
    assert (read.num_events, read.notes) == (300, ())


def test_a_bare_list_is_a_trace_too(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text(json.dumps([KERNEL, REDUCE]))
    assert read_trace(tmp_path / "list.json").num_events == 2


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_that_was_cut_is_shown_up_to_there(tmp_path: Path, packed: bool) -> None:
    events = [{**KERNEL, "ts": 10.0 * i, "args": {"number": i * 7919 % 1009}} for i in range(500)]
    whole = trace_file(tmp_path / "whole.json", events).read_bytes()
    content = gzip.compress(whole) if packed else whole
    (tmp_path / "cut").write_bytes(content[: len(content) // 2])
    read = read_trace(tmp_path / "cut")
    assert 0 < read.num_events < 500 and "it was cut" in read.notes[0]


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "it is empty"),
        (b"hello", "it holds no JSON"),
        (b'{"a": 1}', "it has no traceEvents"),
        (b'{"traceEvents": 3}', "it has no traceEvents"),
        (b'{"traceEvents": [', "it ends before the first event"),
        (b'{"traceEvents": []}', "no kernel and no operator among the trace's 0 events"),
        (b'{"traceEvents": [{"ph": "M"}, 3, null]}', "no kernel and no operator among the trace's 3 events"),
        (b'{"traceEvents": [{"ph": "X"} {"ph": "X"}]}', "a comma is missing between two events"),
        (b"{1: 2}", "damaged after 0 events: a key is missing"),
        (b'{"traceEvents": [{"ph": "X"}, {"ph": oops}, ' + b'{"ph": "X"}, ' * 9, "damaged after 1 events: expecting value"),
        (bytes(range(128, 256)), "it holds no JSON"),
        (b"\x1f\x8b" + b"\xff" * 50, "it is empty"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_reason(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "trace.json").write_bytes(content)
    with pytest.raises(InputError) as error:
        read_trace(tmp_path / "trace.json")
    assert message in error.value.what and error.value.where.endswith("trace.json") and error.value.fix


def test_a_value_without_end_does_not_take_all_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome_trace, "CHUNK", 100)
    monkeypatch.setattr(chrome_trace, "LONGEST_VALUE", 1000)
    (tmp_path / "trace.json").write_text('{"traceEvents": [{"name": "' + "x" * 5000)
    with pytest.raises(InputError, match="a value that does not end"):
        read_trace(tmp_path / "trace.json")


def test_events_without_a_length_are_left_out_and_counted(tmp_path: Path) -> None:
    path = trace_file(tmp_path / "trace.json", [KERNEL, {**KERNEL, "dur": None}, {**KERNEL, "ts": "soon"}, {**KERNEL, "dur": -1}])
    assert read_trace(path).notes == ("3 events have no start or no length, and are left out.",)


@pytest.mark.parametrize("time", [float("inf"), float("nan"), 1.7e18, 10**400, True])
def test_what_no_clock_shows_is_left_out(tmp_path: Path, time: Any) -> None:
    read = read_trace(trace_file(tmp_path / "trace.json", [KERNEL, {**KERNEL, "ts": time}, {**KERNEL, "dur": time}]))
    assert read.notes == ("2 events have no start or no length, and are left out.",)
    assert [lane.end_s.tolist() for lane in read.lanes] == [pytest.approx([5e-6])]
    with pytest.raises(InputError, match="none of the trace's 1 kernels and operators has a start and a length in microseconds"):
        read_trace(trace_file(tmp_path / "none.json", [{**KERNEL, "ts": time}]))


def test_microseconds_since_1970_keep_their_fractions(tmp_path: Path) -> None:
    times = [(1_700_000_000_000_000, 0.05), (1_700_000_000_000_001, 0.1)]
    read = read_trace(trace_file(tmp_path / "trace.json", [{**KERNEL, "ts": start, "dur": length} for start, length in times]))
    (lane,) = read.lanes
    assert (lane.end_s - lane.start_s).tolist() == pytest.approx([0.05e-6, 0.1e-6])


@pytest.mark.parametrize(
    "name, on_gpu, kind",
    [
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", True, Kind.COMMUNICATION),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", True, Kind.COMMUNICATION),
        ("void cutlass::Kernel2<nccl>", True, Kind.COMPUTE),
        ("Memcpy HtoD (Pageable -> Device)", True, Kind.MEMORY),
        ("Memset (Device)", True, Kind.MEMORY),
        ("Stream Sync", True, Kind.OTHER),
        ("gloo:all_reduce", False, Kind.COMMUNICATION),
        ("c10d::allreduce_", False, Kind.COMMUNICATION),
        ("aten::mm", False, Kind.COMPUTE),
    ],
)
def test_events_are_distinguished_by_name(name: str, on_gpu: bool, kind: Kind) -> None:
    assert kind_of(name, on_gpu) == kind


def test_wrappers_of_autograd_do_not_count_as_compute(tmp_path: Path) -> None:
    op = {**KERNEL, "cat": "cpu_op", "name": "aten::mm"}
    names = ("autograd::engine::evaluate_function: F", "F", "torch::autograd::AccumulateGrad")
    wrappers = [{**op, "name": name, "dur": 500.0} for name in names]
    annotation = {**op, "cat": "user_annotation", "name": "ProfilerStep#1", "dur": 900.0}
    read = read_trace(trace_file(tmp_path / "trace.json", [op, *wrappers, annotation]))
    assert not read.on_gpu and read.num_steps == 1
    assert [lane.end_s.tolist() for lane in read.lanes] == [[pytest.approx(5e-6)]]

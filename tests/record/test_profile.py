"""Exposed communication: worked by hand, checked against HolisticTraceAnalysis where it is installed, and on a real profile of gloo."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.record.profile import profile_of

H200 = Path(__file__).parents[1] / "fixtures" / "profile_of_an_h200.json.gz"
US = 1e-6
Row = tuple[str, str, int, float, float]  # category, name, stream, start, length, in us

# compute         |----------|          |----|----|     |--|
#                 0         10         20   25   30    40  42
# nested compute     |--|  (3..5)
# nccl, stream 20       |---------------|                 |-------|      8..20 and 41..50
# nccl, stream 21                    |-----|                             18..24: 2 alone at most, 4 behind compute
# copy                                                                 |----| 52..56
BY_HAND: tuple[Row, ...] = (
    ("kernel", "gemm", 7, 0, 10),
    ("kernel", "relu", 9, 3, 2),
    ("kernel", "gemm", 7, 20, 5),
    ("kernel", "gemm", 7, 25, 5),
    ("kernel", "adam", 7, 40, 2),
    ("kernel", "ncclDevKernel_AllReduce_Sum(x)", 20, 8, 12),
    ("kernel", "ncclDevKernel_AllReduce_Sum(x)", 20, 41, 9),
    ("kernel", "ncclDevKernel_SendRecv(x)", 21, 18, 6),
    ("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 7, 52, 4),
    ("cpu_op", "aten::mm", 1, 0, 1000),
    ("gpu_user_annotation", "nccl:all_reduce", 20, 0, 1000),
)


def write_trace(path: Path, rows: tuple[Row, ...], rank: int = 0, device: int = 0) -> Path:
    events = [
        {"ph": "X", "cat": cat, "name": name, "pid": device, "tid": stream, "ts": 100 + start, "dur": length}
        | ({"args": {"stream": stream, "correlation": number, "device": device}} if cat in ("kernel", "gpu_memcpy") else {"args": {}})
        for number, (cat, name, stream, start, length) in enumerate(rows)
    ]
    path.write_text(json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": events}))
    return path


def test_a_made_trace_comes_out_as_worked_by_hand(tmp_path: Path) -> None:
    (process,) = profile_of((write_trace(tmp_path / "trace.json", BY_HAND),)).processes
    assert process.label == "rank 0, GPU 0" and process.num_events == 9
    assert process.window_s == pytest.approx(56 * US)
    assert process.compute_s == pytest.approx(22 * US)  # 10 + 10 + 2; what is nested counts once
    assert process.communication_s == pytest.approx(25 * US)  # 8..24 and 41..50
    assert process.hidden_s == pytest.approx(7 * US)  # 8..10, 20..24, 41..42
    assert process.exposed_s == pytest.approx(18 * US)
    assert process.memory_s == pytest.approx(4 * US)
    assert process.idle_s == pytest.approx(12 * US)  # 30..40 and 50..52
    assert process.overlap_pct == pytest.approx(100 * 7 / 25)
    assert process.compute_s + process.exposed_s + process.memory_s + process.idle_s == pytest.approx(process.window_s)


def test_streams_and_collectives_have_their_own_shares(tmp_path: Path) -> None:
    (process,) = profile_of((write_trace(tmp_path / "trace.json", BY_HAND),)).processes
    assert [(s.stream, s.num_events) for s in process.streams] == [("20", 2), ("21", 1)]
    assert [s.communication_s / US for s in process.streams] == pytest.approx([21, 6])
    assert [s.exposed_s / US for s in process.streams] == pytest.approx([18, 2])  # 10..20 and 42..50; 18..20
    assert [(c.name, c.num_events) for c in process.collectives] == [
        ("ncclDevKernel_AllReduce_Sum(x)", 2),
        ("ncclDevKernel_SendRecv(x)", 1),
    ]
    assert [c.exposed_s / US for c in process.collectives] == pytest.approx([18, 2])


def test_ranks_and_devices_stand_apart_in_their_order(tmp_path: Path) -> None:
    files = tuple(write_trace(tmp_path / f"{rank}.json", BY_HAND, rank, device=rank % 2) for rank in (3, 1))
    profile = profile_of(files)
    assert [process.label for process in profile.processes] == ["rank 1, GPU 1", "rank 3, GPU 1"]
    assert profile.notes == ()


def test_a_trace_without_communication_says_so(tmp_path: Path) -> None:
    profile = profile_of((write_trace(tmp_path / "trace.json", BY_HAND[:5]),))
    (process,) = profile.processes
    assert (process.communication_s, process.exposed_s, process.overlap_pct, process.streams) == (0.0, 0.0, None, ())
    assert "No communication was recorded" in profile.notes[-1]


def random_rows(seed: int, count: int = 400) -> tuple[Row, ...]:
    rng = np.random.default_rng(seed)
    kinds = (("kernel", "gemm", 7), ("kernel", "relu", 9), ("kernel", "ncclDevKernel_AllReduce(x)", 20), ("gpu_memcpy", "Memcpy HtoD", 11))
    rows = [(*kinds[int(rng.integers(4))], float(rng.integers(0, 5000)), float(rng.integers(1, 60))) for _ in range(count)]
    return tuple(rows)


@pytest.mark.skipif(importlib.util.find_spec("hta") is None, reason="HolisticTraceAnalysis is not installed")
@pytest.mark.filterwarnings("ignore")  # of pandas, about its own calls
@pytest.mark.parametrize("seed", range(5))
def test_holistic_trace_analysis_says_the_same(tmp_path: Path, seed: int) -> None:
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    (process,) = profile_of((write_trace(tmp_path / "trace.json", random_rows(seed)),)).processes
    analysis = TraceAnalysis(trace_dir=str(tmp_path))
    times = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    assert process.idle_s / US == pytest.approx(times["idle_time(us)"])
    assert process.compute_s / US == pytest.approx(times["compute_time(us)"])
    assert (process.exposed_s + process.memory_s) / US == pytest.approx(times["non_compute_time(us)"])
    overlap = analysis.get_comm_comp_overlap(visualize=False).iloc[0]["comp_comm_overlap_pctg"]
    assert process.overlap_pct == pytest.approx(overlap, abs=0.005)


def test_a_profile_of_an_h200_comes_out_as_holistic_trace_analysis_has_it() -> None:
    """What `benchmarks/gpu_trace.py` wrote on the card, and what HTA 0.5.0 computed from it (`benchmarks/trace_against_hta.py`)."""
    (process,) = profile_of((H200,)).processes
    assert process.num_events == 75 and process.window_s / US == pytest.approx(5122.607, abs=1e-3)
    assert process.compute_s / US == pytest.approx(3934.539, abs=1e-3)
    assert (process.exposed_s + process.memory_s) / US == pytest.approx(904.481, abs=1e-3)
    assert process.idle_s / US == pytest.approx(283.587, abs=1e-3)
    assert process.overlap_pct == pytest.approx(49.39, abs=5e-3)


# Two ranks, each with a reduction behind a product and one alone.
PROFILED = """
import sys
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

folder, rank = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
a, gradients = torch.randn(256, 256), torch.ones(500_000)
dist.all_reduce(gradients)
with profile(activities=[ProfilerActivity.CPU]) as seen:
    for _ in range(2):
        work = dist.all_reduce(gradients, async_op=True)
        a @ a
        work.wait()
        dist.all_reduce(gradients)
seen.export_chrome_trace(f"{folder}/rank{rank}.json.gz")
dist.destroy_process_group()
"""


def test_a_real_profile_of_gloo_adds_up(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([sys.executable, "-c", PROFILED, str(tmp_path), str(rank)], env=environment, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    try:
        complaints = [process.communicate(timeout=300)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], complaints
    profile = profile_of(tuple(tmp_path / f"rank{rank}.json.gz" for rank in (1, 0)))
    assert [process.rank for process in profile.processes] == [0, 1]
    for process in profile.processes:
        assert not process.on_gpu
        assert process.compute_s > 0 and 0 < process.exposed_s <= process.communication_s
        assert process.compute_s + process.exposed_s + process.memory_s + process.idle_s == pytest.approx(process.window_s)
        reductions = next(one for one in process.collectives if one.name == "gloo:all_reduce")
        assert reductions.num_events == 4
        assert sum(stream.num_events for stream in process.streams) == 8  # and four calls of c10d::allreduce_


def test_files_of_one_rank_are_distinguished_and_one_file_is_not_read_twice(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 0, "dur": 5}
    paths = tuple(tmp_path / name for name in ("first.json", "second.json"))
    for path in paths:
        path.write_text(json.dumps({"traceEvents": [event], "distributedInfo": {"rank": 1}}))
    profile = profile_of(paths)
    assert [one.label for one in profile.processes] == [f"rank 1, GPU 0, {path}" for path in paths]
    assert profile.notes[0] == "Several files are of rank 1, GPU 0: they are distinguished by their file names."
    with pytest.raises(InputError, match="the same trace is given twice"):
        profile_of((paths[0], paths[0].parent / ".." / tmp_path.name / "first.json"))

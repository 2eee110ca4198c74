"""The page of a profile: what is hidden and exposed, process by process, and names escaped."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from pages import check_alone, words

from meshwright.record.profile import Profile, profile_of
from meshwright.report.documents import profile_document
from meshwright.report.page.trace_page import MAX_STRIPS, trace_page
from meshwright.say.markdown import markdown

EVIL = "<script>alert(1)<_script>"


def test_a_profiles_page_and_its_other_forms(tmp_path: Path, profile_page: str) -> None:
    check_alone(profile_page)
    text = words(profile_page)
    assert "rank 1, GPU 0" in text and EVIL in text and "33.33 %" in text  # 10 of 30 us exposed
    profile = profile_of((tmp_path / "trace.json",))
    document = profile_document(profile)
    assert document.to_json()["processes"][0]["exposed_pct"] == pytest.approx(100 / 3)
    assert "| rank 1, GPU 0 | 30 us | 66.67 % | 33.33 % |" in markdown(document)


def made(tmp_path: Path, *rows: tuple[str, int, float, float], cat: str = "kernel") -> Profile:
    """Of kernels: name, stream, start and length in microseconds."""
    events = [
        {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": stream, "ts": start, "dur": length, "args": {"stream": stream}}
        for name, stream, start, length in rows
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return profile_of((path,))


def test_the_numbers_of_the_page_are_worked_by_hand(tmp_path: Path) -> None:
    # Compute from 0 to 10 and from 20 to 30, communication from 8 to 20: 2 hidden, 10 exposed, of 30.
    profile = made(tmp_path, ("gemm", 7, 0, 10), ("ncclAllReduce", 20, 8, 12), ("gemm", 7, 20, 10))
    text = words(trace_page(profile))
    for part in (
        "Exposed communication 33.33 % of the time",
        "Hidden behind compute 16.7 % of 12 us",
        "Idle 0.0 %",
        "ncclAllReduce 1 12 us 10 us 83.3",
    ):
        assert part in text


def test_lanes_cover_the_window_as_the_kernels_do(tmp_path: Path) -> None:
    page = trace_page(made(tmp_path, ("gemm", 7, 0, 10), ("ncclAllReduce", 20, 5, 15)))
    lanes = re.findall(r'<path d="([^"]+)" fill="var\(--(\w+)\)"', page)
    outlines = {colour: path for path, colour in lanes}
    assert outlines["compute"] == "M0 30H0V0H250V30H500V30Z"  # the first half of the time
    assert outlines["cp"] == "M0 30H0V30H125V0H500V30Z" and outlines["dp"] == "M0 30H0V30H250V0H500V30Z"
    assert "optimizer" not in outlines  # nothing is copied


@pytest.mark.parametrize("rows", [[("gemm", 7, 0.0, 0.0)], [("gemm", 7, 3.0, 0.0), ("ncclAllReduce", 8, 3.0, 0.0)]])
def test_events_that_take_no_time_are_a_page_too(tmp_path: Path, rows: list[tuple[str, int, float, float]]) -> None:
    page = trace_page(made(tmp_path, *rows))
    check_alone(page)
    assert "No event takes any time." in page


def test_without_communication_none_is_exposed_and_no_stream_carries_any(tmp_path: Path) -> None:
    page = trace_page(made(tmp_path, ("gemm", 7, 0, 10)))
    check_alone(page)
    text = words(page)
    assert "none there" in text and "No stream carries communication." in text and 'id="collectives"' not in page


def test_many_processes_are_counted_and_the_first_are_drawn(tmp_path: Path) -> None:
    one = made(tmp_path, ("gemm", 7, 0, 10), ("ncclAllReduce", 8, 2, 10))
    many = replace(one, processes=tuple(replace(one.processes[0], label=f"GPU {number}") for number in range(MAX_STRIPS + 3)))
    page = trace_page(many)
    check_alone(page)
    assert page.count('aria-label="Compute and communication of') == MAX_STRIPS
    assert "3 more processes are in the table." in page and "A profile of 19 GPUs" in page


@pytest.mark.parametrize("on_gpu, count, text", [(True, 1, "1 GPU"), (False, 1, "1 process"), (False, 2, "2 processes")])
def test_what_was_profiled_is_counted_in_words(tmp_path: Path, on_gpu: bool, count: int, text: str) -> None:
    one = made(tmp_path, ("gemm", 7, 0, 10))
    processes = tuple(replace(one.processes[0], label=f"{number}", on_gpu=on_gpu) for number in range(count))
    assert f"A profile of {text} " in words(trace_page(replace(one, processes=processes)))


def test_a_very_long_name_of_a_collective_is_cut(tmp_path: Path) -> None:
    page = trace_page(made(tmp_path, ("nccl" + "x" * 5000, 7, 0, 5)))
    assert "x" * 110 in page and "x" * 200 not in page

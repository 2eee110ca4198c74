"""The flight recorder of torch: what it dumps, read, over gloo for real and over NCCL as it was recorded."""

from __future__ import annotations

import threading
import time
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
from on_flight import one_late
from ranks import Pools

from meshwright.record.flight import Call, GroupCalls
from meshwright.train.health import recorder
from meshwright.train.health.recorder import Recorder, groups_of, keep_calls, label_of, with_broken
from meshwright.train.parallel.marks import Marks


def entry(name: str, number: int, *, group: tuple[str, str] = ("1", "tp"), **fields: Any) -> dict[str, Any]:
    """One call in the form of torch's `_dump_nccl_trace_json`."""
    return {
        "process_group": list(group),
        "profiling_name": name,
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "input_sizes": [[2, 4]],
        "input_dtypes": ["BFloat16"],
        "state": "completed",
        "retired": True,
        **fields,
    }


@pytest.mark.parametrize("writes", [True, False])
def test_real_ranks_over_gloo_say_who_is_missing(pools: Pools, tmp_path: Path, writes: bool) -> None:
    found = pools.of(3).run(one_late, tmp_path, 1, writes)
    missing = "had not (the last that had been entered there is all-reduce 1, finished)" if writes else "left no trace"
    group = "the tensor-parallel (same keys) group of ranks 0, 1, 2, float32 [4, 2]"
    assert set(found) == {f"all-reduce 2 of {group}: ranks 0, 2 had entered it, rank 1 {missing}"}


def test_calls_are_named_in_our_words() -> None:
    names = ["nccl:_all_gather_base", "nccl:_reduce_scatter_base", "nccl:all_reduce_barrier", "gloo:allreduce", "nccl:all_to_all"]
    (group,) = groups_of({"entries": [entry(name, number) for number, name in enumerate(names)]}, {("1", "tp"): (4, 5)}, 8)
    assert (group.label, group.ranks) == ("tensor-parallel", (4, 5))
    assert [call.what for call in group.calls] == ["all-gather", "reduce-scatter", "barrier", "all-reduce", "all-to-all"]
    assert {call.shape for call in group.calls} == {"bfloat16 [2, 4]"}


@pytest.mark.parametrize(
    "state, finished",
    [
        ({"state": "completed", "retired": True}, True),
        ({"state": "completed", "retired": False}, True),
        ({"state": "started", "retired": False}, False),
        ({"state": "scheduled", "retired": False}, False),
        ({"state": "scheduled", "retired": True}, True),  # gloo knows no other state
    ],
)
def test_a_call_is_finished_once_torch_has_seen_its_end(state: dict[str, Any], finished: bool) -> None:
    (group,) = groups_of({"entries": [entry("nccl:all_reduce", 1, **state)]}, {("1", "tp"): (0, 1)}, 2)
    assert group.calls == (Call(number=1, what="all-reduce", shape="bfloat16 [2, 4]", finished=finished),)


def test_messages_that_are_sent_together_end_together() -> None:
    """torch gives them no state of their own, only their `coalesced` one."""
    lane: dict[str, Any] = {"group": ("7", "pp to the next stage"), "is_p2p": True, "state": "scheduled", "retired": False}
    both = [entry("nccl:send 0->1", 3, p2p_seq_id=5, **lane), entry("nccl:recv 0<-1", 3, p2p_seq_id=6, **lane)]
    for is_over in (True, False):
        end = entry("nccl:coalesced", 3, p2p_seq_id=6, **{**lane, "retired": is_over})
        (group,) = groups_of({"entries": [*both, end]}, {("7", "pp to the next stage"): (0, 4)}, 8)
        assert group.label == "pipeline (to the next stage)"
        assert [(call.number, call.what, call.finished, call.is_message) for call in group.calls] == [
            (5, "message", is_over, True),
            (6, "message", is_over, True),
        ]


def test_groups_that_are_not_ours_are_left_out() -> None:
    entries = [entry("nccl:all_reduce", 1, group=("0", "default_pg")), entry("nccl:all_reduce", 1, group=("9", "undefined"))]
    (group,) = groups_of({"entries": entries}, {}, 3)
    assert (group.label, group.ranks) == ("", (0, 1, 2))
    assert groups_of({}, {}, 3) == ()


def test_only_the_last_calls_are_kept() -> None:
    entries = [entry("nccl:all_reduce", number) for number in range(500)]
    (group,) = groups_of({"entries": entries}, {("1", "tp"): (0, 1)}, 2)
    assert [call.number for call in group.calls] == list(range(500 - 64, 500))


def test_the_wait_that_ended_with_an_error_did_not_finish() -> None:
    """gloo counts a collective as done when the connection to another rank is lost."""
    done = (Call(number=1, what="all-reduce", shape="", finished=True), Call(number=2, what="all-reduce", shape="", finished=True))
    groups = [
        GroupCalls(name="1", label="data-parallel (shards)", ranks=(0, 1), calls=done),
        GroupCalls(name="0", label="", ranks=(0, 1), calls=done),
    ]
    found = with_broken(groups, ("gradient reduction", "dp", (0, 1)))
    assert [[call.finished for call in group.calls] for group in found] == [[True, False], [True, True]]
    found = with_broken(groups, ("sum of loss and norm", "world", range(2)))
    assert [[call.finished for call in group.calls] for group in found] == [[True, True], [True, False]]
    assert with_broken(groups, None) == tuple(groups)


def test_labels() -> None:
    assert [label_of(text) for text in ("default_pg", "dp", "dp copies of a shard", "odd")] == [
        "",
        "data-parallel",
        "data-parallel (copies of a shard)",
        "odd",
    ]


def test_what_the_user_has_set_is_kept() -> None:
    for given in ({}, {"TORCH_FR_BUFFER_SIZE": "5"}, {"TORCH_NCCL_TRACE_BUFFER_SIZE": "7"}):
        environment = dict(given)
        keep_calls(environment)
        assert environment == (given or {"TORCH_FR_BUFFER_SIZE": "2000"})


def test_no_trace_is_written_into_a_folder_that_is_not_ours(tmp_path: Path) -> None:
    one = Recorder(0, 1, tmp_path, threading.Event(), Marks())
    one.write()
    assert one.words([0], 5.0) == ""
    assert not list(tmp_path.iterdir())


def test_a_trace_is_written_when_the_parent_asks_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dumps = [{"entries": [entry("nccl:all_reduce", 1, state="scheduled", retired=False, group=("0", "default_pg"))]}, {}]
    monkeypatch.setattr(recorder, "dumped", lambda: dumps.pop() if len(dumps) > 1 else dumps[0])
    monkeypatch.setattr(recorder, "AGAIN_S", 0.01)
    is_open = threading.Event()
    is_open.set()
    asked, ask = Pipe(duplex=False)
    one = Recorder(0, 2, tmp_path, is_open, Marks())
    one.write_when_asked(asked)
    time.sleep(0.05)
    assert not list(tmp_path.iterdir())
    ask.send("failed")
    until_s = time.monotonic() + 30.0
    while not (words := one.words([0], 5.0)) and time.monotonic() < until_s:
        time.sleep(0.01)
    assert "rank 0 had entered it, rank 1 left no trace" in words
    is_open.clear()  # the thread writes nothing more


def test_a_library_that_does_not_answer_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def hangs() -> dict[str, Any]:
        released.wait(30.0)
        return {}

    monkeypatch.setattr(recorder, "dumped", hangs)
    monkeypatch.setattr(recorder, "WRITING_S", 0.05)
    is_open = threading.Event()
    is_open.set()
    started_s = time.monotonic()
    Recorder(0, 1, tmp_path, is_open, Marks()).write()
    assert time.monotonic() - started_s < 15.0
    assert not list(tmp_path.iterdir())
    released.set()

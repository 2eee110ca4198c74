"""Traces that ranks leave, joined: who is missing, who does something else, what never finished."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.record.flight import Call, GroupCalls, RankTrace, in_words, read_traces, remove_traces, stuck, trace_path, write_trace


def call(number: int, what: str = "all-reduce", shape: str = "float32 [8]", *, finished: bool = True, is_message: bool = False) -> Call:
    return Call(number=number, what=what, shape=shape, finished=finished, is_message=is_message)


def group(*calls: Call, name: str = "1", label: str = "tensor-parallel", ranks: tuple[int, ...] = (0, 1, 2)) -> GroupCalls:
    return GroupCalls(name=name, label=label, ranks=ranks, calls=calls)


def trace(rank: int, *groups: GroupCalls) -> RankTrace:
    return RankTrace(rank=rank, groups=groups)


def test_nothing_is_said_where_nothing_was_under_way() -> None:
    assert in_words([]) == ""
    assert in_words([trace(rank, group(call(1), call(2))) for rank in range(3)]) == ""


def test_a_rank_that_did_not_enter_is_named_with_the_last_that_it_entered() -> None:
    waiting = group(call(16), call(17, shape="bfloat16 [2, 512, 4096]", finished=False))
    words = in_words([trace(0, waiting), trace(1, group(call(16))), trace(2, waiting)])
    assert words == (
        "all-reduce 17 of the tensor-parallel group of ranks 0, 1, 2, bfloat16 [2, 512, 4096]: ranks 0, 2 had entered it, "
        "rank 1 had not (the last that had been entered there is all-reduce 16, finished)"
    )


def test_a_rank_that_never_used_the_group_is_named() -> None:
    waiting = group(call(1, "all-gather", finished=False))
    words = in_words([trace(0, waiting), trace(1), trace(2, waiting)])
    assert words.endswith("ranks 0, 2 had entered it, rank 1 had not (nothing had been entered there)")


def test_a_rank_without_a_trace_is_named() -> None:
    waiting = group(call(3, finished=False), label="")
    words = in_words([trace(0, waiting), trace(1, waiting)])
    assert words == "all-reduce 3 of the group of ranks 0, 1, 2, float32 [8]: ranks 0, 1 had entered it, rank 2 left no trace"


def test_ranks_in_different_collectives_do_not_agree() -> None:
    one, other = group(call(5, finished=False)), group(call(5, "broadcast", finished=False))
    (found,) = stuck([trace(0, one), trace(1, other), trace(2, one)])
    assert found.differing == (("all-reduce of float32 [8]", (0, 2)), ("broadcast of float32 [8]", (1,)))
    assert found.text == (
        "the ranks do not agree on all-reduce 5 of the tensor-parallel group of ranks 0, 1, 2: "
        "all-reduce of float32 [8] on ranks 0, 2; broadcast of float32 [8] on rank 1"
    )


def test_ranks_with_tensors_of_different_sizes_do_not_agree() -> None:
    traces = [trace(rank, group(call(5, shape=f"float32 [{8 + rank // 2}]", finished=False))) for rank in range(3)]
    assert in_words(traces).endswith(": all-reduce of float32 [8] on ranks 0, 1; all-reduce of float32 [9] on rank 2")


def test_a_gather_may_have_other_sizes_on_its_root() -> None:
    traces = [trace(rank, group(call(5, "gather", f"float32 [{rank}]", finished=False))) for rank in range(3)]
    assert "all ranks had entered it" in in_words(traces)


def test_a_collective_that_all_entered_and_one_did_not_finish() -> None:
    traces = [trace(rank, group(call(4), call(5, finished=rank != 1))) for rank in range(3)]
    assert in_words(traces).endswith(": all ranks had entered it, ranks 0, 2 had finished it and rank 1 had not")
    nobody = [trace(rank, group(call(4), call(5, finished=False))) for rank in range(3)]
    assert in_words(nobody).endswith(": all ranks had entered it and none had finished it")


def test_a_rank_that_is_further_has_finished_what_it_no_longer_remembers() -> None:
    ahead = group(*(call(number) for number in range(70, 80)))
    (found,) = stuck([trace(0, ahead), trace(1, group(call(12, finished=False))), trace(2, ahead)])
    assert (found.entered, found.finished, found.missing) == ((0, 1, 2), (0, 2), ())


def test_the_first_unfinished_call_counts_not_the_last() -> None:
    waiting = group(call(7, finished=False), call(8, finished=False), call(9, finished=False))
    (found,) = stuck([trace(0, waiting), trace(1, waiting), trace(2, group(call(6)))])
    assert str(found.call) == "all-reduce 7"


def test_an_end_that_is_recorded_late_does_not_hide_who_is_missing() -> None:
    late = group(call(6, finished=False), call(7, finished=False))
    (found,) = stuck([trace(0, late), trace(1, group(call(6))), trace(2, group(call(6), call(7, finished=False)))])
    assert str(found.call) == "all-reduce 7" and [rank for rank, _ in found.missing] == [1]


def test_the_cause_comes_before_those_who_wait_behind_it() -> None:
    """Rank 3 computes; rank 2 waits for it; ranks 0 and 1 wait for rank 2, in groups that were made earlier."""
    first = {"name": "1", "label": "data-parallel", "ranks": (0, 2)}
    second = {"name": "2", "label": "tensor-parallel", "ranks": (2, 3)}
    traces = [
        trace(0, group(call(4, finished=False), **first)),
        trace(2, group(call(3), **first), group(call(9, finished=False), **second)),
        trace(3, group(call(8), **second)),
    ]
    assert [found.label for found in stuck(traces)] == ["tensor-parallel", "data-parallel"]
    assert in_words(traces).startswith(
        "all-reduce 9 of the tensor-parallel group of ranks 2, 3, float32 [8]: rank 2 had entered it, rank 3 had"
    )


def test_disjoint_groups_of_the_same_name_are_kept_apart() -> None:
    traces = [trace(rank, group(call(1 + rank // 2, finished=rank < 2), ranks=(rank // 2 * 2, rank // 2 * 2 + 1))) for rank in range(4)]
    (found,) = stuck(traces)
    assert (found.ranks, found.entered, str(found.call)) == ((2, 3), (2, 3), "all-reduce 2")


def test_messages_are_counted_apart_from_collectives() -> None:
    lane = {"label": "pipeline", "ranks": (1, 5)}
    sends = group(call(2), call(2, "message", finished=True, is_message=True), call(3, "message", finished=False, is_message=True), **lane)
    receives = group(call(2), call(2, "message", is_message=True), **lane)
    words = in_words([trace(1, sends), trace(5, receives)])
    assert words == (
        "message 3 of the pipeline group of ranks 1, 5, float32 [8]: rank 1 had entered it, "
        "rank 5 had not (the last that had been entered there is message 2, finished)"
    )


def test_few_of_many_groups_and_ranks_are_named() -> None:
    ranks = tuple(range(20))
    traces = [trace(0, *(group(call(1, finished=False), name=str(number), ranks=ranks) for number in range(6)))]
    words = in_words(traces)
    assert words.count("left no trace") == 3
    assert "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 11 more left no trace" in words
    assert words.endswith("3 more groups had a call that was not finished")


def test_traces_are_read_as_they_were_written(tmp_path: Path) -> None:
    traces = [trace(rank, group(call(1), call(2, "message", finished=False, is_message=True))) for rank in (3, 11)]
    for one in traces:
        write_trace(tmp_path, one)
    assert read_traces(tmp_path) == traces
    remove_traces(tmp_path)
    assert read_traces(tmp_path) == []
    remove_traces(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"rank": 1}', '{"rank": 1, "groups": [{}]}', '{"rank": "x", "groups": []}', "\xff\xfe"])
def test_a_file_that_is_no_trace_is_left_out(tmp_path: Path, text: str) -> None:
    write_trace(tmp_path, trace(0))
    trace_path(tmp_path, 1).write_text(text, encoding="latin-1")
    assert [one.rank for one in read_traces(tmp_path)] == [0]

"""A hang is ended and its culprit named; slow but sound ranks are left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from meshwright.cli.train import train
from meshwright.layout import Layout
from meshwright.train.health.watch import (
    BEAT_S,
    EXIT_HUNG,
    STALL_S,
    START_SILENCE_S,
    Diagnosis,
    Patience,
    Peers,
    RankState,
    Watch,
    diagnose,
    packed,
    places,
    unpacked,
)
from meshwright.train.job import TrainingJob
from meshwright.train.parallel.marks import Marks
from meshwright.train.sealed import SealedStore

LAYOUT = Layout(tp=2, pp=2, dp=2)


def a_rank(rank: int, waits: tuple[str, str, tuple[int, ...]] | None = None, idle_s: float = 12.0, **changes: object) -> RankState:
    state = RankState(rank=rank, beat=9, step=4, doing="forward of micro-batch 2", waits=waits, idle_s=idle_s, limit_s=10.0)
    return replace(state, **changes)  # type: ignore[arg-type]


STOPPED = "has stopped: its process no longer reports; its last report was in forward"


def diagnosis(states: list[RankState], missing: tuple[int, ...] = ()) -> str:
    found = diagnose(states, missing)
    assert found is not None
    return found.text


def on_hosts(silent: Collection[int], **changes: object) -> list[RankState]:
    """Four hosts of two ranks: rank r of the first two waits in the pipeline for rank r + 4; some are silent."""
    return [
        a_rank(rank, ("message from stage 1", "pp", (rank, rank + 4)) if rank < 4 else None, alive=rank not in silent, host=f"h{rank // 2}")
        for rank in range(8)
    ]


def test_hosts_that_fall_silent_together_are_a_cut_link_and_no_rank_is_blamed() -> None:
    found = diagnose(on_hosts({4, 5, 6, 7}))
    assert found is not None and found.culprits == ()
    assert found.text == (
        "the link between hosts h0, h1 and hosts h2, h3 is cut, or hosts h2, h3 lost power: "
        "none of ranks 4, 5, 6, 7 there has reported since, "
        "and their connections are still open; ranks 0, 1, 2, 3 wait in the pipeline message from stage 1"
    )


def test_a_silent_rank_on_a_host_that_still_speaks_is_named_itself() -> None:
    silent = [replace(state, waits=("all-reduce", "dp", (4,))) if state.rank in (5, 6, 7) else state for state in on_hosts({4})]
    found = diagnose(silent)
    assert found is not None and found.culprits == (4,) and found.text.startswith("rank 4 has stopped")


def test_one_rank_alone_on_its_host_or_hosts_without_names_are_no_sign_of_a_cut() -> None:
    alone = [replace(state, host=f"n{state.rank}") for state in on_hosts({7})]
    alone = [replace(state, waits=("all-reduce", "dp", (7,))) if 3 < state.rank < 7 else state for state in alone]
    assert "the link" not in diagnosis(alone)
    assert "the link" not in diagnosis([replace(state, host="") for state in on_hosts({4, 5, 6, 7})])


class Silent:
    """A store beyond a cut link: no question is answered."""

    def clone(self) -> dist.HashStore:
        return dist.HashStore()


def test_a_rank_whose_store_is_silent_ends_by_itself_and_names_the_link() -> None:
    reported: list[Diagnosis] = []
    ended: list[int] = []
    marks = Marks()
    store = SealedStore(Silent())  # type: ignore[arg-type]
    watch = Watch(marks, store, 5, 8, reported.append, timeout_s=10.0, start_allowance_s=10.0, end=ended.append)
    marks.enter("message from stage 0", "pp", (1,))
    watch.patience.tick(0.0, marks.num_moves)
    watch._asked = 100.0, marks.num_moves
    watch.guard(104.0)
    watch.guard(110.0)
    assert reported == [] and ended == []  # within the limit
    watch.guard(111.0)
    assert ended == [EXIT_HUNG] and reported[0].culprits == ()
    assert "is cut, or that host lost power: the key-value store there gave no answer for 11 s" in reported[0].text
    assert "waits in the pipeline message from stage 0 with rank 1" in reported[0].text


def test_a_process_that_stops_before_the_first_step_is_not_given_the_time_of_a_start() -> None:
    patience = Patience(timeout_s=10.0, start_allowance_s=600.0)
    assert (patience.limit_s(), patience.usual_limit_s()) == (600.0, START_SILENCE_S)
    joining = Patience(timeout_s=10.0, start_allowance_s=600.0, start_silence_s=10.0)
    assert (joining.limit_s(), joining.usual_limit_s()) == (600.0, 10.0)
    joining.step(1.0)
    assert joining.limit_s() == 10.0


def test_a_rank_that_moves_is_not_ended_by_a_silent_store() -> None:
    ended: list[int] = []
    marks = Marks()
    store = SealedStore(Silent())  # type: ignore[arg-type]
    watch = Watch(marks, store, 5, 8, lambda found: None, timeout_s=10.0, start_allowance_s=10.0, end=ended.append)
    watch._asked = 100.0, marks.num_moves
    marks.do("forward")
    watch.guard(500.0)
    watch._asked = None
    watch.guard(500.0)
    assert ended == []


def test_a_rank_that_does_not_move_is_named_with_its_place_and_those_who_wait() -> None:
    tensor, pipeline = ("all-gather", "tp", (2, 3)), ("receive of micro-batch 2", "pp", (0, 2))
    states = [
        a_rank(0, pipeline),
        a_rank(1, ("all-gather", "tp", (0, 1))),
        a_rank(2, tensor),
        a_rank(3, at="attention.py line 8 (forward)"),
    ]
    found = diagnose(states, place=places(LAYOUT.coordinate))
    assert found == Diagnosis(
        "rank 3 (tp 1, cp 0, pp 1, dp 0) has not moved for 12.0 s: it is in forward of micro-batch 2 of step 5, at attention.py line 8 "
        "(forward); rank 2 waits for it in the tensor-parallel all-gather, ranks 0, 1 behind that",
        culprits=(3,),
        waiting=(0, 1, 2),
        step=4,
    )


def test_a_rank_that_stopped_beating_is_named_even_where_it_waited_itself() -> None:
    group = ("all-reduce", "dp", (0, 1, 2))
    states = [a_rank(0, group), a_rank(1, group), a_rank(2, ("all-gather", "tp", (2, 3)), alive=False)]
    assert diagnosis(states) == (
        "rank 2 has stopped: its process no longer reports; its last report was in the tensor-parallel all-gather of step 5; "
        "ranks 0, 1 wait for it in the data-parallel all-reduce"
    )


def test_ranks_that_wait_for_each_other_in_different_collectives_are_a_deadlock() -> None:
    states = [a_rank(0, ("all-gather", "tp", (0, 1))), a_rank(1, ("all-reduce", "dp", (0, 1)), idle_s=11.0)]
    assert diagnosis(states) == (
        "every rank has waited for 11.0 s for another one: "
        "rank 0 in the tensor-parallel all-gather with ranks 0, 1; rank 1 in the data-parallel all-reduce with ranks 0, 1"
    )


def test_ranks_in_one_and_the_same_collective_lost_a_message() -> None:
    states = [a_rank(rank, ("all-gather", "tp", (0, 1))) for rank in (0, 1)]
    assert "the network lost a message: ranks 0, 1 in the tensor-parallel all-gather" in diagnosis(states)


def test_a_rank_that_finished_early_or_never_came_is_named() -> None:
    waiting = a_rank(0, ("all-reduce", "dp", (0, 1)))
    assert diagnosis([waiting, a_rank(1, finished=True)]) == "rank 1 has ended its run; rank 0 waits for it in the data-parallel all-reduce"
    assert diagnosis([waiting], missing=(1,)) == "rank 1 has never reported; rank 0 waits for it in the data-parallel all-reduce"


@pytest.mark.parametrize(
    "other",
    [
        a_rank(1, idle_s=3.0),  # it computes
        a_rank(1, idle_s=50.0, limit_s=600.0),  # it saves, and is allowed to
        a_rank(1, ("receive", "pp", (1, 2)), idle_s=3.0),  # it waits itself, but not for long yet
    ],
)
def test_nobody_is_blamed_while_the_rank_that_is_waited_for_is_within_its_time(other: RankState) -> None:
    assert diagnose([a_rank(0, ("all-reduce", "dp", (0, 1))), other]) is None


def test_a_rank_that_finished_is_not_blamed_where_nobody_waits_for_it() -> None:
    assert diagnose([a_rank(0, idle_s=1.0), a_rank(1, finished=True, idle_s=99.0)]) is None


def test_no_false_alarm_in_ten_thousand_noisy_steps() -> None:
    # steps with a spread of 3 %, every hundredth 1.6 times as long, one mark a step: as few as there can be
    rng = np.random.default_rng(1)
    step_s = 8.0 * (1 + 0.03 * rng.standard_normal(10_000)) * np.where(np.arange(10_000) % 100 == 7, 1.6, 1.0)
    patience = Patience(timeout_s=10.0, start_allowance_s=300.0, beat_s=2.0)
    now_s, moves, alarms = 0.0, 0, 0
    for seconds in step_s:
        end_s = now_s + seconds
        while now_s + patience.beat_s < end_s:
            now_s += patience.beat_s
            patience.tick(now_s, moves)
            alarms += patience.overdue
        now_s, moves = end_s, moves + 1
        patience.step(seconds)
    assert alarms == 0


def test_a_hang_is_overdue_after_the_timeout_and_no_later_than_one_beat_more() -> None:
    patience = Patience(timeout_s=10.0, start_allowance_s=300.0)
    for seconds in [0.1] * 50:
        patience.step(seconds)
    patience.tick(100.0, 7)
    times_s = [now_s for now_s in np.arange(101.0, 130.0) if patience.tick(now_s, 7) or patience.overdue]
    assert times_s[0] == 111.0


def test_the_first_steps_count_until_others_are_known() -> None:
    """They compile for a minute; a hang after twenty steps must not wait for five of those."""
    patience = Patience(timeout_s=STALL_S, start_allowance_s=600.0)
    limits_s = []
    for seconds in (60.0, 20.0, 5.0, *[0.2] * 600):
        patience.step(seconds)
        limits_s.append(patience.limit_s())
    assert limits_s[:12] == [300.0] * 12
    assert set(limits_s[12:]) == {10.0}


def test_five_slow_steps_are_waited_for_where_steps_are_long() -> None:
    patience = Patience(timeout_s=STALL_S, start_allowance_s=600.0)
    for number in range(1000):
        patience.step(40.0 if number % 200 == 150 else 4.0)  # one step in 200 saves: below the 99th percentile
    assert patience.limit_s() == 20.0


def test_a_run_by_default_has_this_patience() -> None:
    defaults = {name: parameter.default for name, parameter in signature(train).parameters.items()}
    assert defaults["stall_timeout"] == STALL_S
    assert next(field.default for field in fields(TrainingJob) if field.name == "stall_timeout_s") == STALL_S


def test_starting_and_saving_may_take_longer() -> None:
    patience = Patience(timeout_s=10.0, start_allowance_s=300.0)
    assert patience.limit_s() == 300.0
    patience.step(1.0)
    assert patience.limit_s() == 10.0
    patience.allowance = 60.0, "a checkpoint"
    assert patience.limit_s() == 60.0


def test_a_process_that_was_stopped_itself_does_not_take_that_time_for_a_hang() -> None:
    patience = Patience(timeout_s=10.0, start_allowance_s=0.0)
    patience.step(1.0)
    patience.tick(0.0, 1)
    patience.tick(1.0, 1)
    patience.tick(500.0, 1)  # the watchdog's own thread did not run either
    assert patience.idle_s == 3.0


@pytest.fixture
def store() -> Iterator[dist.TCPStore]:
    """A store hosted by this process, as a launcher would."""
    yield dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))


def test_rubbish_in_the_store_is_passed_over(store: dist.TCPStore) -> None:
    sealed = SealedStore(store)
    for rank, text in enumerate(["", "[]", '{"rank": 0}', '{"waits": [1]}', json.dumps({"__reduce__": "os.system"})]):
        sealed.set(f"rank/{rank}", text)
    peers = Peers(sealed, 6)
    peers.read(0.0)
    assert peers.judged(0.0, 1.0) == ([], [0, 1, 2, 3, 4, 5]) and peers.intrusion == ""


def test_notes_of_strangers_do_not_count_and_are_told(store: dist.TCPStore) -> None:
    sealed = SealedStore(store, b"a secret of the job")
    store.set("rank/0", json.dumps({"rank": 0}))
    SealedStore(store).set("rank/1", "{}")
    peers = Peers(sealed, 3)
    peers.read(0.0)
    assert peers.judged(0.0, 1.0) == ([], [0, 1, 2])
    assert peers.intrusion.startswith("ranks 0, 1: notes in the store were changed or deleted by a process outside of this job")


def test_a_note_that_is_deleted_is_told_and_does_not_end_the_reading(store: dist.TCPStore) -> None:
    sealed = SealedStore(store, b"a secret of the job")
    watches = [Watch(Marks(), sealed, rank, 2, report=lambda found: None, timeout_s=10.0) for rank in (0, 1)]
    for watch in watches:
        watch._publish()
    peers = Peers(sealed.apart("watch", 0.3), 2)
    peers.read(0.0)
    assert [state.rank for state in peers.judged(0.0, 1.0)[0]] == [0, 1]
    store.delete_key("watch/rank/1")
    watches[0]._publish()
    peers.read(5.0)
    states, missing = peers.judged(5.0, 1.0)
    assert missing == [] and [state.alive for state in states] == [True, False] and "rank 1: notes" in peers.intrusion


def test_a_stranger_cannot_end_the_run_in_the_name_of_the_reader(store: dist.TCPStore) -> None:
    ended: list[int] = []
    watch = Watch(Marks(), SealedStore(store, b"a secret of the job"), 0, 1, report=lambda found: None, timeout_s=10.0, end=ended.append)
    store.set("watch/reader", "over")
    assert watch._reads(0.0) and ended == []
    assert watch.store.get("reader").startswith(b"0 ")


def test_the_limit_is_restored_after_an_allowance(store: dist.TCPStore) -> None:
    watch = Watch(Marks(), SealedStore(store), 0, 1, report=lambda found: None, timeout_s=10.0)
    watch.step(1, 0.5)
    with watch.allow(60.0, "saving"):
        assert (watch.patience.limit_s(), watch.marks.doing) == (60.0, "saving")
    assert (watch.patience.limit_s(), watch.marks.doing) == (10.0, "the time between steps")


def test_every_rank_writes_what_it_knows_before_the_report_and_leaves_after_it(store: dist.TCPStore) -> None:
    """Ranks 0 and 1 wait for rank 2, which has not reported for long; rank 0 reads, rank 1 hears of it and stays until it is told."""
    order = list[str]()
    watches = [
        Watch(
            Marks(),
            SealedStore(store),
            rank,
            3,
            report=lambda found: order.append("report"),
            timeout_s=5.0,
            beat_s=0.01,
            witness=lambda rank=rank: order.append(f"witness {rank}"),
            end=lambda code, rank=rank: order.append(f"end {rank}"),
        )
        for rank in range(3)
    ]
    for watch in watches:
        watch.patience.step(0.1)
        watch.marks.enter("all-reduce", "dp", range(3))
        watch.beat(0.0)
    reader, other = watches[:2]
    for watch in (reader, other):
        watch.patience.idle_s, watch.patience.timeout_s = 4.9, 5.0
    reader._look(0.0)  # takes the lease, and sees everyone
    reader.patience.idle_s = other.patience.idle_s = 6.0
    for rank in (0, 1):
        watches[rank]._publish()
    reader._look(9.0)
    other._look(9.0)
    assert order == ["witness 0", "report", "end 0", "witness 1", "end 1"]


def a_rank_that_trains(rank: int, num_ranks: int, port: int, folder: Path, fault: str) -> None:
    """Steps with a barrier each; rank 2 goes wrong in its fourth, and before "sleep" saves for longer than the timeout."""
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=200))
    marks = Marks()

    def report(found: Diagnosis) -> None:
        (folder / f"diagnosis-{rank}").write_text(found.text)

    watch = Watch(marks, SealedStore(store), rank, num_ranks, report, timeout_s=3.0, start_allowance_s=200.0, beat_s=0.2)
    watch.start()
    for step in range(1, 8):
        marks.do("forward of micro-batch 0")
        if step == 3 and rank == 2 and fault == "sleep":
            with watch.allow(200.0, "saving"):
                time.sleep(4.5)
        if step == 4 and rank == 2:
            time.sleep(0.5)  # some beats, so that the last one heard is of this step
            fail = {"stop": lambda: os.kill(os.getpid(), signal.SIGSTOP), "sleep": lambda: time.sleep(300)}[fault]
            fail()
        marks.enter("all-reduce", "dp", range(num_ranks))
        if store.add(f"arrived-{step}", 1) == num_ranks:
            store.set(f"all-{step}", "1")
        store.wait([f"all-{step}"])
        marks.leave()
        watch.step(step, 0.1)
    watch.stop()


def run_ranks(store: dist.TCPStore, folder: Path, fault: str) -> list[int | None]:
    """Exit codes of three ranks, each this file run as a program; None for one that did not end by itself and was killed."""
    ranks = [subprocess.Popen([sys.executable, __file__, str(rank), "3", str(store.port), str(folder), fault]) for rank in range(3)]
    deadline_s = time.monotonic() + 150  # for a machine with much else to do: alone it takes ten seconds
    try:
        for process in ranks if fault != "stop" else ranks[:2]:
            process.wait(max(0.0, deadline_s - time.monotonic()))
        return [process.poll() for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()


@pytest.mark.parametrize("fault, codes", [("sleep", [EXIT_HUNG] * 3), ("stop", [EXIT_HUNG, EXIT_HUNG, None])])
def test_a_rank_may_save_but_one_that_hangs_ends_the_others_and_one_of_them_says_why(
    store: dist.TCPStore, tmp_path: Path, fault: str, codes: list[int]
) -> None:
    assert run_ranks(store, tmp_path, fault) == codes
    (diagnosis,) = tmp_path.iterdir()
    text = diagnosis.read_text()
    expected = "has not moved for" if fault == "sleep" else STOPPED
    assert text.startswith(f"rank 2 {expected}")
    assert "in forward of micro-batch 0 of step 4" in text
    assert text.endswith("; ranks 0, 1 wait for it in the data-parallel all-reduce")
    assert ("test_watch.py line" in text) == (fault == "sleep")


@pytest.mark.parametrize(
    "ranks", [(), (3,), (0, 1), (0, 1, 2), (7, 5, 3), tuple(range(1024)), tuple(range(5, 8192, 64)), (0, 1, 3), (0, 2, 2), (4, 4, 4)]
)
def test_ranks_survive_their_way_through_a_message(ranks: tuple[int, ...]) -> None:
    assert unpacked(json.loads(json.dumps(packed(ranks)))) == ranks
    assert len(json.dumps(packed(tuple(range(100_000))))) < 20


@pytest.mark.parametrize("text", ["", "1:2:3:4", "a:b:c", "0:99999999999:1", "0:5:0"])
def test_ranks_that_make_no_sense_are_no_ranks(text: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        unpacked(text)


class Counted:
    """A store that counts who asks for what."""

    def __init__(self, store: dist.Store) -> None:
        self.store, self.calls = store, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.calls[name] += 1
            return getattr(self.store, name)(*arguments)

        return call


NUM_MANY = 1024


class Many:
    """A thousand ranks with one store, on a clock of their own; each waits for all others but one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("meshwright.train.health.watch.time.sleep", lambda _: None)
        shared, self.reports, self.ended = dist.HashStore(), list[tuple[int, str]](), set[int]()
        self.watches = []
        for rank in range(NUM_MANY):
            watch = Watch(
                Marks(),
                SealedStore(SimpleNamespace(clone=lambda: shared)),  # type: ignore[arg-type]
                rank,
                NUM_MANY,
                lambda found, rank=rank: self.reports.append((rank, found.text)),
                timeout_s=10.0,
                end=lambda code, rank=rank: self.ended.add(rank),
            )
            watch.store = watch._peers.store = Counted(watch.store)  # type: ignore[assignment]
            watch.patience.step(0.5)
            watch.marks.enter("all-reduce", "dp", range(NUM_MANY))
            self.watches.append(watch)

    def beat(self, now_s: float, but: Collection[int] = ()) -> list[Counter[str]]:
        """One beat of all that are there; what each asked of the store."""
        counts = []
        for watch in self.watches:
            watch.store.calls.clear()  # type: ignore[attr-defined]
            if watch.rank not in self.ended and watch.rank not in but:
                watch.beat(now_s)
            counts.append(Counter(watch.store.calls))  # type: ignore[attr-defined]
        return counts


def test_a_thousand_ranks_ask_little_of_the_store_and_name_the_one_that_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    many, stopped = Many(monkeypatch), 700
    for now in range(2):
        for watch in many.watches:
            watch.marks.do("a step")
            watch.marks.enter("all-reduce", "dp", range(NUM_MANY))
        assert all(counts == Counter(set=1) for counts in many.beat(float(now)))
    num_readers = []
    for now in range(2, 25):
        counts = many.beat(float(now), but=(stopped,))
        num_readers.append(sum(each["multi_get"] > 0 for each in counts))
        assert max((each.total() for each in counts if not each["multi_get"]), default=0) <= 4
    assert max(num_readers) == 1
    assert many.ended == set(range(NUM_MANY)) - {stopped}
    ((_, text),) = many.reports
    assert text.startswith("rank 700 has stopped: its process no longer reports")
    assert "wait for it in the data-parallel all-reduce" in text


def test_another_rank_reads_on_where_the_reader_itself_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    many = Many(monkeypatch)
    many.beat(0.0)
    for now in range(1, 7):
        many.beat(float(now), but=(700,))
    (reader,) = [watch.rank for watch in many.watches if watch._peers.states]
    for now in range(7, 40):
        many.beat(float(now), but=(700, reader))
    ((_, text),) = many.reports
    assert all(f"rank {rank} has stopped" in text for rank in (700, reader))
    assert many.ended == set(range(NUM_MANY)) - {700, reader}


if __name__ == "__main__":
    a_rank_that_trains(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5])


def false_alarms(times_s: Sequence[float]) -> int:
    """How often the detector would end a run of these steps: it sees one move at the end of each, and beats in between."""
    patience = Patience(timeout_s=STALL_S, start_allowance_s=600.0)
    now_s, num_overdue = 0.0, 0
    for number, step_s in enumerate(times_s):
        patience.beat_s = max(step_s / 4, BEAT_S)
        for at_s in (now_s, now_s + step_s / 4, now_s + step_s / 2, now_s + 3 * step_s / 4, now_s + step_s):
            patience.tick(at_s, number)
        num_overdue += patience.overdue  # at the end of the step, when it has waited longest
        now_s += step_s
        patience.step(step_s)
    return num_overdue


@pytest.mark.parametrize("median_s", [0.05, 3.0, 20.0, 300.0])
def test_stalls_of_1_6_medians_are_no_hang(median_s: float) -> None:
    rng = np.random.default_rng(6)
    times_s = median_s * np.exp(0.03 * rng.standard_normal(10_000)) * np.where(rng.random(10_000) < 0.01, 1.6, 1.0)
    assert false_alarms(times_s.tolist()) == 0


def test_steps_of_recorded_runs_are_no_hang() -> None:
    from meshwright import simulator  # here, because this file is also the script of a rank

    logs = sorted((Path(simulator.__file__).parent / "step_times").glob("*.csv"))
    assert len(logs) >= 20
    for path in logs:
        rows = path.read_text().splitlines()[1:]
        assert false_alarms([float(row.split(",")[1]) for row in rows]) == 0, path.name


def test_a_step_that_never_ends_is_noticed_in_five_slow_steps() -> None:
    patience = Patience(timeout_s=STALL_S, start_allowance_s=600.0)
    for _ in range(200):
        patience.step(4.0)
    seconds = next(second for second in range(1000) if (patience.tick(float(second), 1), patience.overdue)[1])
    assert 20 <= seconds <= 22

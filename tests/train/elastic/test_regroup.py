"""One process in one generation of a run."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

from small_run import Small

from meshwright.errors import InputError
from meshwright.train.checkpoint.durable import CheckpointError
from meshwright.train.data.corpus import Corpus
from meshwright.train.elastic.carry import Carry
from meshwright.train.elastic.handover import DamagedState
from meshwright.train.elastic.member import Announcement, Member
from meshwright.train.elastic.regroup import Regroup
from meshwright.train.health.signals import StopSignal
from meshwright.train.job import TrainingJob
from meshwright.train.launch import ReportedElsewhere
from meshwright.train.loop import Progress
from meshwright.train.material import corpus_material
from meshwright.train.replay import NotFinite


def regroup(small: Small) -> Regroup:
    member = Member(replica=0, seat=0, num_seats=1, port=1, secret=b"", began_s=0.0, local_rank=0, num_sharing=1, heard=None, said=None)  # type: ignore[arg-type]
    announced = Announcement(generation=2, replicas=(0, 2, 1), reason="joined")
    return Regroup(
        member=member,
        announced=announced,
        carry=Carry(),
        material=corpus_material(Corpus.open(small.corpus), small.plan("dp=2").workload, 0),
        stop=StopSignal(),
    )


def test_the_record_says_how_the_batch_is_dealt(small: Small, tmp_path: Path) -> None:
    job = TrainingJob(plan=small.plan("dp=2"), runs=tmp_path, name="a", corpus=small.corpus, dp=3)
    found = regroup(small).membership(job, Progress(step=7, samples=56))
    assert (found["from_step"], found["dp"], found["replicas"]) == (8, 3, [0, 2, 1])
    assert (found["micro_batches"], found["rounds"]) == ([2, 1, 1], 2)


def test_records_that_are_open_are_written_on_if_they_end_where_the_replicas_changed(small: Small) -> None:
    for reason, newest, incident in (("joined", 7, None), ("joined", 6, None), ("lost", 7, {"number": 1})):
        one, writer = regroup(small), MagicMock(newest_step=newest)
        one.announced = Announcement(generation=2, replicas=(0, 1), reason=reason, incident=incident)
        one.carry.writer = writer
        assert one.is_planned == (incident is None)
        assert one.kept_writer(7) is (writer if newest == 7 and incident is None else None)
        assert writer.close.called != (newest == 7 and incident is None) and one.carry.writer is None
        assert one.kept_writer(7) is None


def test_errors_that_only_show_that_others_have_gone(small: Small) -> None:
    one = regroup(small)
    one.member.current = one.member.newest = 2
    assert not one.survives(CheckpointError("not saved")) and not one.survives(DamagedState("other bits"))
    one.member.newest = 3
    assert one.survives(CheckpointError("not saved")) and one.survives(ReportedElsewhere("rank 0 says why"))
    assert one.survives(DamagedState("other bits")) and one.survives(InputError("no token carries loss"))  # what a cut exchange left
    assert not one.survives(NotFinite("the loss is NaN"))

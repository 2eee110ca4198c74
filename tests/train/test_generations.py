"""One process through the generations of a run."""

from __future__ import annotations

from dataclasses import asdict

from meshwright.train.elastic.member import Announcement
from meshwright.train.generations import _incident
from meshwright.train.incidents import Incident


def test_what_broke_reaches_the_next_generation() -> None:
    incident = Incident(number=2, reason="hang", rank=1, step=7, message="rank 1 hangs", noticed_s=3.5, step_times_s={6: 0.5, 7: 0.25})
    announced = Announcement(generation=1, replicas=(0,), reason="lost", incident=asdict(incident))
    assert _incident(Announcement.from_json(announced.to_json())) == incident
    assert _incident(Announcement(generation=0, replicas=(0, 1), reason="start")) is None

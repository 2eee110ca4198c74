"""What broke in a run that went on by itself, as rows for its document and its page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.record.entries import Event
from meshwright.report.tables import NONE, Row
from meshwright.units import seconds

REPLAYED = {
    "sound": "step done again, normal",
    "same": "step done again, the same: applied",
    "skipped": "step done again, the same: samples skipped",
}
INCIDENT_COLUMNS = ("at>", "step>", "what broke", "what was done", "noticed after>", "down>", "steps lost>", "cost>")


def incident_rows(events: Sequence[Event]) -> Iterator[Row]:
    """What broke in a run that went on by itself, when it was noticed, what was done, and what it cost."""
    for event in (event for event in events if event.kind in ("incident", "replay")):
        detail = event.detail
        if event.kind == "replay":
            detail = {
                **detail,
                "action": REPLAYED.get(str(detail.get("outcome")), NONE),
                "num_lost_steps": 1,
                "down_s": detail.get("lost_s"),
            }
        broke = str(detail.get("message", "")).partition(";")[0]
        times = [seconds(value) if isinstance(value := detail.get(name), int | float) else NONE for name in ("noticed_after_s", "down_s")]
        cost = f"${detail['cost_usd']}" if isinstance(detail.get("cost_usd"), str) else NONE
        number = detail.get("broke_at_step", event.step)
        yield (
            seconds(event.time_s),
            str(number),
            broke,
            str(detail.get("action", NONE)),
            *times,
            str(detail.get("num_lost_steps", NONE)),
            cost,
        )

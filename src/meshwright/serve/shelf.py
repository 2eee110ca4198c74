"""All runs of a folder, and what the page shows about them, as plain values for JSON."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meshwright.errors import InputError, MeshwrightError, printable
from meshwright.ledger import Ledger
from meshwright.record.entries import Event
from meshwright.record.header import RUNNING
from meshwright.report.facts import KINDS, predicted_parts_s, unpredicted_note
from meshwright.serve.books import Books
from meshwright.serve.files import run_folder, run_names
from meshwright.serve.live import LiveRun, number_in
from meshwright.serve.outlook import outlook_of
from meshwright.serve.racks import health_of, racks_of

MAX_LISTED = 500  # newest first; nobody would read a longer list
LISTING_S = 0.3  # reading time for one list: runs that are not fully read are marked, and read further for the next list
READING_S = 0.5  # the same for one run
ENDED = ("finished", "target_reached", "stopped", "failed")
MAX_SENT_EVENTS = 500
MAX_TEXT = 2_000  # characters in one value of an event


class Shelf:
    """The runs folder. It has one lock: requests take turns, so that each byte is read once."""

    def __init__(self, runs: Path, name: str = "") -> None:
        self.runs, self.name = runs, name or str(runs)  # the name is the URL for a copy of runs in object storage
        self.books = Books()
        self._found: dict[str, LiveRun] = {}
        self._settled: dict[str, tuple[float, dict[str, Any]]] = {}  # rows that no longer change, and when the folder was last written to
        self._lock = threading.Lock()

    def listed(self) -> dict[str, Any]:
        """The facts of every run, one row each, newest first."""
        with self._lock:
            touched = run_names(self.runs)
            for gone in self._found.keys() - touched.keys():
                self.books.forget(self._found.pop(gone))
            shown = list(touched)[:MAX_LISTED]
            self._settled = {name: row for name, row in self._settled.items() if touched.get(name) == row[0]}
            self._look_at([name for name in shown if name not in self._settled])
            rows = [self._settled[name][1] if name in self._settled else self._row(name, touched[name]) for name in shown]
        return {"runs": rows, "num_runs": len(touched), "folder": self.name}

    def shown(self, name: str, *, life: int = 0, after: int = 0, bucket: int = 0, num_events: int = 0) -> dict[str, Any]:
        """One run: its facts, and what is new since the client last asked."""
        with self._lock:
            run = self._run(name, READING_S)
            ledger = self.books.ledger(run)
            anew = life != run.life
            return {
                **_facts(run, ledger),
                **_story(run, ledger),
                "life": run.life,
                "steps": run.steps.thinned(after=0 if anew else after, bucket=0 if anew else bucket),
                "events": _events(run, 0 if anew else num_events),
                "num_events": run.num_events,
                "health": health_of(run),
            }

    def steps(self, name: str, first: int, last: int, points: int) -> dict[str, Any]:
        """The steps of one run from `first` to `last`, in at most `points` buckets."""
        with self._lock:
            run = self._run(name, READING_S)
            shown = run.steps.between(first, last, points) if last else run.steps.thinned(points=points)
            return {**_facts(run, self.books.ledger(run)), "life": run.life, "steps": shown}

    def racks(self, name: str) -> dict[str, Any]:
        """Where the ranks of one run are; an error if it has no plan."""
        with self._lock:
            run = self._run(name)
            if run.plan is None:
                what = "the run has no plan that can be read, so the places of its ranks are not known"
                raise InputError(what, where=name, fix="put the run's plan.json back")
            return racks_of(run.plan)

    def _run(self, name: str, patience_s: float = 0.0) -> LiveRun:
        folder = run_folder(self.runs, name)
        if name not in self._found:
            self._found[name] = LiveRun(folder)
        run = self._found[name]
        run.refresh(patience_s)
        return run

    def _look_at(self, names: list[str]) -> None:
        """Read these runs further for a moment, first those that have waited longest, so that a long run does not delay the others.

        Half of the time is for runs that are being written, so that hundreds of unread runs do not delay them.
        """
        now_s = time.monotonic()
        waited = sorted(names, key=lambda name: self._found[name].looked_s if name in self._found else 0.0)
        self._look_until([name for name in waited if self._is_running(name)], now_s + LISTING_S / 2)
        self._look_until(waited, now_s + LISTING_S)

    def _is_running(self, name: str) -> bool:
        header = self._found[name].header if name in self._found else None
        return header is not None and header.status == RUNNING

    def _look_until(self, names: list[str], until_s: float) -> None:
        for name in names:
            if time.monotonic() >= until_s:
                return
            with suppress(MeshwrightError):  # `_row` reports it
                self._run(name)

    def _row(self, name: str, touched: float) -> dict[str, Any]:
        try:
            folder = run_folder(self.runs, name)
        except MeshwrightError as error:
            return {"name": printable(name), "status": "damaged", "problem": _problem(error), "is_open": False}
        run = self._found.setdefault(name, LiveRun(folder))
        row = _facts(run, self.books.ledger(run))
        if row["status"] in ENDED and run.share_read == 1 and self.books.is_settled(run):
            self._settled[name] = (touched, row)
        return row


def _facts(run: LiveRun, ledger: Ledger | None) -> dict[str, Any]:
    """What a row of the list says about a run."""
    facts: dict[str, Any] = {"name": run.folder.name, "status": run.status, "is_open": True, "written": run.written}
    if run.problem:
        facts["problem"] = _problem(run.problem)
    if run.header is None:
        return facts if run.problem else {**facts, "status": "reading", "share_read": 0.0}
    header, plan, outlook, end = run.header, run.plan, outlook_of(run, ledger), run.end_of_sample
    batch = plan.workload.global_batch if plan else 0
    usd = float(ledger.usd_unrounded) if ledger and ledger.usd_unrounded is not None else None
    estimate = run.busy_s * outlook.usd_per_s if outlook.usd_per_s is not None else None
    facts = {
        **facts,
        "kind": header.kind,
        "created": header.created,
        "num_ranks": header.num_ranks,
        "plan_problem": run.plan_problem,
        "model": plan.model.name if plan else None,
        "workload": plan.workload.name if plan else None,
        "cluster": plan.cluster.name if plan else None,
        "layout": str(plan.layout) if plan else None,
        "tokens_per_step": plan.workload.tokens_per_step if plan else None,
        "step": run.num_done,
        "samples": end.step * batch if end else int(run.steps.last("samples")) if len(run.steps) else 0,
        "num_recorded": len(run.steps) if end else None,  # of a simulation of weeks, which records a sample of its steps
        "loss": run.steps.last("loss"),
        "evaluation": run.last_evaluation,
        "target": number_in(header.target),
        "step_s": run.recent_step_s,
        "tokens_per_s": run.recent_tokens_per_s,
        "busy_s": run.busy_s,
        "quiet_s": run.quiet_s,
        "usd": estimate if usd is None else usd,
        "is_estimate": usd is None,
        "num_slow": len(run.slow_ranks),
        "num_slow_links": run.num_slow_links,
        "num_damaged": run.num_damaged,
        "damage": run.damage[:MAX_SENT_EVENTS],
        "share_read": run.share_read,
        **asdict(outlook),
    }
    return dict(plain(facts))


def _story(run: LiveRun, ledger: Ledger | None) -> dict[str, Any]:
    """What the page of one run says in addition to its row."""
    header, plan = run.header, run.plan
    if header is None:
        return {}
    parts_s = predicted_parts_s(plan, KINDS[header.kind]) if plan else {}
    predicted = {"step_s": plan.step_s, "low_s": plan.low_s, "high_s": plan.high_s, "parts_s": parts_s} if plan else None
    facts = {
        "machine": header.machine,
        "seed": header.seed,
        "versions": dict(header.versions),
        "has_plan": plan is not None,
        "predicted": predicted,
        "unpredicted": unpredicted_note(plan, KINDS[header.kind]),
        "parts_s": run.recent_parts_s,
        "num_steady": run.num_steady,
        "num_recent": len(run.steps) - run.first_counted,
        "ledger": _ledger(ledger),
        "precision": plan.workload.precision if plan else None,
        "accelerator": plan.cluster.accelerator.name if plan else None,
    }
    return dict(plain(facts))


def _ledger(ledger: Ledger | None) -> dict[str, Any] | None:
    if ledger is None:
        return None
    return {
        "usd": float(ledger.usd) if ledger.usd is not None else None,
        "gpu_seconds": dict(ledger.gpu_seconds),
        "energy_j": ledger.energy_j,
        "energy_source": ledger.energy_source,
        "wall_s": ledger.wall_s,
    }


def _events(run: LiveRun, known: int) -> list[dict[str, Any]]:
    """The events after the first `known`, at most the newest few hundred of them."""
    new = run.num_events - known if 0 <= known <= run.num_events else run.num_events
    return [_event(event) for event in run.events[-min(new, MAX_SENT_EVENTS) :]] if new else []


def _event(event: Event) -> dict[str, Any]:
    return dict(plain(event.to_json()))


def _problem(error: MeshwrightError) -> dict[str, str]:
    return {"what": printable(error.what), "where": printable(error.where), "fix": printable(error.fix)}


def plain(value: Any, depth: int = 8) -> Any:
    """A value from a file in a form that JSON allows: no NaN, no very long text, no deep nesting."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return printable(value if len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]} ...")
    if isinstance(value, Mapping):
        return {printable(str(key))[:200]: plain(inner, depth - 1) for key, inner in list(value.items())[:200]} if depth else "..."
    if isinstance(value, list | tuple):
        return [plain(inner, depth - 1) for inner in value[:1000]] if depth else "..."
    return value

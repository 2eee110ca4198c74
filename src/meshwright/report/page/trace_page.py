"""A profile as one self-contained page: for every GPU or rank, how much of its communication is hidden and how much is exposed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshwright.record.intervals import Union
from meshwright.record.profile import ProcessTimes, Profile
from meshwright.report.page.axes import ticks
from meshwright.report.page.bars import bar
from meshwright.report.page.colours import var
from meshwright.report.page.markup import Html, joined, legend, number, swatch, table, tag
from meshwright.report.page.run_charts import stacked
from meshwright.report.page.shell import document, note_list, section, tile, write_page
from meshwright.report.tables import PROCESS_COLUMNS, STREAM_COLUMNS, process_rows, stream_row
from meshwright.units import seconds

NUM_COLUMNS = 500  # in the strip over time
MAX_STRIPS = 16  # processes that are drawn one by one
LANE = 30.0  # pixels
SHARES = (  # the parts of a window, in drawing order
    ("compute_s", "compute", "compute"),
    ("exposed_s", "exposed communication", "dp"),
    ("memory_s", "copies and the rest", "optimizer"),
    ("idle_s", "idle", "bubble"),
)


def write_trace_page(profile: Profile, path: Path) -> None:
    """Write the page."""
    write_page(path, trace_page(profile))


def trace_page(profile: Profile) -> str:
    """The page as HTML."""
    names = ", ".join(path.name for path in profile.files)
    sections = (_answer(profile), _shares(profile), _strips(profile), _streams(profile), _collectives(profile))
    eyebrow = tag("p", "meshwright report", class_="eyebrow")
    count = f"{len(profile.processes)} {'GPU' if profile.processes[0].on_gpu else 'process'}{'' if len(profile.processes) == 1 else 's'}"
    subtitle = tag("p", f"A profile of {count.replace('processs', 'processes')}", class_="soft")
    header = tag("header", eyebrow, tag("h1", names), subtitle, note_list(profile.notes))
    return document(f"{names}: profile", header, sections, _footer())


def _answer(profile: Profile) -> Html:
    processes = profile.processes
    window_s, exposed_s, total_s = (sum(getattr(p, key) for p in processes) for key in ("window_s", "exposed_s", "communication_s"))
    worst = max(processes, key=lambda one: one.share_pct(one.exposed_s))
    idle_s = sum(p.idle_s for p in processes)
    steps = max(p.num_steps for p in processes)
    per_step = f"; {seconds(exposed_s / len(processes) / steps)} per step of {steps}" if steps else ""
    hidden = f"{100 * (1 - exposed_s / total_s):.1f} %" if total_s else "none there"
    tiles = (
        tile("Exposed communication", f"{100 * exposed_s / window_s:.2f} %" if window_s else "0 %", f"of the time{per_step}"),
        tile("Hidden behind compute", hidden, f"of {seconds(total_s)} of communication"),
        tile("Idle", f"{100 * idle_s / window_s:.1f} %" if window_s else "0 %", "nothing at all runs"),
        tile("Most exposed", worst.label, f"{worst.share_pct(worst.exposed_s):.2f} % of its time"),
    )
    return section("answer", "The profile in numbers", tag("div", *tiles, class_="tiles"))


def _shares(profile: Profile) -> Html:
    longest = max(process.window_s for process in profile.processes) or 1.0
    rows = []
    for process in profile.processes:
        pieces = [(f"{name}: {seconds(getattr(process, key))}", var(colour), getattr(process, key)) for key, name, colour in SHARES]
        rows.append((process.label, pieces, f"{seconds(process.window_s)}, {process.share_pct(process.exposed_s):.2f} % exposed"))
    drawn = stacked(rows, longest, "What the time of every process is made of")
    listed = table(PROCESS_COLUMNS, process_rows(profile), "Times", class_="bars")
    return section("shares", "Where the time goes", _legend(), drawn, listed)


def _legend() -> Html:
    return legend((var(colour), name) for _, name, colour in SHARES)


def _strips(profile: Profile) -> Html:
    shown = profile.processes[:MAX_STRIPS]
    left = len(profile.processes) - len(shown)
    drawn = [tag("div", tag("h3", process.label), _strip(process)) for process in shown]
    note = tag("p", f"{left:,} more processes are in the table.", class_="small") if left > 0 else None
    text = "The height of a colour is the share of that time in which such work runs; where communication is exposed, nothing is computed."
    return section("strips", "Over time", tag("p", text, class_="small"), *drawn, note)


def _strip(process: ProcessTimes) -> Html:
    if not process.window_s:
        return tag("p", "No event takes any time.", class_="soft")
    edges = np.linspace(0.0, process.window_s, NUM_COLUMNS + 1) + _first(process)
    exposed = process.communication.covers(edges[:-1], edges[1:]) - _both(process, edges)
    lanes = (
        ("compute", "compute", _share(process.compute, edges)),
        ("communication", "cp", _share(process.communication, edges)),
        ("exposed", "dp", exposed / np.diff(edges)),
        ("copies", "optimizer", _share(process.memory, edges)),
    )
    rows = [_lane(name, var(colour), share) for name, colour, share in lanes if share.max() > 0]
    return tag(
        "div",
        *rows,
        _axis(process.window_s),
        class_="lanes",
        role="img",
        aria_label=f"Compute and communication of {process.label} over time",
    )


def _first(process: ProcessTimes) -> float:
    return min(float(union.start[0]) for union in (process.compute, process.communication, process.memory) if len(union.start))


def _share(union: Union, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(union.covers(edges[:-1], edges[1:]) / np.diff(edges))


def _both(process: ProcessTimes, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Time in each column in which compute and communication both run: the sum of their times minus the time in which either runs."""
    compute, communication = process.compute, process.communication
    either = Union.of(np.concatenate((compute.start, communication.start)), np.concatenate((compute.end, communication.end)))
    return np.asarray(sum(u.covers(edges[:-1], edges[1:]) for u in (compute, communication)) - either.covers(edges[:-1], edges[1:]))


def _lane(name: str, colour: str, share: NDArray[np.float64]) -> Html:
    """A lane of columns as one outline: equal neighbours become one line."""
    levels = np.clip(share, 0.0, 1.0).round(2)
    starts = np.concatenate(([0], np.flatnonzero(np.diff(levels)) + 1))
    outline = [f"M0 {LANE:g}"]
    for start in starts.tolist():
        outline.append(f"H{start}V{number(float(LANE * (1 - levels[start])))}")
    path = "".join(outline) + f"H{NUM_COLUMNS}V{LANE:g}Z"
    box = f"0 0 {NUM_COLUMNS} {LANE:g}"
    inner = tag("svg", tag("path", d=path, fill=colour), viewBox=box, preserveAspectRatio="none", width="100%", height=LANE - 6)
    base = tag("line", x1="0%", x2="100%", y1=LANE - 6, y2=LANE - 6, stroke=var("line"))
    return tag(
        "div", tag("span", name), tag("svg", base, inner, class_="fixed", width="100%", height=LANE, aria_hidden="true"), class_="lane"
    )


def _axis(window_s: float) -> Html:
    marks = [mark for mark in ticks(0.0, window_s, 4) if mark < 0.97 * window_s]
    words = [
        tag("text", seconds(mark), x=f"{100 * mark / window_s:.2f}%", y=12, text_anchor="start" if not mark else "middle", fill=var("soft"))
        for mark in marks
    ]
    return tag("div", tag("span"), tag("svg", *words, class_="fixed", width="100%", height=16, aria_hidden="true"), class_="lane")


def _streams(profile: Profile) -> Html:
    longest = max((stream.communication_s for process in profile.processes for stream in process.streams), default=0.0)
    if not longest:
        return section("streams", "By stream", tag("p", "No stream carries communication.", class_="soft"))
    rows = []
    for process in profile.processes:
        for stream in process.streams:
            exposed, whole = stream.exposed_s / longest, stream.communication_s / longest
            drawn = bar([(0.0, exposed, var("dp")), (exposed, whole, var("cp"))])
            label, name, *cells = stream_row(process, stream)
            rows.append((label, name, drawn, *cells))
    word = "stream" if profile.processes[0].on_gpu else "thread"
    columns = ("process", word, "exposed / hidden", *STREAM_COLUMNS[2:])
    keys = legend([(var("dp"), "exposed"), (var("cp"), "hidden behind compute")])
    return section("streams", f"By {word}", keys, table(columns, rows, "Exposed communication by stream", class_="bars third"))


def _collectives(profile: Profile) -> Html:
    rows = list(_collective_rows(profile))
    if not rows:
        return Html("")
    columns = ("process", "collective", "calls>", "total>", "exposed>", "exposed %>")
    return section(
        "collectives", "By collective", table(columns, rows, "Collectives", caption="The most exposed first", class_="listed named")
    )


def _collective_rows(profile: Profile) -> Iterator[tuple[Html | str, ...]]:
    for process in profile.processes[:MAX_STRIPS]:
        for one in process.collectives:
            share = 100 * one.exposed_s / one.total_s if one.total_s else 0.0
            name = swatch(var("dp"), one.name[:120])
            yield process.label, name, f"{one.num_events:,}", seconds(one.total_s), seconds(one.exposed_s), f"{share:.1f}"


def _footer() -> Html:
    text = (
        "Times are unions of intervals, so that nested and parallel events count once. Exposed: communication less compute. "
        "Hidden over communication is the comm_comp_overlap of HolisticTraceAnalysis; idle and compute are those of its temporal breakdown."
    )
    return joined(tag("footer", tag("p", text)))

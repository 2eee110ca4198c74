"""What mapping is worth: a document and a page with the predicted and the measured step of each mapping."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Mapping as Parts

from meshwright.lab.description import Lab
from meshwright.lab.mapping import AXIS_WORDS, Mapping
from meshwright.lab.mapping_run import Tried, in_measured_order
from meshwright.plan.explain import traffic
from meshwright.record.entries import PART_NAMES, PARTS
from meshwright.report.page.bars import bar, mark
from meshwright.report.page.colours import part_colour, var
from meshwright.report.page.markup import Html, legend, table, tag
from meshwright.report.page.shell import document, note_list, section
from meshwright.say.document import Block, Document, Note, Table, Text
from meshwright.units import per_cent, seconds, si

WITHIN = 0.15  # of the measured step: a forecast that is closer is good
LOUD = 0.1  # of the core time that other programs used: more than this is said


def mapping_document(several: Sequence[Tried], lab: Lab, job: str) -> Document:
    """The mappings, the shortest measured step first."""
    ordered = sorted(several, key=lambda one: one.measured_s)
    title = f"{job}, mapped to lab {lab.name} in {len(ordered)} ways"
    blocks: list[Block] = [Table(title, ("mapping", "layout", *COLUMNS), tuple(map(_row, ordered)))]
    blocks += [Text(text) for text in (headline(ordered), *(explanation(one) for one in ordered))]
    blocks += [Note(text) for text in notes(ordered)]
    return Document(kind="mapping", title=title, blocks=tuple(blocks), values={"mappings": [_values(one) for one in ordered]})


def planned_document(several: Sequence[Mapping], lab: Lab, job: str) -> Document:
    """The mappings with their forecasts, before anything is run."""
    title = f"{job}, to be mapped to lab {lab.name} in {len(several)} ways"
    rows = tuple((one.words, _layout(one), seconds(one.predicted_s), crossing_words(one)) for one in several)
    values = {"mappings": [_planned_values(one) for one in several]}
    blocks = (Table(title, ("mapping", "layout", "predicted>", "crosses the racks"), rows),)
    return Document(kind="mapping", title=title, blocks=blocks, values=values)


COLUMNS = ("predicted>", "measured>", "predicted against measured>", "crosses the racks")


def _row(one: Tried) -> tuple[str, ...]:
    found = one.mapping
    measured = f"{seconds(one.measured_s)} ± {seconds(one.error_s)}"
    return found.words, _layout(found), seconds(found.predicted_s), measured, per_cent(one.off, "+.0f"), crossing_words(found)


def _layout(one: Mapping) -> str:
    return f"{one.layout.degrees}, order {'-'.join(one.layout.order)}"


def crossing_words(one: Mapping) -> str:
    """Which axes cross the racks: `pp`, or `tp (3 of 4 groups)` where only some of its groups do."""
    layout, found = one.layout, []
    for axis, share in one.crossing.items():
        num_groups = layout.num_ranks // getattr(layout, axis)
        if share > 0:
            found.append(axis if share == 1 else f"{axis} ({round(share * num_groups)} of {num_groups} groups)")
    return ", ".join(found) or "nothing"


def headline(ordered: Sequence[Tried]) -> str:
    """What mapping is worth, and whether the forecast had the right order."""
    first, last = ordered[0], ordered[-1]
    times = last.measured_s / first.measured_s
    worth = (
        f"The best mapping is {first.mapping.words} with {seconds(first.measured_s)} a step, the worst {last.mapping.words} with "
        f"{seconds(last.measured_s)}: {times:.1f} times as long for the same work."
    )
    wrong, close = in_measured_order(ordered), [one for one in ordered[:5] if abs(one.off) <= WITHIN]
    order = (
        "Where two mappings differ by more than the noise, the forecast has them in the measured order."
        if not wrong
        else "The forecast has the wrong order of "
        + "; ".join(f"{one.mapping.words} and {other.mapping.words}" for one, other in wrong)
        + ", which differ by more than the noise."
    )
    return f"{worth} {order} Of the {len(ordered[:5])} best, {len(close)} were predicted within {per_cent(WITHIN, '.0f')}."


def explanation(one: Tried) -> str:
    """What crosses, what hides, what shows, by the forecast and by the record of the run."""
    parts = []
    for axis in traffic(one.mapping.forecast):
        crosses = one.mapping.crossing.get(axis.axis, 0.0)
        if crosses > 0:
            share = axis.hidden_s / axis.traffic_s if axis.traffic_s > 0 else 0.0
            hides = f", of which {per_cent(share, '.0f')} hides behind {axis.behind}" if share >= 0.005 else ", and none of it hides"
            parts.append(
                f"{AXIS_WORDS[axis.axis]} sends {si(axis.num_bytes, 'B', 3)} a rank and step across the racks{_some(crosses)}{hides}"
            )
    crossing = "; ".join(parts) if parts else "nothing crosses the racks"
    shown = sorted(((name, value) for name, value in one.parts_s.items() if name != "compute"), key=lambda part: -part[1])[:2]
    shows = " and ".join(f"{PART_NAMES[name]} with {seconds(value)}" for name, value in shown)
    return f"{one.mapping.words}: {crossing}. In the run, compute takes {seconds(one.parts_s['compute'])} of a step; next are {shows}."


def _some(share: float) -> str:
    return "" if share == 1 else f" in {per_cent(share, '.0f')} of its groups"


def notes(ordered: Sequence[Tried]) -> list[str]:
    """What a reader should know about these numbers."""
    found = ["all ranks share the cores of one machine, so compute is as slow as that; the links and the collectives are real"]
    loud = [one for one in ordered if one.others_share > LOUD]
    if loud:
        most = max(one.others_share for one in loud)
        found.append(
            f"other programs used up to {per_cent(most, '.0f')} of the core time during {len(loud)} of the {len(ordered)} runs: "
            "these measured steps are longer than on a quiet machine"
        )
    return found


def _planned_values(one: Mapping) -> dict[str, object]:
    return {
        "name": one.name,
        "what": one.words,
        "text": str(one.layout),
        "places": list(one.slots),
        "predicted_step_s": one.predicted_s,
        "crossing_shares": one.crossing,
        "predicted_parts_s": one.parts_s,
    }


def _values(one: Tried) -> dict[str, object]:
    return {
        **_planned_values(one.mapping),
        "median_step_s": one.measured_s,
        "median_error_s": one.error_s,
        "predicted_off_pct": 100 * one.off,
        "num_steps": one.num_steps,
        "mean_parts_s": dict(one.parts_s),
        "others_share": one.others_share,
        "folder": str(one.run),
    }


def mapping_page(several: Sequence[Tried], lab: Lab, job: str) -> str:
    """The same as a page: for each mapping a bar of its predicted and a bar of its measured step."""
    ordered = sorted(several, key=lambda one: one.measured_s)
    title = f"What mapping is worth: {job}"
    header = tag(
        "header", tag("p", f"lab {lab.name}: {lab.words}", class_="eyebrow"), tag("h1", title), tag("p", headline(ordered), class_="lead")
    )
    words = [tag("p", explanation(one)) for one in ordered]
    sections = [
        section("steps", "Predicted and measured step", _bars(ordered), _legend(ordered)),
        section("numbers", "Numbers", _table(ordered)),
        section("why", "What crosses, what hides, what shows", *words),
        section("notes", "Notes", note_list(notes(ordered))),
    ]
    return document(title, header, sections, tag("footer", tag("p", "made by meshwright lab mapping")))


def _bars(ordered: Sequence[Tried]) -> Html:
    full_s = max(max(one.measured_s + 2 * one.error_s, one.mapping.predicted_s) for one in ordered) * 1.02
    rows: list[tuple[Html | str, ...]] = []
    for one in ordered:
        predicted = one.mapping.parts_s
        rows.append((tag("b", one.mapping.words), "predicted", seconds(one.mapping.predicted_s), _bar(predicted, 1.0, full_s, ())))
        scale = one.measured_s / sum(one.parts_s.values())
        ends = [one.measured_s + sign * 2 * one.error_s for sign in (-1, 1)]
        marks = tuple(mark(end_s / full_s, var("ink")) for end_s in ends)
        rows.append(("", "measured", seconds(one.measured_s), _bar(one.parts_s, scale, full_s, marks)))
    caption = "Seconds of a step by part; thin lines: two standard errors of the measured median"
    return table(("mapping", "", "step>", "parts"), rows, "steps of each mapping", caption=caption, class_="bars side")


def _bar(parts: Parts[str, float], scale: float, full_s: float, marks: tuple[Html, ...]) -> Html:
    at, spans = 0.0, []
    for part in PARTS:
        width = max(parts[part], 0.0) * scale / full_s
        spans.append((at, at + width, part_colour(part)))
        at += width
    return bar([span for span in spans if span[1] > span[0]], *marks)


def _legend(ordered: Sequence[Tried]) -> Html:
    shown: Iterator[str] = (part for part in PARTS if any(one.parts_s[part] > 0 or one.mapping.parts_s[part] > 0 for one in ordered))
    return legend((part_colour(part), PART_NAMES[part]) for part in shown)


def _table(ordered: Sequence[Tried]) -> Html:
    return table(("mapping", "layout", *COLUMNS), map(_row, ordered), "mappings")

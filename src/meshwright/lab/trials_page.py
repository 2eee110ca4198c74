"""What trials of a lab found: documents and a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.lab.description import Lab
from meshwright.lab.trials import Fault, Size
from meshwright.report.page.bars import bar, mark
from meshwright.report.page.colours import var
from meshwright.report.page.markup import Html, table, tag
from meshwright.report.page.shell import document, note_list, section
from meshwright.say.document import Block, Document, Note, Table, Text
from meshwright.units import per_cent, seconds

WITHIN = 0.2  # of the measured step: a simulated one that is closer is good
STAND_IN = (
    "Compute is not real here: each rank waits for the time that the forecast has for everything inside a rack, because the cores of this "
    "machine could not compute for all racks. The network between racks, TCP and gloo's collectives are real."
)
SIZES = ("racks>", "ranks>", "predicted>", "measured>", "predicted against measured>", "efficiency, predicted>", "efficiency, measured>")
FAULTS = (
    "fault",
    "simulated before>",
    "measured before>",
    "simulated after>",
    "measured after>",
    "simulated against measured>",
    "longest step at the fault>",
)


def scaling_document(sizes: Sequence[Size], lab: Lab) -> Document:
    """Each number of racks with its predicted and its measured step."""
    title = f"Weak scaling from 1 to {len(sizes)} racks of lab {lab.name}"
    blocks: list[Block] = [Table(title, SIZES, tuple(_size_row(one, sizes[0]) for one in sizes)), Text(scaling_words(sizes))]
    return Document(
        kind="lab-scaling", title=title, blocks=(*blocks, Note(STAND_IN)), values={"lab_sizes": [_size(one, sizes[0]) for one in sizes]}
    )


def _efficiency(one: Size, first: Size) -> tuple[float, float]:
    return first.forecast.step_s / one.forecast.step_s, first.measured.median_s / one.measured.median_s


def _size_row(one: Size, first: Size) -> tuple[str, ...]:
    predicted, measured = (per_cent(share) for share in _efficiency(one, first))
    step = f"{seconds(one.measured.median_s)} ± {seconds(one.measured.error_s)}"
    return str(one.num_racks), str(one.num_ranks), seconds(one.forecast.step_s), step, per_cent(one.off, "+.0f"), predicted, measured


def noise_floor(sizes: Sequence[Size]) -> float:
    """The largest share by which the two halves of one run differ."""
    return max(one.measured.halves_differ for one in sizes)


def scaling_words(sizes: Sequence[Size]) -> str:
    """What scaling costs, and how far noise reaches."""
    last = sizes[-1]
    predicted, measured = _efficiency(last, sizes[0])
    worst = max(sizes, key=lambda one: abs(one.off))
    return (
        f"On {last.num_racks} racks a step takes {1 / measured:.2f} times as long as on one, as predicted {1 / predicted:.2f} times. "
        f"The forecast is off by {per_cent(worst.off, '+.0f')} at most, with {worst.num_racks} racks. "
        f"The noise floor is {per_cent(noise_floor(sizes))}, the largest difference between the two halves of one run."
    )


def _size(one: Size, first: Size) -> dict[str, object]:
    predicted, measured = _efficiency(one, first)
    return {
        "num_racks": one.num_racks,
        "num_ranks": one.num_ranks,
        "predicted_step_s": one.forecast.step_s,
        "median_step_s": one.measured.median_s,
        "median_error_s": one.measured.error_s,
        "predicted_off_pct": 100 * one.off,
        "predicted_efficiency": predicted,
        "measured_efficiency": measured,
        "halves_differ_pct": 100 * one.measured.halves_differ,
    }


def faults_document(found: Sequence[Fault], lab: Lab) -> Document:
    """Each fault with the steps before and after it."""
    title = f"Faults in the middle of a run on lab {lab.name}"
    blocks: list[Block] = [Table(title, FAULTS, tuple(map(_fault_row, found))), Text(faults_words(found)), Note(STAND_IN)]
    if lab.num_planes == 1:
        blocks.append(Note("this lab has one plane, so none was taken away: make one with --planes 2 --spread"))
    return Document(kind="lab-faults", title=title, blocks=tuple(blocks), values={"lab_faults": [_fault(one) for one in found]})


def _fault_row(one: Fault) -> tuple[str, ...]:
    before, after = one.off
    return (
        one.words,
        seconds(one.simulated_before_s),
        f"{seconds(one.before.median_s)} ± {seconds(one.before.error_s)}",
        seconds(one.simulated_after_s),
        f"{seconds(one.after.median_s)} ± {seconds(one.after.error_s)}",
        f"{per_cent(before, '+.0f')} before, {per_cent(after, '+.0f')} after",
        seconds(one.worst_s),
    )


def faults_words(found: Sequence[Fault]) -> str:
    """Whether the simulator was right, and that all runs went on."""
    good = [one for one in found if max(map(abs, one.off)) <= WITHIN]
    return f"No run ended early. Of {len(found)} faults, {len(good)} were simulated within {per_cent(WITHIN, '.0f')} before and after."


def _fault(one: Fault) -> dict[str, object]:
    return {
        "fault": one.name,
        "what": one.words,
        "simulated_before_s": one.simulated_before_s,
        "median_before_s": one.before.median_s,
        "simulated_after_s": one.simulated_after_s,
        "median_after_s": one.after.median_s,
        "longest_step_s": one.worst_s,
    }


def trial_page(found: Document, lab: Lab) -> str:
    """A document of a trial as a page: bars of the steps, then the numbers and notes."""
    words = [block.text for block in found.blocks if isinstance(block, Text)]
    header = tag(
        "header",
        tag("p", f"lab {lab.name}: {lab.words}", class_="eyebrow"),
        tag("h1", found.title),
        tag("p", " ".join(words), class_="lead"),
    )
    said = "simulated" if "lab_faults" in found.values else "predicted"
    tables = [table(block.columns, block.rows, block.title) for block in found.blocks if isinstance(block, Table)]
    sections = [
        section("steps", f"{said.capitalize()} and measured step", _bars(list(_pairs(found)), said)),
        section("numbers", "Numbers", *tables),
        section("notes", "Notes", note_list([block.text for block in found.blocks if isinstance(block, Note)])),
    ]
    return document(found.title, header, sections, tag("footer", tag("p", "made by meshwright lab")))


def _pairs(found: Document) -> Iterator[tuple[str, float, float]]:
    """What each pair of bars is about, its predicted or simulated step, and its measured one."""
    for size in found.values.get("lab_sizes", ()):
        yield f"{size['num_racks']} rack{'s' if size['num_racks'] > 1 else ''}", size["predicted_step_s"], size["median_step_s"]
    for fault in found.values.get("lab_faults", ()):
        for when in ("before", "after"):
            yield f"{fault['what']}: {when}", fault[f"simulated_{when}_s"], fault[f"median_{when}_s"]


def _bars(pairs: Sequence[tuple[str, float, float]], said: str) -> Html:
    full_s = max(max(predicted_s, measured_s) for _, predicted_s, measured_s in pairs) * 1.02
    rows: list[tuple[Html | str, ...]] = []
    for what, predicted_s, measured_s in pairs:
        ends = (mark(predicted_s / full_s, var("ink")),)
        rows.append((tag("b", what), said, seconds(predicted_s), bar([(0.0, predicted_s / full_s, var("bubble"))])))
        rows.append(("", "measured", seconds(measured_s), bar([(0.0, measured_s / full_s, var("accent"))], *ends)))
    return table(("", "", "step>", "seconds"), rows, "steps", caption=f"Thin lines: the {said} step", class_="bars side")

"""Runs as one self-contained page: one run in full, or several side by side and then one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from meshwright.layout import AXES
from meshwright.record.entries import PART_NAMES, PARTS
from meshwright.report.compare import differences, differing, same_loss, simulated_beside
from meshwright.report.facts import RunFacts
from meshwright.report.noise import METHOD
from meshwright.report.page import run_sections as parts
from meshwright.report.page.colours import part_colour, run_colour, var
from meshwright.report.page.expert_charts import expert_part
from meshwright.report.page.markup import Html, joined, legend, swatch, table, tag
from meshwright.report.page.run_charts import box_table, has_loss, loss_chart, run_legend, spread_chart, stacked
from meshwright.report.page.scaling_chart import scaling_part
from meshwright.report.page.shell import document, note_list, section, write_page
from meshwright.report.scaling import left_out, scalings
from meshwright.report.tables import RUN_COLUMNS, run_rows
from meshwright.units import seconds

MANY = 4  # runs; if there are more, each is folded


def write_run_page(runs: Sequence[RunFacts], path: Path) -> None:
    """Write the page."""
    write_page(path, run_page(runs))


def run_page(runs: Sequence[RunFacts]) -> str:
    """The page as HTML."""
    shown, beside = _main_run(runs)
    if shown is not None:
        sections = (_answer(shown), *_sections(shown, beside, ""))
        return document(f"{shown.label}: report", _header(shown), sections, _footer(runs))
    sections = (*_comparison(runs), *(_folded(facts, number, runs) for number, facts in enumerate(runs, start=1)))
    return document(f"{len(runs)} runs: report", _runs_header(runs), sections, _footer(runs))


def _main_run(runs: Sequence[RunFacts]) -> tuple[RunFacts | None, RunFacts | None]:
    """The run that a page is about, and its simulation; none if several runs are compared."""
    if len(runs) == 1:
        return runs[0], None
    trained = [facts for facts in runs if facts.kind == "measured"]
    beside = simulated_beside(trained[0], runs) if len(trained) == 1 and len(runs) == 2 else None
    return (trained[0], beside) if beside is not None else (None, None)


def _header(facts: RunFacts) -> Html:
    header = facts.run.header
    when = f" on {header.created[:10]}" if header.kind == "trained" else ""
    words = [f"{header.kind}{when}", facts.model, header.machine, facts.ranks_words, f"seed {header.seed}"]
    subtitle = ", ".join(word for word in (*words, header.status.replace("_", " ")) if word)
    eyebrow = tag("p", "meshwright report", class_="eyebrow")
    return tag("header", eyebrow, tag("h1", facts.label), tag("p", subtitle, class_="soft"), _chips(facts), note_list(facts.notes))


def _chips(facts: RunFacts) -> Html:
    if facts.plan is None:
        return Html("")
    layout, workload = facts.plan.layout, facts.plan.workload
    degrees = [(axis, getattr(layout, axis)) for axis in (*AXES, "ep", "etp") if axis in AXES or getattr(layout, axis) > 1]
    axes = (tag("span", f"{axis} {degree}", class_="chip axis", style=f"background:{var(axis)}") for axis, degree in degrees)
    rest = (
        f"{facts.batch:,} samples per step",
        f"{workload.seq_len:,} tokens per sample",
        workload.precision,
        f"micro-batch {layout.micro_batch}",
    )
    return tag("p", axes, (tag("span", words, class_="chip") for words in rest), class_="chips", aria_label="layout")


def _answer(facts: RunFacts) -> Html:
    return section("answer", "The run in numbers", tag("div", parts.run_tiles(facts), class_="tiles"))


def _sections(facts: RunFacts, simulated: RunFacts | None, prefix: str) -> Iterator[Html]:
    yield section(f"{prefix}time", "Where the time went", parts.time_part(facts))
    yield section(f"{prefix}steps", "Step time", parts.step_part(facts))
    compared = "predicted, simulated, measured" if simulated else f"predicted and {facts.kind}"
    yield section(f"{prefix}parts", f"Parts of the step: {compared}", parts.parts_part(facts, simulated))
    yield section(f"{prefix}exposed", "Exposed communication", parts.exposed_part(facts, simulated))
    if has_loss(facts):
        yield section(f"{prefix}loss", "Loss", parts.loss_part(facts))
    experts = expert_part(facts.run.records)
    if experts is not None:
        yield section(f"{prefix}experts", "Experts", experts)
    yield section(f"{prefix}memory", "Memory", parts.memory_part(facts))
    yield section(f"{prefix}ranks", "Slow ranks", parts.ranks_part(facts))
    incidents = parts.incidents_part(facts)
    if incidents is not None:
        yield section(f"{prefix}incidents", "Incidents", incidents)
    yield section(f"{prefix}events", "Events", parts.events_part(facts))
    yield section(f"{prefix}money", "Money, energy, carbon, water", parts.money_part(facts))


def _runs_header(runs: Sequence[RunFacts]) -> Html:
    models = ", ".join(dict.fromkeys(facts.model or "unknown model" for facts in runs))
    eyebrow = tag("p", "meshwright report", class_="eyebrow")
    warnings = [*differing(runs), *(f"{facts.label}: {note}" for facts in runs for note in facts.notes)]
    return tag("header", eyebrow, tag("h1", f"{len(runs)} runs compared"), tag("p", models, class_="soft"), note_list(warnings))


def _comparison(runs: Sequence[RunFacts]) -> Iterator[Html]:
    colours = [run_colour(number) for number in range(len(runs))]
    items = [tag("li", one.text) for one in differences(runs)]
    found = tag("ul", *items) if items else None
    yield section("runs", "Side by side", _runs_table(runs), found)
    series, without = scalings(runs), left_out(runs)
    if series or without:
        drawn = (scaling_part(series), tag("p", f"{METHOD}.", class_="small")) if series else ()
        yield section("scaling", "Scaling", *drawn, note_list(without))
    yield section("times", "Step times", run_legend(runs), _pair(box_table(runs, colours), spread_chart(runs, colours)))
    yield section("parts", "Parts of the step", _parts_of_all(runs))
    if any(has_loss(facts) for facts in runs):
        yield section("losses", "Loss", _losses(runs, colours))


def _pair(left: Html, right: Html) -> Html:
    return tag("div", tag("div", left), tag("div", right), class_="two")


def _losses(runs: Sequence[RunFacts], colours: Sequence[str]) -> Html:
    shown = [(facts, colour) for facts, colour in zip(runs, colours, strict=True) if has_loss(facts)]
    if same_loss([facts for facts, _ in shown]):
        return joined(legend((colour, facts.label) for facts, colour in shown), loss_chart(runs, colours))
    return tag(
        "p", "The losses belong to different models or sequences, so they are not drawn over each other; each run has its own below."
    )


def _runs_table(runs: Sequence[RunFacts]) -> Html:
    rows = [(swatch(run_colour(number), row[0]), *row[1:]) for number, row in enumerate(run_rows(runs))]
    return table(RUN_COLUMNS, rows, "Runs", class_="bars side")


def _parts_of_all(runs: Sequence[RunFacts]) -> Html:
    """The parts of every run's mean step as shares of the step, so that runs of different sizes can be compared."""
    shown = [facts for facts in runs if facts.summary.mean_parts_s]
    if not shown:
        return tag("p", "No run has parts of its steps.", class_="soft")
    rows = []
    for facts in shown:
        total = sum(facts.summary.mean_parts_s.values()) or 1.0
        pieces = [
            (f"{PART_NAMES[part]}: {seconds(value)}, {100 * value / total:.1f} %", part_colour(part), value / total)
            for part, value in facts.summary.mean_parts_s.items()
            if value > 0
        ]
        rows.append((facts.label, pieces, seconds(total)))
    used = [part for part in PARTS if any(facts.summary.mean_parts_s.get(part) for facts in shown)]
    return joined(
        legend((part_colour(part), PART_NAMES[part]) for part in used), stacked(rows, 1.0, "Parts of the step of every run, as shares")
    )


def _folded(facts: RunFacts, number: int, runs: Sequence[RunFacts]) -> Html:
    """One run among several, with all its sections; folded if there are many runs."""
    inside = tag("div", parts.run_tiles(facts), class_="tiles")
    sections = _sections(facts, simulated_beside(facts, runs), f"run{number}-")
    title = tag("summary", facts.label, class_="run-name")
    return tag("details", title, _chips(facts), inside, *sections, class_="run", open_=None if len(runs) > MANY else "open")


def _footer(runs: Sequence[RunFacts]) -> Html:
    made = dict.fromkeys(
        ", ".join(f"{name} {version}" for name, version in sorted(facts.run.header.versions.items()) if version) for facts in runs
    )
    text = f"Made by meshwright from {len(runs)} run folder{'' if len(runs) == 1 else 's'}; recorded with {'; '.join(made)}. {METHOD}."
    return tag("footer", tag("p", text))

"""The documents of a report: one run in full, several runs side by side, or the profiles of processes.

The terminal, Markdown, notebooks and JSON show these documents. The HTML pages also have drawings; their tables have the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.record.entries import PART_NAMES, PARTS
from meshwright.record.profile import Profile
from meshwright.record.run import Run
from meshwright.report.compare import PartTimes, differences, differing, parts_of, simulated_beside, total_s
from meshwright.report.facts import RunFacts, facts_of
from meshwright.report.incidents import INCIDENT_COLUMNS, incident_rows
from meshwright.report.noise import METHOD
from meshwright.report.scaling import KINDS, left_out, scalings
from meshwright.report.tables import (
    NONE,
    PROCESS_COLUMNS,
    RUN_COLUMNS,
    SCALING_COLUMNS,
    STREAM_COLUMNS,
    TIME_COLUMNS,
    Line,
    Row,
    Source,
    amount_rows,
    last_loss,
    or_unknown,
    part_cells,
    process_rows,
    run_rows,
    scaling_row,
    sources_of,
    step_rows,
    stream_row,
    time_formula,
    time_rows,
)
from meshwright.report.values import profile_values, report_values
from meshwright.say.document import Block, Document, Note, Pairs, Table, Text
from meshwright.units import carbon, gib, seconds, water

MAX_EVALUATIONS = 20  # in a table; JSON has all of them


def run_document(run: Run) -> Document:
    """The report of one run, as it was read."""
    return report_document([facts_of(run)])


def report_document(runs: Sequence[RunFacts]) -> Document:
    """The report of one run in full, or of several side by side."""
    if len(runs) == 1:
        header = runs[0].run.header
        title = f"run {runs[0].label}: {header.kind}, {header.status.replace('_', ' ')}"
        blocks = _run(runs[0], title)
    else:
        title = f"{len(runs)} runs compared"
        blocks = _comparison(runs, title)
    return Document(kind="report", title=title, blocks=tuple(blocks), values=report_values(runs))


def _run(facts: RunFacts, title: str) -> Iterator[Block]:
    yield Pairs(title, tuple(_answer(facts)))
    yield Table("where the time went", TIME_COLUMNS, tuple(time_rows(facts)))
    yield Pairs("step time", tuple(step_rows(facts)))
    parts = parts_of(facts)
    if sources := sources_of(parts):
        yield Table("parts of the step", ("part", *(f"{name}>" for name, _ in sources)), tuple(_part_rows(facts, parts, sources)))
    if rows := tuple(incident_rows(facts.run.events)):
        yield Table("incidents", INCIDENT_COLUMNS, rows)
    yield from _evaluations(facts)
    yield from map(Note, facts.notes)
    yield Text(f"{METHOD}.")


def _answer(facts: RunFacts) -> Iterator[Line]:
    header, summary, plan, measured = facts.run.header, facts.summary, facts.plan, facts.measured_memory_bytes
    if plan:
        yield "model", f"{facts.model}, {plan.workload.precision}, {plan.layout.degrees}", ""
    yield "machine", ", ".join(word for word in (header.machine, facts.ranks_words, f"seed {header.seed}") if word), ""
    yield facts.time_name, seconds(facts.time.total_s), time_formula(facts)
    if facts.whole_job:
        yield "whole job", seconds(facts.whole_job.seconds), facts.whole_job.words
    rate = summary.tokens_per_s
    yield "tokens per second", f"{rate:,.0f}" if rate else "unknown", "over the steady steps" if rate else "no sequence length is recorded"
    yield from _loss(facts)
    yield from amount_rows(facts.ledger)
    predicted = f"predicted {gib(plan.peak_memory_bytes)}" if plan else ""
    yield "memory", gib(measured) if measured is not None else "not recorded", predicted
    counts = (f"{count:,} {kind.replace('_', ' ')}" for kind, count in facts.event_counts.items())
    yield "events", ", ".join(counts) or "none", ""


def _part_rows(facts: RunFacts, parts: Sequence[PartTimes], sources: Sequence[Source]) -> Iterator[Row]:
    for row in parts:
        yield PART_NAMES[row.part], *part_cells(row, sources)
    yield "mean step", *(seconds(total_s(parts, key, facts)) for _, key in sources)


def _loss(facts: RunFacts) -> Iterator[Line]:
    loss, target = last_loss(facts), facts.run.header.target
    if loss is not None:
        goal = "" if target is None else f"target {target:g}, {'reached' if facts.reached_target else 'not reached'}"
        yield "loss", f"{loss:.4f}", goal


def _evaluations(facts: RunFacts) -> Iterator[Block]:
    known = [(f"{e.step:,}", f"{e.samples:,}", f"{e.loss:.4f}") for e in facts.evaluations if e.loss is not None]
    if known:
        yield Table("evaluations", ("after step>", "samples>", "loss>"), tuple(known[-MAX_EVALUATIONS:]))
    if len(known) > MAX_EVALUATIONS:
        yield Text(f"These are the last {MAX_EVALUATIONS} of {len(known):,} evaluations; --json prints all of them.")


def _comparison(runs: Sequence[RunFacts], title: str) -> Iterator[Block]:
    yield Table(title, RUN_COLUMNS, tuple(run_rows(runs)))
    yield from (Text(difference.text) for difference in differences(runs))
    yield _times(runs)
    yield from _parts(runs)
    yield Table(
        "carbon, water and memory", ("run", "carbon>", "water on site>", "memory, predicted>", "memory, measured>"), tuple(map(_rest, runs))
    )
    for scaling in scalings(runs):
        yield Table(f"{KINDS[scaling.kind]} ({scaling.of})", SCALING_COLUMNS, tuple(map(scaling_row, scaling.points)))
        yield from (Text(point.text) for point in scaling.points[1:])
    yield from map(Note, (*left_out(runs), *differing(runs), *(f"{facts.label}: {note}" for facts in runs for note in facts.notes)))
    yield Text(f"{METHOD}.")


def _times(runs: Sequence[RunFacts]) -> Table:
    """Where the time of every run went: a column for each kind of time."""
    names = dict.fromkeys(cost.name for facts in runs for cost in facts.time.costs)
    rows = []
    for facts in runs:
        spent = {cost.name: seconds(cost.seconds) for cost in facts.time.costs}
        rows.append((facts.label, seconds(facts.time.total_s), *(spent.get(name, NONE) for name in names)))
    return Table("where the time went", ("run", "total>", *(f"{name}>" for name in names)), tuple(rows))


def _parts(runs: Sequence[RunFacts]) -> Iterator[Table]:
    """The mean step of every run by its parts: a row for each source. A simulation of a trained run is shown beside that run only."""
    beside = {facts.label: simulated_beside(facts, runs) for facts in runs}
    shown = [facts for facts in runs if facts not in beside.values()]
    parts = {facts.label: parts_of(facts, beside[facts.label]) for facts in shown}
    used = [part for part in PARTS if any(row.part == part for rows in parts.values() for row in rows)]
    rows: list[Row] = []
    for facts in shown:
        by_part = {row.part: row for row in parts[facts.label]}
        for name, key in sources_of(parts[facts.label]):
            cells = [part_cells(by_part[part], [(name, key)])[0] if part in by_part else NONE for part in used]
            rows.append((facts.label, name, *cells, seconds(total_s(parts[facts.label], key, facts))))
    if rows:
        yield Table("parts of the step", ("run", "source", *(f"{PART_NAMES[part]}>" for part in used), "mean step>"), tuple(rows))


def _rest(facts: RunFacts) -> Row:
    """Sentences for which the table of the runs has no room."""
    predicted, measured = facts.plan.peak_memory_bytes if facts.plan else None, facts.measured_memory_bytes
    amounts = or_unknown(facts.ledger.carbon_kg, carbon), or_unknown(facts.ledger.water_l, water)
    return facts.label, *amounts, or_unknown(predicted, gib), gib(measured) if measured is not None else "not recorded"


def profile_document(profile: Profile) -> Document:
    """The report of a profile: how much communication of every process is hidden behind compute."""
    title = ", ".join(path.name for path in profile.files)
    return Document(kind="profile", title=title, blocks=tuple(_profile(profile, title)), values=profile_values(profile))


def _profile(profile: Profile, title: str) -> Iterator[Block]:
    yield Table(title, PROCESS_COLUMNS, tuple(process_rows(profile)))
    streams = tuple(stream_row(process, stream) for process in profile.processes for stream in process.streams)
    if streams:
        yield Table("communication by stream", STREAM_COLUMNS, streams)
    yield from map(Note, profile.notes)

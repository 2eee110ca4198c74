"""A report as Markdown, for a pull request or a wiki: the same numbers, as tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from meshwright.record.entries import PART_NAMES
from meshwright.report.compare import differences, differing, parts_of, simulated_beside, total_s
from meshwright.report.facts import RunFacts
from meshwright.report.noise import METHOD
from meshwright.report.page.run_sections import grid, money, step_rows
from meshwright.report.page.shell import kg, litres
from meshwright.report.profile import Profile
from meshwright.report.scaling import KINDS, left_out, scalings
from meshwright.units import energy, gib, seconds

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")
SOURCES = (("predicted", "predicted_s"), ("simulated", "simulated_s"), ("measured", "measured_s"))


def escaped(text: object) -> str:
    """Text that Markdown shows as it is, on one line."""
    return SPECIAL.sub(r"\\\1", str(text).replace("\n", " ")).replace("&", "&amp;")


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield "| " + " | ".join(columns) + " |"
    yield "| " + " | ".join("---" for _ in columns) + " |"
    for row in rows:
        yield "| " + " | ".join(escaped(cell) for cell in row) + " |"
    yield ""


def report_markdown(runs: Sequence[RunFacts]) -> str:
    """The report of one or several runs."""
    lines: list[str] = []
    if len(runs) > 1:
        lines += _comparison(runs)
    for facts in runs:
        lines += _run(facts, simulated_beside(facts, runs))
    return "\n".join([*lines, f"{METHOD}."]) + "\n"


def _comparison(runs: Sequence[RunFacts]) -> Iterator[str]:
    yield f"# {len(runs)} runs compared"
    yield ""
    yield from (f"> {escaped(said)}\n" for said in differing(runs))
    rows = [
        (
            facts.label,
            facts.model or "unknown",
            facts.kind,
            f"{facts.num_ranks:,}",
            seconds(facts.told.median_step_s),
            f"{facts.told.robust_std_pct:.2g} %",
            f"{facts.told.p99_over_p50:.3f}",
            seconds(facts.time.total_s),
            money(facts.ledger),
        )
        for facts in runs
    ]
    yield from _table(("run", "model", "kind", "ranks", "median step", "spread", "p99/p50", "time", "cost"), rows)
    yield from (f"- {escaped(one.said)}" for one in differences(runs))
    yield ""
    for scaling in scalings(runs):
        yield f"## {KINDS[scaling.kind].capitalize()} ({escaped(scaling.of)})"
        yield ""
        points = [(f"{p.num_ranks:,}", f"{p.batch:,}", seconds(p.step_s), f"{100 * p.efficiency:.2f} %", p.said) for p in scaling.points]
        yield from _table(("ranks", "batch", "step", "efficiency", "in words"), points)
    yield from (f"> {escaped(said)}\n" for said in left_out(runs))


def _run(facts: RunFacts, simulated: RunFacts | None) -> Iterator[str]:
    header, ledger, plan = facts.run.header, facts.ledger, facts.plan
    yield f"# {escaped(facts.label)}"
    yield ""
    words = (
        header.kind,
        facts.model,
        header.machine,
        facts.ranks_words,
        f"seed {header.seed}",
        header.status.replace("_", " "),
    )
    yield escaped(", ".join(word for word in words if word))
    yield ""
    yield from (f"> {escaped(note)}\n" for note in facts.notes)
    yield from _table(
        ("time", "", "of"),
        [(c.name, seconds(c.seconds), c.remark) for c in facts.time.costs]
        + [(f"in all: {facts.time_name}", seconds(facts.time.total_s), "")]
        + ([("whole job", seconds(facts.whole_job.seconds), facts.whole_job.words)] if facts.whole_job else []),
    )
    yield from _table(("step time", "", ""), step_rows(facts))
    yield from _parts(facts, simulated)
    yield from _losses(facts)
    memory = facts.measured_memory_bytes
    rows = [
        ("cost", money(ledger), f"{ledger.price}" if ledger.price else "no price is listed"),
        ("energy at the wall", energy(ledger.energy_j) if ledger.energy_j is not None else "unknown", ledger.energy_source),
        ("carbon", kg(ledger.carbon_kg) if ledger.carbon_kg is not None else "unknown", grid(ledger)),
        ("water on site", litres(ledger.water_l) if ledger.water_l is not None else "unknown", ledger.energy.water_of),
        ("memory, predicted", gib(plan.peak_memory_bytes) if plan else "unknown", ""),
        ("memory, measured", gib(memory) if memory is not None else "not recorded", ""),
        *((f"events: {kind.replace('_', ' ')}", f"{count:,}", "") for kind, count in facts.event_counts.items()),
    ]
    yield from _table(("what", "", "how"), rows)


def _parts(facts: RunFacts, simulated: RunFacts | None) -> Iterator[str]:
    parts = parts_of(facts, simulated)
    sources = [(name, key) for name, key in SOURCES if any(getattr(row, key) is not None for row in parts)]
    if sources:
        rows = [
            (PART_NAMES[row.part], *(seconds(value) if (value := getattr(row, key)) is not None else "\u2013" for _, key in sources))
            for row in parts
        ]
        rows.append(("mean step", *(seconds(total_s(parts, key, facts)) for _, key in sources)))
        yield from _table(("part of the step", *(name for name, _ in sources)), rows)


def _losses(facts: RunFacts) -> Iterator[str]:
    rows = [(f"{e.step:,}", f"{e.samples:,}", f"{e.loss:.4f}") for e in facts.evaluations if e.loss is not None]
    if rows:
        target = facts.run.header.target
        yield from _table(("evaluated after step", "samples", "loss" + (f" (target {target:g})" if target is not None else "")), rows)


def profile_markdown(profile: Profile) -> str:
    """The report of a profile."""
    lines = [f"# {escaped(', '.join(path.name for path in profile.files))}", "", *(f"> {escaped(note)}\n" for note in profile.notes)]
    rows = [
        (
            p.label,
            seconds(p.window_s),
            *(f"{p.share_pct(value):.2f} %" for value in (p.compute_s, p.exposed_s, p.memory_s, p.idle_s)),
            seconds(p.communication_s),
            f"{p.overlap_pct:.2f} %" if p.overlap_pct is not None else "\u2013",
        )
        for p in profile.processes
    ]
    lines += _table(("process", "window", "compute", "exposed", "copies", "idle", "communication", "hidden"), rows)
    streams = [
        (p.label, s.stream, f"{s.num_events:,}", seconds(s.communication_s), seconds(s.exposed_s))
        for p in profile.processes
        for s in p.streams
    ]
    if streams:
        lines += _table(("process", "stream", "events", "communication", "exposed"), streams)
    return "\n".join(lines) + "\n"

"""What `meshwright report` prints beside the page: the main numbers as tables, or all of them as JSON or Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from meshwright.cli.show import show_json, show_pairs, show_table, show_text
from meshwright.errors import printable
from meshwright.record.entries import PART_NAMES
from meshwright.report.compare import APART, differences, differing, parts_of, simulated_beside, total_s
from meshwright.report.facts import RunFacts, facts_of_runs
from meshwright.report.markdown import profile_markdown, report_markdown
from meshwright.report.page.run_page import write_run_page
from meshwright.report.page.run_sections import SOURCES, grid, money
from meshwright.report.page.shell import kg
from meshwright.report.page.trace_page import write_trace_page
from meshwright.report.profile import Profile, profile_of
from meshwright.report.scaling import KINDS, left_out, scalings
from meshwright.report.values import profile_values, report_values
from meshwright.units import energy, seconds


def show_runs(folders: Sequence[Path], page: Path | None, form: str) -> None:
    """Write the page of runs where one is wanted, and print them as tables, JSON or Markdown."""
    runs = facts_of_runs(folders)
    if page:
        write_run_page(runs, page)
    if form == "json":
        show_json(report_values(runs))
    elif form == "markdown":
        print(printable(report_markdown(runs)), end="")
    else:
        _tables(runs)
        print(printable(f"page: {page}"))


def show_profile(files: Sequence[Path], page: Path | None, form: str) -> None:
    """The same for profiles."""
    profile = profile_of(tuple(files))
    if page:
        write_trace_page(profile, page)
    if form == "json":
        show_json(profile_values(profile))
    elif form == "markdown":
        print(printable(profile_markdown(profile)), end="")
    else:
        _profile_tables(profile)
        print(printable(f"page: {page}"))


def _tables(runs: Sequence[RunFacts]) -> None:
    if len(runs) == 1:
        _one(runs[0])
    else:
        _several(runs)


def _one(facts: RunFacts) -> None:
    header, told, ledger = facts.run.header, facts.told, facts.ledger
    spread = f"{seconds(told.median_step_s)}, spread {told.robust_std_pct:.2g} %, p99/p50 {told.p99_over_p50:.3f}, "
    pairs = [
        (facts.time_name, f"{seconds(facts.time.total_s)} = {facts.time.costs[0].remark} + {seconds(facts.time.fixed_s)}"),
        *(((("whole job", f"{seconds(facts.whole_job.seconds)} {facts.whole_job.words}"),)) if facts.whole_job else ()),
        ("median step", f"{spread}worst {seconds(told.worst_step_s)}, drift {told.drift_pct:+.2f} %"),
        ("speed", f"{told.tokens_per_s:,.0f} tokens/s over the steady steps" if told.tokens_per_s else "unknown"),
        ("noise floor", f"{facts.noise.floor_pct:.2g} % within the run; {APART}" if facts.noise else "unknown: too few steady steps"),
        ("cost", f"{money(ledger)}, {ledger.price}" if ledger.price else "no price is listed"),
        ("energy", f"{energy(ledger.energy_j)}, {ledger.energy_source}" if ledger.energy_j is not None else "unknown"),
        ("carbon", f"{kg(ledger.carbon_kg)}, {grid(ledger)}" if ledger.carbon_kg is not None else "unknown"),
        *(("note", note) for note in facts.notes),
    ]
    show_pairs(f"run {facts.label}: {header.kind}, {header.status.replace('_', ' ')}", pairs)
    _parts(facts, None)


def _parts(facts: RunFacts, simulated: RunFacts | None) -> None:
    parts = parts_of(facts, simulated)
    sources = [(name, key) for name, key in SOURCES if any(getattr(row, key) is not None for row in parts)]
    if sources:
        rows = [
            (PART_NAMES[row.part], *(seconds(value) if (value := getattr(row, key)) is not None else "-" for _, key in sources))
            for row in parts
        ]
        rows.append(("mean step", *(seconds(total_s(parts, key, facts)) for _, key in sources)))
        show_table("parts of the step", ("part", *(f"{name}>" for name, _ in sources)), rows)


def _several(runs: Sequence[RunFacts]) -> None:
    rows = [
        (
            facts.label,
            facts.model or "unknown",
            facts.kind,
            f"{facts.num_ranks:,}",
            seconds(facts.told.median_step_s),
            f"{facts.told.robust_std_pct:.2g}",
            f"{facts.told.p99_over_p50:.3f}",
            seconds(facts.time.total_s),
            money(facts.ledger),
        )
        for facts in runs
    ]
    show_table("runs", ("run", "model", "kind", "ranks>", "median step>", "spread %>", "p99/p50>", "time>", "cost>"), rows)
    for facts in runs:
        if beside := simulated_beside(facts, runs):
            _parts(facts, beside)
    for scaling in scalings(runs):
        points = [(f"{p.num_ranks:,}", seconds(p.step_s), f"{100 * p.efficiency:.2f}", p.said) for p in scaling.points]
        show_table(f"{KINDS[scaling.kind]} ({scaling.of})", ("ranks>", "step>", "efficiency %>", "in words"), points)
    notes = [
        *left_out(runs),
        *(one.said for one in differences(runs)),
        *differing(runs),
        *(f"{f.label}: {note}" for f in runs for note in f.notes),
    ]
    for said in notes:
        show_text(said)


def _profile_tables(profile: Profile) -> None:
    rows = [
        (
            p.label,
            seconds(p.window_s),
            *(f"{p.share_pct(value):.2f}" for value in (p.compute_s, p.exposed_s, p.memory_s, p.idle_s)),
            seconds(p.communication_s),
            f"{p.overlap_pct:.2f}" if p.overlap_pct is not None else "-",
        )
        for p in profile.processes
    ]
    columns = ("process", "window>", "compute %>", "exposed %>", "copies %>", "idle %>", "communication>", "hidden %>")
    show_table("profile", columns, rows)
    streams = [
        (p.label, s.stream, f"{s.num_events:,}", seconds(s.communication_s), seconds(s.exposed_s))
        for p in profile.processes
        for s in p.streams
    ]
    if streams:
        show_table("communication by stream", ("process", "stream", "events>", "communication>", "exposed>"), streams)
    for note in profile.notes:
        show_text(note)

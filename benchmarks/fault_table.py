"""The tables of benchmarks/faults.py, in Markdown: faults by kind, by phase and by layout."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

HEAD = ("struck", "noticed after (s): median, worst", "next step after (s): median, worst", "steps lost: mean, most", "from disk")


def tables(outcomes: Sequence[Mapping[str, Any]]) -> str:
    """All tables, and one line about all runs; runs that failed are listed."""
    rows = [(one, fault) for one in outcomes for fault in one["faults"]]
    by = {"fault": lambda one, fault: fault["kind"], "phase": lambda one, fault: fault["phase"], "layout": lambda one, fault: one["layout"]}
    parts = []
    for name, key in by.items():
        groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for one, fault in rows:
            groups[key(one, fault)].append(fault)
        parts.append(_table(name, {**dict(sorted(groups.items())), "all": [fault for _, fault in rows]}))
    failed = [one for one in outcomes if one["problem"]]
    listed = [f"- seed {one['seed']}, run {one['number']} ({one['layout']}): {one['problem'][:300]}" for one in failed]
    return "\n\n".join([*parts, _whole(outcomes, len(rows), len(failed)), *listed])


def _whole(outcomes: Sequence[Mapping[str, Any]], num_faults: int, num_failed: int) -> str:
    run_s, work_s = (sum(one["ettr"][name] for one in outcomes) for name in ("run_s", "work_s"))
    share = work_s / run_s if run_s else 0.0
    every_s = run_s / num_faults if num_faults else 0.0
    return (
        f"{len(outcomes)} runs, {num_faults} faults struck, {num_failed} runs failed; "
        f"a fault every {every_s:.1f} s, and {share:.1%} of the runs' time was work that counts"
    )


def _table(name: str, groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    lines = [f"| {name} | {' | '.join(HEAD)} |", f"| --- |{' ---: |' * len(HEAD)}"]
    for group, found in groups.items():
        timed = [one for one in found if "recovered_s" in one]
        lost = [one["lost_steps"] for one in timed]
        mean = f"{statistics.mean(lost):.2f}, {max(lost)}" if lost else "-"
        disk = sum(one["how"] == "restarted" for one in timed)
        cells = (len(found), _spread(timed, "noticed_s"), _spread(timed, "recovered_s"), mean, disk)
        lines.append(f"| {group} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _spread(found: Sequence[Mapping[str, Any]], name: str) -> str:
    values = sorted(one[name] for one in found)
    return f"{statistics.median(values):.2f}, {values[-1]:.2f}" if values else "-"

"""Runs as metrics for Prometheus: the text exposition format, version 0.0.4."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# name, help text, which of a run's facts
GAUGES = (
    ("meshwright_run_step", "Steps done.", "step"),
    ("meshwright_run_expected_steps", "Steps the run takes, by what ends it first.", "num_steps"),
    ("meshwright_run_samples", "Sequences trained on.", "samples"),
    ("meshwright_run_loss", "Loss of the newest step.", "loss"),
    ("meshwright_run_evaluation_loss", "Loss of the newest evaluation.", "evaluation"),
    (
        "meshwright_run_step_time_seconds",
        "Median of the steady steps: of the last 200 steps, or of all once the run has ended.",
        "step_s",
    ),
    ("meshwright_run_tokens_per_second", "Tokens of the same steps over their time.", "tokens_per_s"),
    ("meshwright_run_busy_seconds", "Time of steps, evaluations and stalls so far.", "busy_s"),
    ("meshwright_run_left_seconds", "Time to the expected end at the present pace.", "left_s"),
    ("meshwright_run_progress_ratio", "Steps done of those expected; 1 for a run that reached its target.", "progress"),
    ("meshwright_run_cost_usd", "Money spent so far.", "usd"),
    ("meshwright_run_ranks", "Ranks of the run.", "num_ranks"),
    ("meshwright_run_slow_ranks", "Ranks that are slow now.", "num_slow"),
    ("meshwright_run_slow_links", "Exchanges that are slow now, because of a link.", "num_slow_links"),
    ("meshwright_run_damaged_lines", "Lines of the run's files that cannot be read.", "num_damaged"),
    ("meshwright_run_quiet_seconds", "Time since the run's folder was last written to.", "quiet_s"),
)


def exposition(rows: Iterable[Mapping[str, Any]]) -> str:
    """The facts of all runs as metrics, one line each; an unknown fact has no line."""
    rows = list(rows)
    lines = [*_family("meshwright_runs", "Runs by status.", _by_status(rows))]
    info = (({"run": row["name"], **{key: row.get(key) or "" for key in ("status", "kind", "model", "cluster")}}, 1.0) for row in rows)
    lines += _family("meshwright_run_info", "What a run is; always 1.", info)
    for name, meaning, key in GAUGES:
        known = (({"run": row["name"]}, float(row[key])) for row in rows if isinstance(row.get(key), int | float))
        lines += _family(name, meaning, known)
    return "\n".join(lines) + "\n"


def _by_status(rows: Iterable[Mapping[str, Any]]) -> list[tuple[dict[str, str], float]]:
    return [({"status": status}, float(number)) for status, number in sorted(Counter(str(row["status"]) for row in rows).items())]


def _family(name: str, meaning: str, samples: Iterable[tuple[Mapping[str, Any], float]]) -> list[str]:
    lines = [f"{name}{{{_labels(labels)}}} {_number(value)}" for labels, value in samples]
    return [f"# HELP {name} {meaning}", f"# TYPE {name} gauge", *lines] if lines else []


def _labels(labels: Mapping[str, Any]) -> str:
    return ",".join(f'{key}="{_escaped(str(value))}"' for key, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n").replace("\r", r"\r")


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN")

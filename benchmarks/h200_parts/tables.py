"""Markdown tables of what was measured: a figure that is missing is a dash, and a ratio needs both of its sides from the same call."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from h200_parts.kinds import KINDS

Row = Mapping[str, Any]
MISSING = "-"
TEXT_ORDER: dict[str, tuple[str | None, float | None]] = {  # precision -> what it is held against, and how near
    "fp32": (None, None),
    "bf16": ("fp32", 0.005),
    "fp8-current": ("bf16", 0.01),
}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float | None, form: str = ",.0f", unit: str = "") -> str:
    """A figure, or a dash."""
    return MISSING if value is None else f"{value:{form}}{unit}"


def gib(num_bytes: float | None) -> str:
    """Bytes in GiB."""
    return number(None if not num_bytes else num_bytes / 2**30, ".2f")


def joined(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Several rounds of one trainer on one case as one: medians of the rounds; of peaks and scatter the largest."""
    rounds = [row for row in rows if "mean_s" in row]
    if not rounds:
        return None
    energies = [row["joules_per_token"] for row in rounds if row.get("joules_per_token") is not None]
    return {
        "tokens_per_s": statistics.median(row["tokens_per_s"] for row in rounds),
        "mean_s": statistics.median(row["mean_s"] for row in rounds),
        "cv": max(row["cv"] for row in rounds),
        "peak_bytes": max(row["peak_bytes"] for row in rounds),
        "joules_per_token": statistics.mean(energies) if energies else None,
        "num_parameters": rounds[0].get("num_parameters"),
        "num_rounds": len(rounds),
        "recompute": rounds[0].get("recompute"),  # where it was a trainer's own choice
    }


def speed_table(content: Row) -> str:
    """Both trainers, case by case."""
    head = [
        "case",
        "trainer",
        "tokens/s",
        "step ms",
        "scatter",
        "peak GiB",
        "J/token",
        "against torchtitan",
        "peak against it",
        "of the floor",
    ]
    lines, warnings = [], []
    for name, words in _cases(content, "speed"):
        rows = [row for row in content.get("speed", ()) if row["case"] == name]
        ours, theirs = (joined([row for row in rows if row["who"] == who]) for who in ("ours", "titan"))
        floor = next((row["tokens_per_s"] for row in content.get("floor", ()) if row["case"] == name and "tokens_per_s" in row), None)
        refused = next((row["refused"] for row in rows if "refused" in row), None)
        if refused:
            warnings.append(f"{words}: not run: {refused}.")
        for who, found in (("meshwright", ours), ("torchtitan 0.2.2", theirs)):
            if found:
                setting = "" if found["recompute"] in (None, "none") else f", {found['recompute']} recompute"
                lines.append(_speed_line(words, who + setting, found, theirs if who == "meshwright" else None, floor))
        if ours and theirs and ours["num_parameters"] != theirs["num_parameters"]:
            warnings.append(f"{words}: the models differ: {ours['num_parameters']:,} and {theirs['num_parameters']:,} parameters.")
        if ours and not theirs:
            warnings.append(f"{words}: no ratio: torchtitan was not measured in this call.")
    return "\n".join([table(head, lines), *([""] if warnings else []), *warnings])


def _speed_line(words: str, who: str, found: Row, peer: Row | None, floor: float | None) -> list[str]:
    return [
        words,
        who,
        number(found["tokens_per_s"]),
        number(1e3 * found["mean_s"], ".1f"),
        number(100 * found["cv"], ".2f", " %"),
        gib(found["peak_bytes"]),
        number(found["joules_per_token"], ".4f"),
        number(found["tokens_per_s"] / peer["tokens_per_s"] if peer else None, ".3f", "x"),
        number(found["peak_bytes"] / peer["peak_bytes"] if peer and peer["peak_bytes"] else None, ".3f", "x"),
        number(100 * found["tokens_per_s"] / floor if floor else None, ".1f", " %"),
    ]


def floor_table(content: Row) -> str:
    """What each case cannot be faster than, in microseconds a token by part."""
    parts = ("GEMM", "attention", "optimizer", "elementwise")
    head = ["case", *(f"{part} us/token" for part in parts), "sum us/token", "tokens/s", "copy TB/s", "attention kernel"]
    lines = []
    for row in content.get("floor", ()):
        if "parts_s" in row:
            each = [number(1e6 * row["parts_s"][part] / row["num_tokens"], ".2f") for part in parts]
            last = [number(row["us_per_token"], ".2f"), number(row["tokens_per_s"]), number(row["copy_bytes_per_s"] / 1e12, ".2f")]
            lines.append([row["words"], *each, *last, row["attention_s"]["kernel"]])
    return table(head, lines)


def profile_table(content: Row) -> str:
    """Shares of a step by kind of work; and kernels that nothing here knows."""
    head = ["case", "trainer", "step ms", "traced step ms", *KINDS]
    lines, unknown = [], []
    for row in (*content.get("profile", ()), *content.get("speed", ())):
        if "profile" in row:
            found = row["profile"]
            each = [
                100 * found["by_kind_s"][kind] / found["traced_s"] if found["traced_s"] else None for kind in KINDS
            ]  # None: no kernel ran
            shares = [number(share, ".1f", " %") for share in each]
            took = [number(1e3 * found[key], ".1f") for key in ("step_s", "traced_s")]
            lines.append([row["words"], row["trainer"], *took, *shares])
            unknown += _unknown(row, found)
    notes = ["", "Kernels of no known kind (in `other`):", *unknown] if unknown else ["", "Every kernel is of a known kind."]
    return "\n".join([table(head, lines), *(notes if lines else [])])


def _unknown(row: Row, found: Row) -> list[str]:
    """Kernels of no known kind, one by one down to a two-thousandth of the step, and the rest in sum."""
    whose = f"- {row['trainer']}, {row['words']}"
    large = [one for one in found["unknown"] if one[0] >= found["traced_s"] / 2000]
    small = [one for one in found["unknown"] if one[0] < found["traced_s"] / 2000]
    notes = [f"{whose}: {1e3 * took_s:.2f} ms in {count} of `{name}`" for took_s, count, _, name in large]
    rest = f"{whose}: {1e3 * sum(one[0] for one in small):.2f} ms in {sum(one[1] for one in small)} kernels of {len(small)} other names"
    return [*notes, *([rest] if small else [])]


def choices_table(content: Row) -> str:
    """What the best way of each part of a layer and of the head changes in a step, and all of them together."""
    lines = []
    for each in content.get("choices", ()):
        for row in each["rows"]:
            if "change" in row:
                found = [MISSING, MISSING, f"{100 * row['change']:+.2f} ± {100 * row['spread']:.2f} %"]
            else:
                change = row["changes_s"].get(row["best"], 0.0) / row["unit_s"]
                found = [str(1 + len(row["changes_s"])), row["best"], f"{100 * change:+.2f} %"]
            lines.append([each["words"], row["unit"], row["part"], *found, number(1e3 * row["count"] * row["unit_s"], ".1f")])
    return table(["case", "unit", "part", "ways", "best way", "unit's time against torch's", "unit by torch, ms a step"], lines)


def steady_table(content: Row) -> str:
    """Scatter, growth and the cost of records over a long run."""
    lines = []
    for row in content.get("steady", ()):
        if "cv" in row:
            lines.append(
                [
                    row["words"],
                    f"{row['num_steps']} after {row['num_warmup']}",
                    number(100 * row["cv"], ".3f", " %"),
                    number(100 * row["drift"], "+.2f", " %"),
                    f"{gib(row['early_bytes'])} to {gib(row['late_bytes'])}",
                    f"{gib(row['early_peak_bytes'])} to {gib(row['late_peak_bytes'])}",
                    number(1e6 * row["recording_s"], ".0f"),
                    number(100 * row["recording_share"], ".3f", " %"),
                    f"{100 * (row['on_s'] / row['off_s'] - 1):+.2f} ± {100 * row['turns_error']:.2f} %",
                    number(row.get("energy_j"), ".0f"),
                ]
            )
    head = ["case", "steps after warm-up", "scatter", "drift over them", "GiB held, early to late", "peak GiB, early to late"]
    return table(
        [*head, "records us a step", "records of a step", "loop with records against without, in turns", "metered J a step"], lines
    )


def loss_table(content: Row) -> str:
    """Losses on real text by precision, and whether they keep together."""
    found = [row for row in content.get("loss", ()) if "losses" in row]
    plain = {row["precision"]: row for row in found if not row["is_moved"]}
    lines = []
    for row in sorted(found, key=lambda row: (row["is_moved"], list(TEXT_ORDER).index(row["precision"]))):
        precision, is_moved = row["precision"], row["is_moved"]
        reference, bound = (precision, None) if is_moved else TEXT_ORDER[precision]
        base = plain.get(reference) if reference else None
        apart, most = _difference(row, base) if base else (None, None)
        verdict = "by chance" if is_moved else MISSING
        if bound is not None:
            verdict = "not judged: no reference" if apart is None else f"{'pass' if abs(apart) <= bound else 'FAIL'} (bound {bound:.1%})"
        lines.append(
            [
                f"{precision}, first weights rounded to bf16" if is_moved else precision,
                number(row["losses"][0], ".4f"),
                number(row["last_mean"], ".4f"),
                MISSING if base is None else base["precision"],
                number(None if apart is None else 100 * apart, "+.3f", " %"),
                number(None if most is None else 100 * most, ".3f", " %"),
                verdict,
            ]
        )
    head = [
        "precision",
        "first loss",
        "mean of the last 50",
        "against",
        "difference of the means",
        "largest difference of a step",
        "verdict",
    ]
    refused = [f"{row['precision']}: not run: {row['refused']}." for row in content.get("loss", ()) if "refused" in row]
    return "\n".join([table(head, lines), *([""] if refused else []), *refused])


def _difference(row: Row, base: Row) -> tuple[float, float]:
    """Of the last means, and the largest of any step, relative."""
    each = [abs(a - b) / b for a, b in zip(row["losses"], base["losses"], strict=False)]
    return row["last_mean"] / base["last_mean"] - 1, max(each)


def checks_table(content: Row) -> str:
    """Gradients against float64, and compiled layers against plain ones."""
    lines = [
        [
            row["what"],
            row["against"],
            number(row["error"], ".2e"),
            number(row["bound"], ".2e"),
            "pass" if row["error"] <= row["bound"] else "FAIL",
        ]
        for row in sorted(content.get("checks", ()), key=lambda row: row["what"].startswith("compiled"))
        if "error" in row
    ]
    lines += [[row["what"], "it broke: " + row["broke"], MISSING, MISSING, "FAIL"] for row in content.get("checks", ()) if "broke" in row]
    skipped = [f"{row['what']}: not checked: {row['skipped']}." for row in content.get("checks", ()) if "skipped" in row]
    skipped += [f"{row['what']}: {row['timed']}." for row in content.get("checks", ()) if "timed" in row]
    return "\n".join([table(["what", "against", "relative error", "bound", "verdict"], lines), *([""] if skipped else []), *skipped])


def predict_table(content: Row) -> str:
    """Predicted and measured steps and peaks; of several settings of a case, the one that was run."""
    measured = {row["case"]: row for row in content.get("measured", ()) if "mean_s" in row}
    predicted = [row for row in content.get("predicted", ()) if _is_setting_of(row, measured.get(row["case"]))]
    lines, errors, memory_errors = [], [], []
    for row in (row for row in predicted if "step_s" in row):
        found = measured.get(row["case"])
        step_error = row["step_s"] / found["mean_s"] - 1 if found else None
        peak_error = row["peak_bytes"] / found["peak_bytes"] - 1 if found and found["peak_bytes"] else None
        errors += [] if step_error is None else [abs(step_error)]
        memory_errors += [] if peak_error is None else [abs(peak_error)]
        lines.append(
            [
                row["words"],
                number(1e3 * row["step_s"], ".1f"),
                number(1e3 * found["mean_s"] if found else None, ".1f"),
                number(100 * step_error if step_error is not None else None, "+.1f", " %"),
                gib(row["peak_bytes"]),
                gib(found["peak_bytes"] if found else None),
                number(100 * peak_error if peak_error is not None else None, "+.1f", " %"),
            ]
        )
    head = ["case", "predicted ms", "measured ms", "error", "predicted peak GiB", "measured peak GiB", "error"]
    notes = [
        f"{what}: mean {100 * statistics.mean(e):.1f} %, worst {100 * max(e):.1f} %, {len(e)} cases."
        for what, e in (("Step", errors), ("Peak", memory_errors))
        if e
    ]
    notes += [f"{row['words']}: not predicted: {row['refused']}." for row in predicted if "refused" in row]
    return "\n".join([table(head, lines), *([""] if notes else []), *notes])


def _is_setting_of(predicted: Row, measured: Row | None) -> bool:
    """Whether a forecast is of what was run: a case that has several settings says which of them it was."""
    ran = measured.get("recompute") if measured else None
    return ran is None or predicted.get("recompute") in (None, ran)


def _cases(content: Row, kind: str) -> list[tuple[str, str]]:
    """Names and words of the cases with results, in the order they came."""
    return list(dict.fromkeys((row["case"], row["words"]) for row in content.get(kind, ())))

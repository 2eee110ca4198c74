"""Markdown tables of what was measured: a figure that is missing is a dash, and a ratio needs both of its sides from the same call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from h200_parts.tables import gib, number, table

Row = Mapping[str, Any]


def speed_table(content: Row) -> str:
    """Every trainer on every case, with ratios, the share of the floor, and the forecast of ours."""
    head = ["case", "trainer", "tokens/s", "step ms", "scatter", "peak GiB", "against TRL + PEFT", "peak against it", "of the floor"]
    head += ["against Unsloth", "last loss"]
    head += ["forecast ms", "error", "forecast peak GiB", "error"]
    lines, notes = [], []
    for row in content.get("speed", ()):
        if "refused" in row:
            notes.append(f"{row['words']}: not run: {row['refused']}.")
            continue
        is_ours = row["who"] == "ours"
        peer = _best_peer(content, row["case"]) if is_ours else None
        other = _best_peer(content, row["case"], "unsloth") if is_ours else None
        floor = _only(content, "floor", row["case"])
        said = _only(content, "forecast", row["case"]) if is_ours else None
        lines.append([row["words"], row["trainer"], *_figures(row, peer, floor), *_last(row, other), *_forecast(row, said)])
        if is_ours and said and "refused" in said:
            notes.append(f"{row['words']}: no forecast: {said['refused']}.")
    return "\n".join([table(head, lines), "", *notes])


def _last(row: Row, other: Row | None) -> list[str]:
    loss = row.get("last_loss")
    return [number(row["tokens_per_s"] / other["tokens_per_s"] if other else None, ".3f", "x"), number(loss, ".3f")]


def kernel_table(content: Row) -> str:
    """Whether the kernels of few bits, and the products that use them, were right; nothing where they were not asked for."""
    found = [row for kept in content.get("kernels", ()) for row in kept["rows"]]
    lines = [[row["what"], "right" if row["is_right"] else "WRONG", number(row["worst"], ".1e")] for row in found]
    where = "" if all(kept["has_kernels"] for kept in content.get("kernels", ())) else "\n\nThere are no kernels here: plain operations."
    return table(["checked", "result", "worst difference"], lines) + where if lines else ""


def _best_peer(content: Row, case: str, who: str = "trl_peft") -> Row | None:
    rows = [row for row in content.get("speed", ()) if row["case"] == case and row["who"] == who and "tokens_per_s" in row]
    return max(rows, key=lambda row: row["tokens_per_s"], default=None)


def _only(content: Row, kind: str, case: str) -> Row | None:
    return next((row for row in content.get(kind, ()) if row["case"] == case), None)


def _figures(row: Row, peer: Row | None, floor: Row | None) -> list[str]:
    has_peaks = peer is not None and peer["peak_bytes"]
    return [
        number(row["tokens_per_s"]),
        number(1e3 * row["mean_s"], ".1f"),
        number(100 * row["cv"], ".2f", " %"),
        gib(row["peak_bytes"]),
        number(row["tokens_per_s"] / peer["tokens_per_s"] if peer else None, ".3f", "x"),
        number(row["peak_bytes"] / peer["peak_bytes"] if peer and has_peaks else None, ".3f", "x"),
        number(100 * row["tokens_per_s"] / floor["tokens_per_s"] if floor else None, ".1f", " %"),
    ]


def _forecast(row: Row, said: Row | None) -> list[str]:
    if said is None or "refused" in said:
        return [number(None)] * 4
    peak = row["peak_bytes"]
    return [
        number(1e3 * said["step_s"], ".1f"),
        number(100 * (said["step_s"] / row["mean_s"] - 1), "+.1f", " %"),
        gib(said["peak_bytes"]),
        number(100 * (said["peak_bytes"] / peak - 1) if peak else None, "+.1f", " %"),
    ]


def floor_table(content: Row) -> str:
    """What each case cannot be faster than, by part."""
    parts = ("GEMM", "attention", "adapters", "bytes")
    head = ["floor of", *(f"{part} ms" for part in parts), "sum ms", "tokens/s", "copy TB/s", "attention by"]
    lines = [
        [
            row["words"],
            *(number(1e3 * row["parts_s"][part], ".1f") for part in parts),
            number(1e3 * row["floor_s"], ".1f"),
            number(row["tokens_per_s"]),
            number(row["copy_bytes_per_s"] / 1e12, ".2f"),
            row["kernel"],
        ]
        for row in content.get("floor", ())
    ]
    return table(head, lines)

"""The page of simulated against logged step times: for each log, both distributions as curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from meshwright.mllog import StepTimes
from meshwright.plan.plan import write_whole
from meshwright.report.page.markup import Html, joined, svg, table, tag
from meshwright.simulate.noise_fit import Checked

WIDTH, HEIGHT, EDGE = 300.0, 150.0, 26.0
LOGGED, SIMULATED = "#c2410c", "#1d4ed8"
PERCENTILES = np.linspace(1, 99, 99)
STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:1020px;margin:2rem auto;padding:0 1rem;color:#1c1917;background:#fff}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(300px,1fr));gap:1rem}figure{margin:0}figcaption{font-size:12px}
table{border-collapse:collapse;font-size:13px}td,th{padding:.15rem .6rem;text-align:right}td:first-child,th:first-child{text-align:left}
@media(prefers-color-scheme:dark){body{color:#e7e5e4;background:#1c1917}}"""


def write_page(path: Path, checked: Sequence[Checked]) -> None:
    """Write the page as one HTML file."""
    write_whole(path, page(checked))


def page(checked: Sequence[Checked]) -> str:
    """The page: a drawing for each log, and a table with the same numbers."""
    drawings = tag("div", (_figure(one) for one in checked), class_="grid")
    body = joined(
        tag("h1", "Simulated against logged step times"),
        tag(
            "p",
            "Share of steady steps (upwards) that are no longer than so many per cent beyond the log's median (across). ",
            tag("span", "logged", style=f"color:{LOGGED}"),
            ", ",
            tag("span", "simulated", style=f"color:{SIMULATED}"),
            ", the latter with constants fitted without that log.",
        ),
        drawings,
        tag("h2", "In numbers"),
        _table(checked),
    )
    head = joined(tag("meta", charset="utf-8"), tag("title", "Simulated against logged step times"), tag("style", Html(STYLE)))
    return f"<!doctype html>\n{tag('html', tag('head', head), tag('body', body), lang='en')}\n"


def _figure(one: Checked) -> Html:
    middle_s = one.log.times.median_s
    curves = [(_beyond(one.log.times, middle_s), LOGGED), *((_beyond(times, middle_s), SIMULATED) for times in one.simulated)]
    low, high = min(float(curve.min()) for curve, _ in curves), max(float(np.percentile(curve, 97)) for curve, _ in curves)
    low, high = low - 0.1, max(high, low + 0.2) + 0.1
    caption = f"{one.log.name[:52]}: median {one.median_error:+.2%}, spread x{one.spread_ratio:.2f}"
    axis = tag("line", x1=EDGE, x2=WIDTH - 6, y1=HEIGHT - EDGE, y2=HEIGHT - EDGE, stroke="currentColor")
    drawn = svg(WIDTH, HEIGHT, caption, axis, _marks(low, high), (_curve(curve, colour, low, high) for curve, colour in curves))
    return tag("figure", drawn, tag("figcaption", caption))


def _beyond(times: StepTimes, middle_s: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Percentiles of the steady steps, in per cent beyond the log's median."""
    return np.asarray(100 * (np.percentile(times.steady_s, PERCENTILES) / middle_s - 1))


def _x(value: float, low: float, high: float) -> float:
    return EDGE + (min(value, high) - low) / (high - low) * (WIDTH - EDGE - 6)


def _curve(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], colour: str, low: float, high: float) -> Html:
    points = " ".join(
        f"{_x(value, low, high):.1f},{HEIGHT - EDGE - share / 100 * (HEIGHT - EDGE - 8):.1f}"
        for value, share in zip(values.tolist(), PERCENTILES.tolist(), strict=True)
    )
    return tag("polyline", points=points, fill="none", stroke=colour, stroke_width=1.6 if colour == LOGGED else 1.0)


def _marks(low: float, high: float) -> Html:
    values = (low, (low + high) / 2, high)
    return joined(
        tag("text", f"{value:+.1f} %", x=_x(value, low, high), y=HEIGHT - 8, font_size=10, text_anchor=anchor, fill="currentColor")
        for value, anchor in zip(values, ("start", "middle", "end"), strict=True)
    )


def _table(checked: Sequence[Checked]) -> Html:
    rows = [
        (
            one.log.name,
            f"{one.log.run.num_accelerators:,}",
            f"{one.log.times.median_s:.3f} s",
            f"{one.median_s:.3f} s",
            f"{one.median_error:+.2%}",
            f"{one.log.times.robust_std_pct:.3f} %",
            f"{one.robust_std_pct:.3f} %",
        )
        for one in checked
    ]
    columns = ("log", "accelerators", "median", "simulated", "error", "robust std", "simulated")
    return table(columns, rows, "simulated against logged step times")

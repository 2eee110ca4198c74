"""The page of simulated against logged step times: for each log, both distributions as curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from meshwright.mllog import StepTimes
from meshwright.plan.plan import write_whole
from meshwright.report.page.markup import Html, joined, svg, table, tag
from meshwright.simulate.noise_fit import Checked

WIDTH, HEIGHT, LEFT, BELOW, ABOVE = 320.0, 170.0, 40.0, 24.0, 8.0
PERCENTILES = np.linspace(1, 99, 99)
STYLE = """:root{color-scheme:light dark;--ink:#1c1917;--soft:#57534e;--line:#d6d3d1;--paper:#fff;--logged:#c2410c;--simulated:#1d4ed8}
@media(prefers-color-scheme:dark){:root{--ink:#e7e5e4;--soft:#a8a29e;--line:#44403c;--paper:#1c1917;--logged:#fb923c;--simulated:#7aa7ff}}
*{box-sizing:border-box}body{font:15px/1.5 system-ui,sans-serif;max-width:1160px;margin:2rem auto;padding:0 1rem;color:var(--ink);
background:var(--paper);font-variant-numeric:tabular-nums}h1{font-size:1.6rem;line-height:1.2}p{max-width:75ch}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(300px,100%),1fr));gap:1.6rem 1.4rem}
figure{margin:0;min-width:0}figcaption{font-size:12.5px;line-height:1.4;overflow-wrap:anywhere}figcaption span{color:var(--soft)}
svg{display:block;width:100%;height:auto}svg text{font-size:10.5px;fill:var(--soft)}polyline{fill:none}
.logged{stroke:var(--logged);stroke-width:2}.simulated{stroke:var(--simulated);stroke-width:1}.line{stroke:var(--line)}
b.logged{color:var(--logged)}b.simulated{color:var(--simulated)}.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:13px}
td,th{padding:.2rem .45rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
td:first-child,th:first-child{text-align:left;padding-left:0}"""


def write_page(path: Path, checked: Sequence[Checked]) -> None:
    """Write the page as one HTML file."""
    write_whole(path, page(checked))


def page(checked: Sequence[Checked]) -> str:
    """The page: a drawing for each log, and a table with the same numbers."""
    body = joined(
        tag("h1", "Simulated against logged step times"),
        tag(
            "p",
            "Upwards: the share of steady steps that are no longer. Across: per cent beyond the log's median. One curve is ",
            tag("b", "logged", class_="logged"),
            "; the others are ",
            tag("b", "simulated", class_="simulated"),
            ", a seed each, with constants fitted without that log.",
        ),
        tag("p", _verdict(checked)),
        tag("div", (_figure(one) for one in checked), class_="grid"),
        tag("h2", "In numbers"),
        _table(checked),
    )
    head = joined(
        tag("meta", charset="utf-8"),
        Html('<meta name="viewport" content="width=device-width,initial-scale=1">'),
        tag("title", "Simulated against logged step times"),
        tag("style", Html(STYLE)),
    )
    return f"<!doctype html>\n{tag('html', tag('head', head), tag('body', body), lang='en')}\n"


def _verdict(checked: Sequence[Checked]) -> str:
    errors = [abs(one.median_error) for one in checked]
    near = sum(one.is_near for one in checked)
    return (
        f"{len(checked)} logs. Medians are {np.mean(errors):.2%} off on average and {max(errors):.2%} at most; "
        f"robust standard deviations are within a factor of 1.5 for {near} of them."
    )


def _figure(one: Checked) -> Html:
    middle_s = one.log.times.median_s
    curves = [*((_beyond(times, middle_s), "simulated") for times in one.simulated), (_beyond(one.log.times, middle_s), "logged")]
    low, high = min(float(curve.min()) for curve, _ in curves), max(float(np.percentile(curve, 97)) for curve, _ in curves)
    low, high = low - 0.1, max(high, low + 0.2) + 0.1
    name = one.log.name.replace("_", " ")
    figures = f"median {one.median_error:+.2%}, spread x{one.spread_ratio:.2f}{'' if one.is_near else ' (beyond 1.5)'}"
    drawn = svg(WIDTH, HEIGHT, f"{name}: {figures}", _marks(low, high), (_curve(curve, kind, low, high) for curve, kind in curves))
    return tag("figure", drawn, tag("figcaption", name, tag("br"), tag("span", figures)))


def _beyond(times: StepTimes, middle_s: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Percentiles of the steady steps, in per cent beyond the log's median."""
    return np.asarray(100 * (np.percentile(times.steady_s, PERCENTILES) / middle_s - 1))


def _x(value: float, low: float, high: float) -> float:
    return LEFT + (min(value, high) - low) / (high - low) * (WIDTH - LEFT - 6)


def _y(share: float) -> float:
    return HEIGHT - BELOW - share / 100 * (HEIGHT - BELOW - ABOVE)


def _curve(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], kind: str, low: float, high: float) -> Html:
    shown = [(value, share) for value, share in zip(values.tolist(), PERCENTILES.tolist(), strict=True) if value <= high]
    points = " ".join(f"{_x(value, low, high):.1f},{_y(share):.1f}" for value, share in shown)
    return tag("polyline", points=points, class_=kind)


def _marks(low: float, high: float) -> Html:
    """Lines at half of the steps and at the log's median, and what the edges stand for."""
    shares = joined(
        joined(
            tag("line", x1=LEFT, x2=WIDTH - 6, y1=_y(share), y2=_y(share), class_="line"),
            tag("text", f"{share} %", x=LEFT - 4, y=_y(share) + 3.5, text_anchor="end"),
        )
        for share in (0, 50, 100)
    )
    median = tag("line", x1=_x(0, low, high), x2=_x(0, low, high), y1=_y(0), y2=_y(100), class_="line", stroke_dasharray="3 3")
    ends = joined(
        tag("text", f"{value:+.1f} %", x=_x(value, low, high), y=HEIGHT - 8, text_anchor=anchor)
        for value, anchor in ((low, "start"), (high, "end"))
    )
    middle = 0.2 < (_x(0, low, high) - LEFT) / (WIDTH - LEFT) < 0.8
    zero = tag("text", "median", x=_x(0, low, high), y=HEIGHT - 8, text_anchor="middle") if middle else Html("")
    return joined(shares, median, ends, zero)


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
            f"{one.spread_ratio:.2f}",
        )
        for one in checked
    ]
    columns = ("log", "accelerators", "median", "simulated", "error", "robust std", "simulated", "ratio")
    return table(columns, rows, "simulated against logged step times")

"""The page that compares simulated with logged step times: for each log, both distributions as curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshwright.files import write_whole
from meshwright.record.step_times import StepTimes
from meshwright.report.page.area import Axis, Plot
from meshwright.report.page.colours import var
from meshwright.report.page.markup import Html, table, tag
from meshwright.report.page.shell import document, section
from meshwright.simulator.noise_fit import Checked
from meshwright.units import per_cent

HEIGHT = 170.0
DRAWN = 5  # simulated runs of a log that get a curve
PERCENTILES = np.linspace(1, 99, 99)
LOGGED, SIMULATED = var("dp"), var("accent")

Column = NDArray[np.float64]


def write_page(path: Path, checked: Sequence[Checked], verdicts: Sequence[str]) -> None:
    """Write the page as one HTML file."""
    write_whole(path, page(checked, verdicts))


def page(checked: Sequence[Checked], verdicts: Sequence[str]) -> str:
    """The page: a drawing for each log, and a table with the same numbers."""
    title = "Simulated against logged step times"
    axes = "Vertical: the share of steady steps that are not longer. Horizontal: per cent above the log's median. One curve is "
    seeds = f": {DRAWN} typical runs, with constants fitted without that log."
    lead = tag("p", axes, _word("logged", LOGGED), "; the others are ", _word("simulated", SIMULATED), seeds, class_="lead")
    header = tag(
        "header",
        tag("p", "meshwright noise", class_="eyebrow"),
        tag("h1", title),
        lead,
        tag("p", _medians(checked)),
        *(tag("p", line) for line in verdicts),
    )
    figures = tag("div", (_figure(one) for one in checked), class_="grid")
    sections = (section("logs", "Log by log", figures), section("numbers", "In numbers", _table(checked)))
    return document(title, header, sections, Html(""))


def _word(word: str, colour: str) -> Html:
    return tag("b", word, style=f"color:{colour}")


def _medians(checked: Sequence[Checked]) -> str:
    errors = [abs(one.median_error) for one in checked]
    mean, worst = per_cent(float(np.mean(errors)), ".2f"), per_cent(max(errors), ".2f")
    return f"{len(checked)} logs. Medians are {mean} off on average and {worst} at most."


def _figure(one: Checked) -> Html:
    middle_s = one.log.times.median_s
    logged, simulated = _beyond(one.log.times, middle_s), [_beyond(times, middle_s) for times in one.simulated[:DRAWN]]
    low = min(float(curve.min()) for curve in (logged, *simulated)) - 0.1
    high = max(max(float(np.percentile(curve, 97)) for curve in (logged, *simulated)), low + 0.3) + 0.1
    plot = Plot(
        Axis.linear(low, high, "", lambda value: f"{value:+g} %" if value else "median", 4),
        Axis(0.0, 100.0, ((0.0, "0 %"), (50.0, "50 %"), (100.0, "100 %")), ""),
        HEIGHT,
    )
    layers = [*(_curve(plot, curve, SIMULATED, 1.0) for curve in simulated), _curve(plot, logged, LOGGED, 2.0)]
    name = one.log.name.replace("_", " ")
    figures = f"median {per_cent(one.median_error, '+.2f')}, spread x{one.spread_ratio:.2f}{'' if one.is_near else ' (beyond 1.5)'}"
    drawn = plot.drawn(f"{name}: {figures}", layers, [plot.upright(0.0, var("soft"), "the log's median")])
    return tag("figure", drawn, tag("figcaption", name, tag("br"), tag("span", figures, class_="soft")))


def _beyond(times: StepTimes, middle_s: float) -> Column:
    """Percentiles of the steady steps, in per cent above the median of the log."""
    return np.asarray(100 * (np.percentile(times.steady_s, PERCENTILES) / middle_s - 1))


def _curve(plot: Plot, values: Column, colour: str, width: float) -> Html:
    inside = values <= plot.x.high
    return plot.line(values[inside], PERCENTILES[inside], colour, width)


def _table(checked: Sequence[Checked]) -> Html:
    rows = [
        (
            one.log.name,
            f"{one.log.run.num_accelerators:,}",
            f"{one.log.times.median_s:.3f} s",
            f"{one.median_s:.3f} s",
            per_cent(one.median_error, "+.2f"),
            f"{one.log.times.robust_std_pct:.3f} %",
            f"{one.robust_std_pct:.3f} %",
            "{:.3f} to {:.3f} %".format(*one.robust_std_80_pct),
            f"{one.spread_ratio:.2f}",
            f"{one.num_long}",
            f"{one.expected_long:.2f}",
            f"{float(one.log.times.seconds[0]):.2f} s",
            f"{one.first_step_s:.2f} s",
        )
        for one in checked
    ]
    spreads = ("robust std>", "simulated>", "80 % of runs>", "ratio>")
    others = ("long steps>", "expected>", "first step>", "simulated>")
    columns = ("log", "accelerators>", "median>", "simulated>", "error>", *spreads, *others)
    return table(columns, rows, "simulated against logged step times")

"""The page of simulated against logged step times: for each log, both distributions as curves."""

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

HEIGHT = 170.0
PERCENTILES = np.linspace(1, 99, 99)
LOGGED, SIMULATED = var("dp"), var("accent")

Column = NDArray[np.float64]


def write_page(path: Path, checked: Sequence[Checked]) -> None:
    """Write the page as one HTML file."""
    write_whole(path, page(checked))


def page(checked: Sequence[Checked]) -> str:
    """The page: a drawing for each log, and a table with the same numbers."""
    title = "Simulated against logged step times"
    axes = "Vertical: the share of steady steps that are not longer. Horizontal: per cent above the log's median. One curve is "
    seeds = ", one per seed, with constants fitted without that log."
    lead = tag("p", axes, _word("logged", LOGGED), "; the others are ", _word("simulated", SIMULATED), seeds, class_="lead")
    header = tag("header", tag("p", "meshwright noise", class_="eyebrow"), tag("h1", title), lead, tag("p", _verdict(checked)))
    figures = tag("div", (_figure(one) for one in checked), class_="grid")
    sections = (section("logs", "Log by log", figures), section("numbers", "In numbers", _table(checked)))
    return document(title, header, sections, Html(""))


def _word(word: str, colour: str) -> Html:
    return tag("b", word, style=f"color:{colour}")


def _verdict(checked: Sequence[Checked]) -> str:
    errors = [abs(one.median_error) for one in checked]
    near = sum(one.is_near for one in checked)
    return (
        f"{len(checked)} logs. Medians are {np.mean(errors):.2%} off on average and {max(errors):.2%} at most; "
        f"robust standard deviations are within a factor of 1.5 for {near} of them."
    )


def _figure(one: Checked) -> Html:
    middle_s = one.log.times.median_s
    logged, simulated = _beyond(one.log.times, middle_s), [_beyond(times, middle_s) for times in one.simulated]
    low = min(float(curve.min()) for curve in (logged, *simulated)) - 0.1
    high = max(max(float(np.percentile(curve, 97)) for curve in (logged, *simulated)), low + 0.3) + 0.1
    plot = Plot(
        Axis.linear(low, high, "", lambda value: f"{value:+g} %" if value else "median", 4),
        Axis(0.0, 100.0, ((0.0, "0 %"), (50.0, "50 %"), (100.0, "100 %")), ""),
        HEIGHT,
    )
    layers = [*(_curve(plot, curve, SIMULATED, 1.0) for curve in simulated), _curve(plot, logged, LOGGED, 2.0)]
    name = one.log.name.replace("_", " ")
    figures = f"median {one.median_error:+.2%}, spread x{one.spread_ratio:.2f}{'' if one.is_near else ' (beyond 1.5)'}"
    drawn = plot.drawn(f"{name}: {figures}", layers, [plot.upright(0.0, var("soft"), "the log's median")])
    return tag("figure", drawn, tag("figcaption", name, tag("br"), tag("span", figures, class_="soft")))


def _beyond(times: StepTimes, middle_s: float) -> Column:
    """Percentiles of the steady steps, in per cent beyond the log's median."""
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
            f"{one.median_error:+.2%}",
            f"{one.log.times.robust_std_pct:.3f} %",
            f"{one.robust_std_pct:.3f} %",
            f"{one.spread_ratio:.2f}",
        )
        for one in checked
    ]
    columns = ("log", "accelerators>", "median>", "simulated>", "error>", "robust std>", "simulated>", "ratio>")
    return table(columns, rows, "simulated against logged step times")

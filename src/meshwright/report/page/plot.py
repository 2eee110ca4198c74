"""A plan on one slide: an SVG of 16:9 with the main numbers, the waterfall of the step and the traffic of each axis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from meshwright.errors import InputError
from meshwright.files import write_whole
from meshwright.plan.explain import AxisTraffic, traffic
from meshwright.predict.forecast import Forecast
from meshwright.report.page.bars import Part, parts_of
from meshwright.report.page.colours import part_colour, resolved, var
from meshwright.report.page.markup import Html, joined, tag
from meshwright.say.forecast import mfu_text
from meshwright.units import gib, seconds, si, usd

WIDTH, HEIGHT, MARGIN = 1600.0, 900.0, 70.0
MIDDLE = 520.0  # where the charts start
FONTS = "Helvetica Neue, Helvetica, Arial, DejaVu Sans, sans-serif"


def write_plot(forecast: Forecast, path: Path) -> None:
    """Write the slide as SVG with its colours written out, so that presentation programs can show it."""
    if path.suffix.lower() != ".svg":
        raise InputError(
            f"a plot is written as SVG, not as {path.suffix or 'a file without ending'}", where=str(path), fix="name it FILE.svg"
        )
    write_whole(path, plan_plot(forecast).encode(errors="replace"))


def plan_plot(forecast: Forecast) -> str:
    """The slide as SVG."""
    paper = tag("rect", width=WIDTH, height=HEIGHT, fill=var("paper"))
    title = tag("title", f"{forecast.job.name}: plan")
    inside = joined(title, paper, _heading(forecast), *_numbers(forecast), *_waterfall(forecast), *_axes(forecast), _foot(forecast))
    size: dict[str, str | float] = {
        "viewBox": f"0 0 {WIDTH:.0f} {HEIGHT:.0f}",
        "width": WIDTH,
        "height": HEIGHT,
        "font_family": FONTS,
        "role": "img",
    }
    drawing = tag(
        "svg", inside, xmlns="http://www.w3.org/2000/svg", **size, aria_label=f"{forecast.job.name}: step time by part, and traffic by axis"
    )
    return resolved(drawing) + "\n"


def _text(words: str, x: float, y: float, size: float, colour: str = "ink", weight: int = 400, anchor: str = "start") -> Html:
    return tag("text", words, x=x, y=y, font_size=size, font_weight=weight, fill=var(colour), text_anchor=anchor)


def _heading(forecast: Forecast) -> Html:
    """The plan's name, and the axes as chips."""
    job, name = forecast.job, forecast.job.name
    size = min(40.0, (WIDTH - 2 * MARGIN) / (0.58 * max(len(name), 1)))
    drawn = [_text(name, MARGIN, 92.0, size, weight=700)]
    x = MARGIN
    for axis in ("tp", "cp", "pp", "dp", "ep", "etp"):
        degree = getattr(forecast.layout, axis)
        if degree > 1:
            words = f"{axis} {degree}"
            width = 26.0 + 12.5 * len(words)
            drawn.append(tag("rect", x=x, y=116.0, width=width, height=38.0, rx=19.0, fill=var(axis)))
            drawn.append(_text(words, x + width / 2, 142.0, 21.0, "paper", 700, "middle"))
            x += width + 10.0
    workload = job.workload
    tokens = f"{workload.global_batch:,} x {workload.seq_len:,} tokens, {workload.precision}"
    text = f"{job.num_accelerators:,} {job.cluster.accelerator.name}, {tokens}"
    return joined(*drawn, _text(text, x + 8.0, 142.0, 20.0, "soft"))


def _numbers(forecast: Forecast) -> Iterator[Html]:
    """The five main numbers, below each other on the left side."""
    whole, cost, time_s, (low_s, high_s) = forecast.outcome, forecast.cost, forecast.time_to_train, forecast.interval
    shown = (
        ("step time", seconds(forecast.step_s), f"{seconds(low_s)} to {seconds(high_s)} (80 %)"),
        ("time to train", whole.words(time_s, seconds) if time_s else "unknown", f"{whole.num_steps:,} steps" if time_s else ""),
        ("cost", whole.words(cost, usd) if cost else "unknown", cost.between(usd) if cost else ""),
        ("tokens per second", si(forecast.tokens_per_s, ""), f"MFU {mfu_text(forecast.mfu)}"),
        ("peak memory", gib(forecast.peak_memory_bytes), f"of {gib(forecast.job.cluster.accelerator.room_bytes)}"),
    )
    for row, (label, value, remark) in enumerate(shown):
        y = 222.0 + row * 124.0
        yield joined(
            _text(label, MARGIN, y, 18.0, "soft"),
            _text(value, MARGIN, y + 44.0, 42.0, weight=700),
            _text(remark, MARGIN, y + 71.0, 17.0, "soft"),
        )


def _waterfall(forecast: Forecast) -> Iterator[Html]:
    """The parts of the step one after the other."""
    parts, step_s = parts_of(forecast), forecast.step_s
    row = min(36.0, 350.0 / (len(parts) + 1))
    left, right = MIDDLE + 190.0, WIDTH - MARGIN - 190.0
    yield _text("Where the step goes", MIDDLE, 222.0, 22.0, weight=700)
    done_s = 0.0
    for number, part in enumerate([*parts, Part("step", "ink", step_s)]):
        is_step = number == len(parts)
        start_s, end_s = (0.0, step_s) if is_step else sorted((done_s, done_s + part.seconds))
        done_s += part.seconds
        y, scale = 244.0 + number * row, (right - left) / step_s
        colour = var("ink") if is_step else part_colour(part.colour)
        weight = 700 if is_step else 400
        yield _text(part.name, MIDDLE, y + row * 0.62, 18.0, weight=weight)
        yield tag(
            "rect", x=left + start_s * scale, y=y + 3.0, width=max((end_s - start_s) * scale, 1.5), height=row - 8.0, fill=colour, rx=2.0
        )
        yield _text(seconds(part.seconds), WIDTH - MARGIN - 74.0, y + row * 0.62, 18.0, weight=weight, anchor="end")
        yield _text(f"{100 * part.seconds / step_s:.1f} %", WIDTH - MARGIN, y + row * 0.62, 18.0, "soft", anchor="end")


def _axes(forecast: Forecast) -> Iterator[Html]:
    """The traffic of each axis, its tier, and how much is exposed and hidden."""
    axes = traffic(forecast)
    longest_s = max((max(axis.traffic_s, axis.exposed_s) for axis in axes), default=1.0) or 1.0
    yield _text("What the axes carry: exposed, and hidden (pale)", MIDDLE, 646.0, 22.0, weight=700)
    for number, axis in enumerate(axes):
        yield _axis(axis, 668.0 + number * 34.0, longest_s)


def _axis(axis: AxisTraffic, y: float, longest_s: float) -> Html:
    left, right, base = MIDDLE + 400.0, WIDTH - MARGIN - 190.0, y + 22.0
    scale = (right - left) / longest_s
    exposed = min(axis.exposed_s, longest_s) * scale
    bars = [tag("rect", x=left, y=y + 5.0, width=max(exposed, 1.5), height=22.0, fill=var(axis.axis), rx=2.0)]
    if axis.hidden_s > 0:
        place = {"x": left + exposed, "y": y + 5.0, "width": max(axis.hidden_s * scale, 1.0), "height": 22.0, "rx": 2.0}
        bars.append(tag("rect", **place, fill=var(axis.axis), fill_opacity=0.22))
    return joined(
        _text(axis.label, MIDDLE, base, 18.0, axis.axis, 700),
        _text(" + ".join(axis.tiers), MIDDLE + 145.0, base, 18.0),
        _text(si(axis.num_bytes, "B", 3), MIDDLE + 380.0, base, 18.0, anchor="end"),
        *bars,
        _text(f"{seconds(axis.exposed_s)} exposed", WIDTH - MARGIN, base, 18.0, "soft", anchor="end"),
    )


def _foot(forecast: Forecast) -> Html:
    return _text(
        f"predicted by meshwright, software {forecast.job.software.name}, layout {forecast.layout.degrees}",
        MARGIN,
        HEIGHT - 28.0,
        15.0,
        "soft",
    )

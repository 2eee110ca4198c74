"""Colours by meaning, the same in every chart; each has a light and a dark form, and is used as `var(--name)`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

# Light, dark. The five axes keep their colours in every chart, table and chip; they differ in lightness as well as in hue.
PALETTE: Mapping[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#14171c"),
    "panel": ("#f6f7f9", "#1c2027"),
    "ink": ("#1a1f27", "#e8eaee"),
    "soft": ("#56606e", "#a3adba"),
    "line": ("#d9dde3", "#343b46"),
    "faint": ("#eceff3", "#262c35"),
    "accent": ("#1f5fbf", "#7db0ff"),
    "warn": ("#b3261e", "#ff8a80"),
    "tp": ("#2563c9", "#6ea3ff"),
    "cp": ("#0b8378", "#3fc9ba"),
    "pp": ("#7a45d6", "#b594ff"),
    "dp": ("#c2570c", "#ff9a4d"),
    "ep": ("#b52a7f", "#ff7cc4"),
    "etp": ("#b52a7f", "#ff7cc4"),
    "compute": ("#5b6b82", "#8393ab"),
    "bubble": ("#b4bcc8", "#525c6b"),
    "optimizer": ("#8a6d3b", "#c9a765"),
    "data": ("#4f7d4a", "#87bd80"),
    "overhead": ("#8b8f98", "#9aa1ac"),
    "weights": ("#33507d", "#6f92c9"),
    "gradients": ("#6d8fbe", "#9db9e2"),
    "moments": ("#8a6d3b", "#c9a765"),
    "activations": ("#5c9a6e", "#7cc493"),
    "loss": ("#b5545e", "#ea8b94"),
    "buffers": ("#9aa1ac", "#717a87"),
    "weak": ("#2563c9", "#6ea3ff"),
    "strong": ("#c2570c", "#ff9a4d"),
    "mixed": ("#7a45d6", "#b594ff"),
    "runa": ("#1f5fbf", "#7db0ff"),
    "runb": ("#c2570c", "#ff9a4d"),
    "runc": ("#0b8378", "#3fc9ba"),
    "rund": ("#b52a7f", "#ff7cc4"),
    "rune": ("#7a45d6", "#b594ff"),
    "runf": ("#8a6d3b", "#c9a765"),
    "rung": ("#4f7d4a", "#87bd80"),
    "runh": ("#b3261e", "#ff8a80"),
    "runi": ("#56606e", "#a3adba"),
    "runj": ("#1a1f27", "#e8eaee"),
}
RUN_COLOURS = tuple(name for name in PALETTE if name.startswith("run"))  # of runs that are compared, in their order
PART_COLOURS: Mapping[str, str] = {f"exposed_{axis}": axis for axis in ("tp", "cp", "pp", "dp", "ep")}  # others: their own names

# Forward, backward and weight-gradient passes: one colour ramp each, from a stage's first chunk to its last.
KIND_RAMPS = (
    ((0.83, 0.055, 250.0), (0.50, 0.09, 258.0)),
    ((0.84, 0.085, 128.0), (0.52, 0.105, 140.0)),
    ((0.86, 0.07, 70.0), (0.60, 0.1, 55.0)),
)


def var(name: str) -> str:
    """The colour of that name in the syntax of CSS and SVG."""
    assert name in PALETTE, name
    return f"var(--{name})"


def part_colour(part: str) -> str:
    """The colour of a part of the step."""
    return var(PART_COLOURS.get(part, part))


def run_colour(number: int) -> str:
    """The colour of a run among several; colours repeat after ten."""
    return var(RUN_COLOURS[number % len(RUN_COLOURS)])


def variables(dark: bool) -> str:
    """The palette as CSS declarations."""
    return "".join(f"--{name}:{pair[dark]};" for name, pair in PALETTE.items())


def resolved(drawing: str) -> str:
    """A drawing with its light colours written out, for programs that do not support CSS variables."""
    return re.sub(r"var\(--([a-z]+)\)", lambda match: PALETTE[match[1]][0], drawing)


def stage_colour(index: int, count: int) -> str:
    """Colour of one of `count` stages or replicas: from blue over green to red, with neighbours that also differ in lightness."""
    if count == 1:
        return oklch(0.74, 0.09, 250.0)
    hue = 265.0 - 235.0 * index / (count - 1)
    return oklch(0.80 if index % 2 else 0.68, 0.105, hue % 360)


def kind_colour(kind: int, chunk: int, num_chunks: int) -> str:
    """Colour of an operation: its kind (forward, backward, weight gradient), darker in later chunks."""
    first, last = KIND_RAMPS[kind]
    share = chunk / (num_chunks - 1) if num_chunks > 1 else 0.55
    lightness, chroma, hue = (a + (b - a) * share for a, b in zip(first, last, strict=True))
    return oklch(lightness, chroma, hue)


def ink_on(colour: str) -> str:
    """Black or white, whichever is easier to read on `colour`."""
    return "#ffffff" if luminance(colour) < 0.30 else "#11151b"


def luminance(colour: str) -> float:
    """Relative luminance as WCAG defines it, of `#rrggbb`."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """WCAG contrast ratio of two colours: 1 to 21."""
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def oklch(lightness: float, chroma: float, hue: float) -> str:
    """An OKLCH colour as `#rrggbb`, clipped to sRGB (B. Ottosson, "A perceptual color space", 2020)."""
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    channels = (12.92 * c if c <= 0.0031308 else 1.055 * max(c, 0.0) ** (1 / 2.4) - 0.055 for c in linear)
    return "#" + "".join(f"{round(255 * min(max(c, 0.0), 1.0)):02x}" for c in channels)

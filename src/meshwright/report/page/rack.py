"""The rack picture: the accelerators of the innermost network domain, coloured by what the plan puts on them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshwright.layout import AXES
from meshwright.plan.plan import Plan
from meshwright.predict.placement import tiers_of
from meshwright.report.page.colours import ink_on, stage_colour, var
from meshwright.report.page.markup import Html, joined, legend, number, svg, tag

WIDTH = 420.0
LABEL_WIDTH = 56.0
CELL_HEIGHT = 21.0
PHONE_SIZE = 13.7  # font size on a phone, where the picture shrinks: style.css enlarges texts that have room
MAX_CELLS = 256  # drawn; a note says how many are left out
MAX_DOMAINS = 16  # drawn of the first replica, if it spans several
HINTED = 3  # outlines behind the first domain, for the domains that are not drawn
CARD = 7.0  # pixels by which each outline is shifted
BRACKET = 17.0  # room for one bracket
LETTERS = {"tp": "t", "cp": "c", "pp": "p", "dp": "d"}
WORDS = {"tp": "tensor", "cp": "context", "pp": "pipeline stage", "dp": "replica"}


@dataclass(frozen=True, slots=True)
class Rack:
    """What is drawn: which domains, how their cells are arranged, and which axis gives the colours."""

    plan: Plan
    domains: tuple[int, ...]
    num_columns: int
    num_rows: int  # of one domain, spares included
    coloured: str  # axis
    seen: tuple[int, ...]  # coordinates that occur on that axis
    marked: tuple[str, ...]  # axes whose coordinates are written in the cells

    @staticmethod
    def of(plan: Plan) -> Rack:
        """The domains that hold the first replica, in the order of its ranks."""
        layout, inner = plan.layout, plan.cluster.tiers[0]
        replica = [layout.rank(coordinate) // inner.num_accelerators for coordinate in _replica(plan)]
        columns = min(plan.cluster.accelerators_per_node, inner.num_installed)
        rows = math.ceil(min(inner.num_installed, MAX_CELLS) / columns)
        domains = tuple(dict.fromkeys(replica))[: max(min(MAX_DOMAINS, MAX_CELLS // (rows * columns)), 1)]
        coloured = "pp" if layout.pp > 1 else "dp" if layout.dp > 1 else "cp" if layout.cp > 1 else "tp"
        varying = {axis for axis in AXES for d in domains if len(_coordinates(plan, d, axis)) > 1}
        varying |= {axis for axis in ("tp", "cp") if getattr(layout, axis) > 1}
        marked = tuple(axis for axis in AXES if axis in varying and axis != coloured) or (coloured,)
        seen = tuple(sorted({value for d in domains for value in _coordinates(plan, d, coloured)}))
        return Rack(plan, domains, columns, rows, coloured, seen, marked)

    @property
    def num_colours(self) -> int:
        """Number of different colours: stages, or the coordinates that occur on another axis."""
        return self.plan.layout.pp if self.coloured == "pp" else max(self.seen) + 1

    @property
    def names_replica(self) -> bool:
        """Whether one domain is exactly one replica."""
        layout = self.plan.layout
        return len(self.domains) == 1 and _coordinates(self.plan, 0, "dp") == {0} and layout.num_ranks // layout.dp == self.size

    @property
    def size(self) -> int:
        """Accelerators in use in a domain."""
        return self.plan.cluster.tiers[0].num_accelerators


def _replica(plan: Plan) -> Iterator[dict[str, int]]:
    """Coordinates of the first replica; of a large replica, enough of them to know its domains."""
    layout = plan.layout
    for pp in range(layout.pp):
        for cp in range(layout.cp):
            for tp in range(layout.tp):
                yield {"tp": tp, "cp": cp, "pp": pp, "dp": 0}


def _coordinates(plan: Plan, domain: int, axis: str) -> set[int]:
    size = plan.cluster.tiers[0].num_accelerators
    return {plan.layout.coordinate(rank)[axis] for rank in range(domain * size, domain * size + min(size, MAX_CELLS))}


def rack_picture(plan: Plan) -> Html:
    """The picture, its legend and what it leaves out."""
    rack = Rack.of(plan)
    offset = CARD * _num_hinted(rack)
    drawn, y = [], offset
    for place, domain in enumerate(rack.domains):
        grid = Grid.of(rack, brackets(rack) if place == 0 else [])
        hints = _outlines(rack, y, grid.height) if place == 0 else Html("")
        drawn.append(joined(hints, _domain(rack, grid, domain, y)))
        y += grid.height + 4.0
    label = f"{plan.cluster.tiers[0].name} {rack.domains[0]}: accelerators coloured by {WORDS[rack.coloured]}"
    picture = svg(WIDTH + offset + 2.0, y, label, *drawn, class_="chart rack")
    return joined(picture, legend(_colours(rack)), *(tag("p", line, class_="small") for line in _notes(rack)))


@dataclass(frozen=True, slots=True)
class Bracket:
    """Where one group of an axis is in a domain: some columns of the first tray, or some trays."""

    axis: str
    degree: int
    num_columns: int  # 0: the group extends over trays
    num_rows: int


def brackets(rack: Rack) -> list[Bracket]:
    """Brackets of the axes whose first group is contiguous within a domain, from the inside out."""
    layout, columns, found = rack.plan.layout, rack.num_columns, []
    for axis in layout.order:
        degree, stride = getattr(layout, axis), layout.stride(axis)
        reach = stride * degree
        if degree == 1 or reach > rack.size or reach > MAX_CELLS:
            continue
        if reach <= columns:
            found.append(Bracket(axis, degree, reach, 0))
        elif reach % columns == 0 and stride % columns == 0:
            found.append(Bracket(axis, degree, 0, reach // columns))
    return found


def _num_hinted(rack: Rack) -> int:
    return min(HINTED, _num_domains(rack.plan) - 1) if len(rack.domains) == 1 else 0


def _num_domains(plan: Plan) -> int:
    return plan.cluster.num_accelerators // plan.cluster.tiers[0].num_accelerators


@dataclass(frozen=True, slots=True)
class Grid:
    """Where the cells of a domain are in its frame."""

    left: float
    top: float
    cell_width: float
    height: float  # of the frame
    compact: bool  # small domains, one below the other, named beside their trays
    brackets: tuple[Bracket, ...]

    @staticmethod
    def of(rack: Rack, drawn: Sequence[Bracket]) -> Grid:
        """The grid with room for the title, for the brackets above the cells or beside the cells of every domain, and for the cells."""
        compact = rack.num_rows <= 2
        across, down = sum(1 for b in drawn if b.num_columns), sum(1 for b in brackets(rack) if not b.num_columns)
        top = (7.0 if compact else 24.0) + BRACKET * across
        width = (WIDTH - LABEL_WIDTH - 10.0 - BRACKET * down) / rack.num_columns
        return Grid(LABEL_WIDTH + 4.0, top, width, top + rack.num_rows * CELL_HEIGHT + 7.0, compact, tuple(drawn))


def _outlines(rack: Rack, y: float, height: float) -> Html:
    """The next domains, as cards behind the first."""
    frames = []
    for depth in range(_num_hinted(rack), 0, -1):
        place = {"x": 1.0 + CARD * depth, "y": y - CARD * depth + 1.0, "width": WIDTH, "height": height, "rx": 6.0}
        frames.append(tag("rect", **place, fill=var("panel"), stroke=var("soft"), stroke_opacity=1.0 - 0.22 * depth))
    return joined(*frames)


def _domain(rack: Rack, grid: Grid, domain: int, y: float) -> Html:
    """A domain: its frame, its title, its trays of accelerators and the brackets of the axes."""
    inner = rack.plan.cluster.tiers[0]
    frame = tag("rect", x=1.0, y=y + 1.0, width=WIDTH, height=grid.height, rx=6.0, fill=var("paper"), stroke=var("soft"))
    count = f"{inner.num_accelerators} of {inner.num_installed}" if rack.plan.spares_per_domain else f"{inner.num_accelerators}"
    title = f"{inner.name} {domain} \u00b7 {count} {rack.plan.cluster.accelerator.name} in use \u00b7 {inner.link}"
    heading = Html("") if grid.compact else tag("text", title, x=11.0, y=y + 17.0, font_size=11.5, font_weight=600, fill=var("ink"))
    rows = (_tray(rack, grid, domain, row, y + grid.top + row * CELL_HEIGHT) for row in range(rack.num_rows))
    return joined(frame, heading, *rows, *_brackets(rack, grid, y))


def _brackets(rack: Rack, grid: Grid, y: float) -> Iterator[Html]:
    """The first group of each axis: across the first tray, or down the trays."""
    up, right = y + grid.top - 3.0, grid.left + rack.num_columns * grid.cell_width + 4.0
    for bracket in grid.brackets:
        colour, name = var(bracket.axis), f"{bracket.axis} {bracket.degree}"
        line: dict[str, str | float] = {"fill": "none", "stroke": colour, "stroke_width": 1.5}
        word: dict[str, str | float] = {"font_size": 10.5, "font_weight": 700, "fill": colour, "text_anchor": "middle"}
        if bracket.num_columns:
            width = bracket.num_columns * grid.cell_width - 2.0
            x = grid.left + 1.0
            yield tag("path", d=f"M{number(x)} {number(up)}v-5h{number(width)}v5", **line)
            yield _word(name, x + width / 2, up - 1.5, word)
            up -= BRACKET
        else:
            down = bracket.num_rows * CELL_HEIGHT - 2.0
            top = y + grid.top + 1.0
            yield tag("path", d=f"M{number(right)} {number(top)}h5v{number(down)}h-5", **line)
            middle = top + down / 2
            yield tag("g", _word(name, right + 5.0, middle + 3.5, word), transform=f"rotate(-90 {number(right + 5.0)} {number(middle)})")
            right += BRACKET


def _word(text: str, x: float, y: float, style: dict[str, str | float]) -> Html:
    """A word on the background colour, so that it can be read on top of a line."""
    width = 8.4 * len(text)  # with the larger letters on a phone
    behind = tag("rect", x=x - width / 2, y=y - 10.5, width=width, height=14.0, fill=var("paper"))
    return joined(behind, tag("text", text, x=x, y=y, **style))


def _tray(rack: Rack, grid: Grid, domain: int, row: int, y: float) -> Html:
    name = f"{_short(rack.plan.cluster.tiers[0].name)} {domain}" if grid.compact and row == 0 else f"tray {row}"
    label = tag("text", name, x=5.0, y=y + 14.3, font_size=10.5, fill=var("soft"))
    cells = []
    for column in range(rack.num_columns):
        slot = row * rack.num_columns + column
        if slot < rack.plan.cluster.tiers[0].num_installed:
            cells.append(_cell(rack, domain, slot, grid.left + column * grid.cell_width, y, grid.cell_width))
    return joined(label, *cells)


def _short(name: str) -> str:
    return name if len(name) <= 5 else f"{name[:4]}\u2026"


def _cell(rack: Rack, domain: int, slot: int, x: float, y: float, width: float) -> Html:
    box: dict[str, str | float] = {"x": x + 1.0, "y": y + 1.0, "width": width - 2.0, "height": CELL_HEIGHT - 2.0, "rx": 3.0}
    centre: dict[str, str | float] = {"x": x + width / 2, "y": y + 14.2, "font_size": 11.0, "text_anchor": "middle"}
    if slot >= rack.size:
        spare = tag("rect", **box, fill=var("faint"), stroke=var("line"), stroke_dasharray="3 2")
        return joined(spare, tag("text", "spare" if width > 34 else "", **centre, fill=var("soft")))
    rank = domain * rack.size + slot
    at = rack.plan.layout.coordinate(rank)
    colour = stage_colour(at[rack.coloured], rack.num_colours)
    words = ", ".join(f"{axis} {value}" for axis, value in at.items())
    marks = " ".join(f"{LETTERS[axis]}{at[axis]}" for axis in rack.marked)
    fitting = (width - 4.0) / max(0.58 * len(marks), 1.0)
    small = {**centre, "font_size": min(11.0, fitting), "class_": "tight" if fitting < PHONE_SIZE else None}
    shown = tag("text", marks, **small, fill=ink_on(colour)) if marks else Html("")
    return tag("g", tag("title", f"rank {rank}: {words}"), tag("rect", **box, fill=colour), shown)


def _colours(rack: Rack) -> list[tuple[str, str]]:
    """Swatches: all of them, or the first, some in between and the last."""
    seen, word = rack.seen, {"pp": "stage", "dp": "replica", "cp": "context rank", "tp": "tensor rank"}[rack.coloured]
    shown = seen if len(seen) <= 16 else [*seen[:6], *seen[6 : -3 : max((len(seen) - 9) // 4, 1)], *seen[-3:]]
    entries = [(stage_colour(value, rack.num_colours), f"{word if value == shown[0] else ''} {value}".strip()) for value in shown]
    spare = [(var("faint"), "spare")] if rack.plan.spares_per_domain else []
    return [*entries, *spare]


def _notes(rack: Rack) -> Iterator[str]:
    """What the marks mean, and what the picture leaves out."""
    plan, inner, count = rack.plan, rack.plan.cluster.tiers[0], _num_domains(rack.plan)
    if rack.marked:
        yield "Marks: " + ", ".join(
            f"{LETTERS[axis]} = {WORDS[axis]} coordinate ({axis} {getattr(plan.layout, axis)})" for axis in rack.marked
        )
    if rack.names_replica and count > 1:
        yield f"One {inner.name} is one replica. The other {count - 1:,} {inner.name}s look the same: replicas 1 to {count - 1:,}."
    elif count > len(rack.domains):
        yield f"Drawn: {len(rack.domains)} of {count:,} {inner.name}s, the first that hold replica 0."
    if inner.num_installed > MAX_CELLS:
        yield f"Drawn: the first {MAX_CELLS} of the {inner.num_installed:,} accelerators of a {inner.name}."
    if plan.layout.expert_ranks > 1:
        crossed = " and ".join(f"the {tier}" for tier in tiers_of(plan.layout, plan.cluster).get("ep", ()))
        own = "they take no accelerators of their own"
        degrees = f"ep {plan.layout.ep}" + (f", etp {plan.layout.etp}" if plan.layout.etp > 1 else "")
        yield f"Experts ({degrees}) are laid over the ranks of dp, cp and tp; {own}. Their traffic goes through {crossed}."

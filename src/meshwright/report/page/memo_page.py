"""Memos as one self-contained page: the verdict in a sentence, checks, the claim beside its forecast, and what to ask next."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshwright.report.page.colours import var
from meshwright.report.page.markup import Html, joined, table, tag
from meshwright.report.page.shell import document, section
from meshwright.say.document import Finding, Table
from meshwright.say.memo import FAIL, OPEN, PASS, Memo, Part, Range

SIGNS = {PASS: "\N{CHECK MARK}", OPEN: "?", FAIL: "\N{MULTIPLICATION X}"}
COLOURS = {PASS: var("data"), OPEN: var("optimizer"), FAIL: var("warn")}
OUTCOMES = {"consistent": PASS, "unknown": OPEN, "unsupported": OPEN, "misleading": FAIL, "implausible": FAIL, "impossible": FAIL}
WIDE = 3.0  # a picture that spans more than this factor has a logarithmic scale
MARGIN = 0.12  # on both sides, as a share of the width, so that texts have room


def memo_page(memos: Sequence[Memo]) -> str:
    """The page of one or several memos."""
    first, has_several = memos[0], len(memos) > 1
    title = f"{len(memos)} audits" if has_several else first.title
    header = tag("header", tag("p", first.kind, class_="eyebrow"), tag("h1", title), _overview(memos)) if has_several else _header(first)
    sections = [part for i, memo in enumerate(memos) for part in _memo(memo, f"m{i}", has_title=has_several)]
    footers = dict.fromkeys(memo.footer for memo in memos if memo.footer)
    return document(title, header, sections, tag("footer", *(tag("p", text) for text in footers)))


def _header(memo: Memo) -> Html:
    return tag("header", tag("p", memo.kind, class_="eyebrow"), tag("h1", memo.title), _headline(memo))


def _overview(memos: Sequence[Memo]) -> Html:
    """The verdict on each, with a link to it."""
    rows = [(badge(memo.outcome, memo.verdict), tag("a", memo.title, href=f"#m{i}"), memo.headline) for i, memo in enumerate(memos)]
    return table(("verdict", "of", "in a sentence"), rows, "overview", class_="checks")


def _headline(memo: Memo) -> Html:
    second = tag("p", memo.second, class_="soft") if memo.second else None
    inside = joined(badge(memo.outcome, memo.verdict), tag("p", memo.headline, class_="lead"), second)
    return tag("div", inside, class_="verdict", style=f"border-color:{COLOURS[memo.outcome]}")


def badge(outcome: str, word: str) -> Html:
    """A verdict: a sign and a word in the colour of its outcome. Each of the three can be understood without the other two."""
    return tag("b", f"{SIGNS[outcome]} {word}", class_="badge", style=f"color:{COLOURS[outcome]}")


def _memo(memo: Memo, name: str, *, has_title: bool) -> list[Html]:
    head = tag("section", tag("h2", memo.title, id=name, class_="run-name"), _headline(memo), aria_labelledby=name) if has_title else None
    parts = [
        _ranges(memo, f"{name}-forecast"),
        _checks(memo, f"{name}-checks"),
        *(_part(part, f"{name}-part{i}") for i, part in enumerate(memo.parts)),
        _arithmetic(memo, f"{name}-arithmetic"),
    ]
    return [part for part in (head, *parts) if part is not None]


def _ranges(memo: Memo, name: str) -> Html | None:
    if not (memo.ranges or memo.ranges_remark):
        return None
    return section(name, "Forecast beside the claim", *map(interval_bar, memo.ranges), tag("p", memo.ranges_remark, class_="small soft"))


def interval_bar(one: Range) -> Html:
    """The forecast's interval as a bar, with marks for its middle and the claim. Texts are outside of it, to keep their size on a phone."""
    low, value, high, claimed = _places(one)
    texts = f"claimed {one.claimed_text}, forecast {one.value_text}, 80 % interval {one.interval_text}"
    label = f"{one.name}: {texts}; the claim is {one.words}"
    drawn = tag(
        "div",
        tag("i", class_="span", style=f"left:{low:.2f}%;width:{max(high - low, 0.6):.2f}%"),
        tag("i", class_="middle", style=f"left:{value:.2f}%"),
        tag("i", class_="claim", style=f"left:{claimed:.2f}%"),
        class_="range",
        role="img",
        aria_label=label,
    )
    above = tag("p", tag("span", f"claimed {one.claimed_text}", class_="at", style=_at(claimed)), class_="texts claimed")
    middle = (low + high) / 2
    below = tag("p", tag("span", f"forecast {one.value_text} (80 %: {one.interval_text})", class_="at", style=_at(middle)), class_="texts")
    name = tag("p", tag("span", one.name), tag("b", f"the claim is {one.words}"), class_="stack-name")
    return tag("div", name, above, drawn, below, class_="stack")


def _at(place: float) -> str:
    """A text that begins, is centred or ends at its position, so that it stays on the page."""
    if place < 34:
        return f"left:{max(place - 4, 0):.2f}%"
    if place > 66:
        return f"right:{max(96 - place, 0):.2f}%"
    return f"left:{place:.2f}%;transform:translateX(-50%)"


def _places(one: Range) -> tuple[float, float, float, float]:
    """Low end, value, high end and claim in per cent of the width; an open end is drawn to the edge."""
    high = one.high if math.isfinite(one.high) else 1.5 * max(one.value, one.claimed)
    values = [one.low, one.value, high, one.claimed]
    is_wide = min(values) > 0 and max(values) / min(values) > WIDE
    scaled = [math.log(value) for value in values] if is_wide else values
    least, most = min(scaled), max(scaled)
    span = (most - least) or abs(most) or 1.0
    low, value, top, claimed = (100 * (MARGIN + (1 - 2 * MARGIN) * (place - least) / span) for place in scaled)
    return low, value, top, claimed


def _checks(memo: Memo, name: str) -> Html | None:
    if not memo.findings:
        return None
    rows = [(badge(outcome_of(one), one.verdict), one.about, one.why) for one in memo.findings]
    return section(name, "Checks", table(("verdict", "what was checked", "why"), rows, "checks", class_="checks"))


def outcome_of(one: Finding) -> str:
    """PASS, OPEN or FAIL for a finding. A verdict that is one of these already stays; an unknown one is OPEN."""
    return OUTCOMES.get(one.verdict, one.verdict if one.verdict in SIGNS else OPEN)


def _part(part: Part, name: str) -> Html | None:
    if not (part.lines or part.tables):
        return None
    lines = tag("ul", *(tag("li", line) for line in part.lines)) if part.lines else None
    return section(name, part.title, *map(_table, part.tables), lines)


def _table(one: Table) -> Html:
    return table(one.columns, one.rows, one.title, caption=one.title, class_="listed")


def _arithmetic(memo: Memo, name: str) -> Html | None:
    worked = [one for one in memo.findings if one.arithmetic]
    if not worked:
        return None
    items = [joined(tag("h3", one.about), tag("ul", *(tag("li", line) for line in one.arithmetic))) for one in worked]
    return section(name, "Arithmetic", *items)

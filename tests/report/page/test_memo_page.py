from __future__ import annotations

import re
from dataclasses import replace

import pytest

from meshwright.report.page.memo_page import badge, interval_bar, memo_page
from meshwright.say.document import Finding, Table
from meshwright.say.memo import FAIL, OPEN, PASS, Memo, Part, Range

RANGE = Range(
    name="time of a step",
    claimed=1.0,
    value=2.0,
    low=1.8,
    high=2.4,
    claimed_text="1 s",
    value_text="2 s",
    interval_text="1.8 to 2.4 s",
    words="1.8 times faster",
)
MEMO = Memo(
    kind="audit of a claim",
    title="<b>A & B</b>",
    outcome=FAIL,
    verdict="impossible",
    headline="The claim is impossible.",
    findings=(Finding("impossible", "compute", "above the peak", ("2 x 3 = 6",)), Finding("consistent", "memory", "it fits")),
    ranges=(RANGE,),
    ranges_remark="Forecast of a run.",
    parts=(Part(title="What to ask next", lines=("Where is the log?",)), Part(title="Empty")),
    footer="Verdicts.",
)


def lefts(markup: str) -> dict[str, float]:
    return {name: float(place) for name, place in re.findall(r'<i class="(\w+)" style="left:([\d.]+)%', markup)}


def test_the_page_stands_alone_and_escapes_what_others_wrote() -> None:
    page = memo_page([MEMO])
    assert page.startswith("<!doctype html>") and "<script" not in page and "http" not in page
    assert "&lt;b&gt;A &amp; B&lt;/b&gt;" in page and "<b>A & B</b>" not in page
    for text in ("The claim is impossible.", "above the peak", "2 x 3 = 6", "Where is the log?", "Forecast of a run.", "Verdicts."):
        assert text in page
    assert "Empty" not in page  # a part of nothing is left out


@pytest.mark.parametrize("outcome, sign", [(PASS, "\N{CHECK MARK}"), (OPEN, "?"), (FAIL, "\N{MULTIPLICATION X}")])
def test_a_verdict_is_a_sign_and_a_word_and_not_only_a_colour(outcome: str, sign: str) -> None:
    assert f"{sign} word" in badge(outcome, "word")


def test_the_marks_stand_in_order_and_on_the_picture() -> None:
    found = lefts(interval_bar(RANGE))
    assert 0 < found["claim"] < found["span"] < found["middle"] < 100
    # linear: the middle lies a third of the way from the low end to the high end
    width = float(re.findall(r"width:([\d.]+)%", interval_bar(RANGE))[0])
    assert (found["middle"] - found["span"]) / width == pytest.approx((2.0 - 1.8) / (2.4 - 1.8), abs=1e-3)


def test_a_far_claim_is_drawn_on_a_logarithmic_scale_and_an_open_end_to_the_edge() -> None:
    far = lefts(interval_bar(replace(RANGE, claimed=0.01)))
    assert far["middle"] - far["span"] > 1  # still visible beside a claim 180 times faster
    open_end = lefts(interval_bar(replace(RANGE, high=float("inf"))))
    assert open_end["middle"] < 90
    same = lefts(interval_bar(replace(RANGE, claimed=2.0, low=2.0, high=2.0)))
    assert same["claim"] == same["middle"]


def test_a_picture_says_in_words_what_it_shows() -> None:
    assert 'aria-label="time of a step: claimed 1 s, forecast 2 s, 80 % interval 1.8 to 2.4 s; the claim is 1.8 times faster"' in memo_page(
        [MEMO]
    )


def test_several_memos_are_one_page_with_the_title_of_each() -> None:
    other = replace(
        MEMO, title="Another", outcome=PASS, verdict="consistent", parts=(Part(title="Runs", tables=(Table("t", ("a>",), (("1",),)),)),)
    )
    page = memo_page([MEMO, other])
    assert "2 audits" in page and '<a href="#m1">Another</a>' in page and page.count("Verdicts.") == 1
    assert len(set(re.findall(r' id="([^"]+)"', page))) == len(re.findall(r' id="([^"]+)"', page))

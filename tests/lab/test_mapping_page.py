"""What is said about mappings."""

from __future__ import annotations

from html.parser import HTMLParser

from mapped import a_mapping, a_trial

from meshwright.lab.description import Lab
from meshwright.lab.mapping_page import crossing_words, explanation, headline, mapping_document, mapping_page, notes, planned_document
from meshwright.say.document import Table

FAST = a_trial("pp", predicted_s=2.1, measured_s=2.0)
SLOW = a_trial("tp", predicted_s=9.0, measured_s=14.0, others_share=0.4)


def test_the_headline_says_what_mapping_is_worth_and_whether_the_order_was_right():
    assert headline([FAST, SLOW]) == (
        "The best mapping is pp across with 2 s a step, the worst tp across with 14 s: 7.0 times as long for the same work. "
        "Where two mappings differ by more than the noise, the forecast has them in the measured order. "
        "Of the 2 best, 1 were predicted within 15 %."
    )
    wrong = a_trial("dp", predicted_s=1.0, measured_s=3.0)
    assert "The forecast has the wrong order of pp across and dp across, which differ by more than the noise." in headline([FAST, wrong])


def test_what_crosses_hides_and_shows_is_said_in_the_words_of_the_record():
    text = explanation(FAST)
    assert text.startswith("pp across: the pipeline sends ") and "across the racks" in text
    assert text.endswith("In the run, compute takes 1.5 s of a step; next are bubble with 500 ms and exposed tp with 0 s.")


def test_groups_that_cross_in_part_are_counted():
    assert crossing_words(a_mapping("pp", 1.0)) == "pp, dp (2 of 4 groups)"


def test_a_loud_machine_is_said_to_be_one():
    assert len(notes([FAST])) == 1
    assert "other programs used up to 40 % of the core time during 1 of the 2 runs" in notes([FAST, SLOW])[1]


def test_the_document_has_the_shortest_measured_step_first():
    document = mapping_document([SLOW, FAST], Lab(), "llama-2m")
    table = next(block for block in document.blocks if isinstance(block, Table))
    assert [row[0] for row in table.rows] == ["pp across", "tp across"] and table.rows[1][4] == "-36 %"
    assert [one["median_step_s"] for one in document.values["mappings"]] == [2.0, 14.0]
    planned = planned_document([FAST.mapping], Lab(), "llama-2m")
    assert planned.values["mappings"][0]["predicted_step_s"] == 2.1 and "median_step_s" not in planned.values["mappings"][0]


class Words(HTMLParser):
    """The text of a page and the names of its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.tags = "", []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text += data


def test_the_page_shows_a_predicted_and_a_measured_bar_for_each():
    words = Words()
    words.feed(mapping_page([SLOW, FAST], Lab(), "llama-2m"))
    assert words.tags.count("svg") == 4 and "script" not in words.tags
    assert headline([FAST, SLOW]) in words.text and explanation(SLOW) in words.text

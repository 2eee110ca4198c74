"""The top of every exported file: a few comment lines, whatever a plan's name holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from meshwright.plan.export import exported
from meshwright.plan.export.heading import WIDTH, comment, heading, origin
from meshwright.units import seconds


def test_a_plan_in_five_lines(record):
    lines = origin(record)
    assert lines[0].startswith("plan: llama-3.1-405b on azure-gb200-128 (plan file version 1, priced with ")
    assert lines[1] == "layout: tp=4,cp=2,pp=8,vp=8,dp=128,mbs=1, order tp-cp-pp-dp, schedule interleaved, ring context"
    assert lines[2] == "machine: 8192 x gb200 of azure-gb200-128"
    assert lines[3].startswith("job: llama-3.1-405b, ") and len(lines) == 5
    assert lines[4] == f"predicted: {seconds(record.step_s)} per step ({seconds(record.low_s)} to {seconds(record.high_s)})"


def test_context_is_named_only_where_it_is_split(planned):
    assert "context" not in origin(planned("tp=2,dp=32"))[1]


def test_what_is_left_to_the_reader_is_a_list_and_nothing_is_none(record):
    lines = heading(record, "Arguments", ["the data", "x " * 100])
    assert lines[0] == "# Arguments, written by meshwright"
    at = lines.index("# Not in this file; set by hand:")
    assert lines[at + 1] == "# - the data" and lines[at + 2].startswith("# - x x") and lines[at + 3].startswith("#   x x")
    assert "# Not in this file; set by hand:" not in heading(record, "Arguments", [])


@given(st.text(max_size=400), st.booleans(), st.sampled_from(["", "  "]))
def test_every_line_of_a_comment_is_one_and_no_word_is_lost(text, bullet, indent):
    lines = comment(text, bullet, indent).split("\n")
    if not text.split():
        assert lines == [""]
        return
    assert all(line.startswith(f"{indent}# ") and len(line.splitlines()) == 1 for line in lines)
    words = " ".join(line.removeprefix(f"{indent}# ") for line in lines).split()
    assert words == (["-"] if bullet else []) + text.split()


def test_long_lines_are_wrapped_and_long_words_stay_whole():
    assert all(len(line) <= WIDTH + 2 for line in comment("word " * 200).split("\n"))
    assert comment("y" * 500) == f"# {'y' * 500}"


@pytest.mark.parametrize("end", ["\n", "\r", "\x85", "\u2028", "\u2029", "\x0b"])
def test_no_character_of_a_name_ends_the_comment(planned, end):
    plan = replace(planned("tp=2,dp=32,order=tp-cp-dp-pp"), name=f"mine{end}evil: 1")
    assert "evil" not in yaml.safe_load(exported(plan, "megatron-bridge"))
    assert all(line.startswith("#") for line in heading(plan, "Arguments", []))

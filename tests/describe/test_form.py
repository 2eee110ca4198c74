"""Tables of files: known keys and types only, and a complaint that names the first bad key, its place and a fix."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from meshwright.describe.form import Checked, checked, located
from meshwright.errors import InputError


class LinkTable(Checked):
    Gbit_per_s: float
    planes: int = 1


class TierTable(Checked):
    name: str
    link: str | LinkTable = "ndr"


class SiteTable(Checked):
    num_nodes: int = 1
    note: str = ""
    tiers: list[TierTable] = Field(default_factory=list)
    samples: dict[str, int] = Field(default_factory=dict)


def complaint(table: object) -> InputError:
    with pytest.raises(InputError) as caught:
        checked(SiteTable, table, "site.toml")
    return caught.value


def test_a_table_in_form_becomes_a_value():
    table = {"num_nodes": 4, "tiers": [{"name": "rack", "link": {"Gbit_per_s": 400}}, {"name": "hall"}]}
    site = checked(SiteTable, table, "site.toml")
    assert (site.num_nodes, site.tiers[1].link) == (4, "ndr")
    assert site.tiers[0].link == LinkTable(Gbit_per_s=400.0)


@pytest.mark.parametrize(
    ("table", "what", "where", "fix"),
    [
        ({"num_nodes": "4"}, "num_nodes is '4'", "num_nodes", "write a whole number: num_nodes = 8"),
        ({"num_nodes": True}, "num_nodes is True", "num_nodes", "write a whole number: num_nodes = 8"),
        ({"num_node": 4}, "unknown key 'num_node'", "num_node", "did you mean num_nodes?"),
        ({"tiers": [{}]}, "tiers.0.name is missing", "tiers.0.name", "add name = ..."),
        ({"tiers": [{"name": "a", "lnk": 1}]}, "unknown key 'lnk'", "tiers.0.lnk", "did you mean link?"),
        ({"samples": {"64": 1.5}}, "samples.64 is 1.5", "samples.64", "write a whole number: samples = 8"),
    ],
)
def test_the_complaint_names_key_place_and_fix(table, what, where, fix):
    error = complaint(table)
    assert (error.what, error.where, error.fix) == (what, f"{where} in site.toml", fix)


@pytest.mark.parametrize(
    ("link", "what", "fix"),
    [
        ({"Gbit_per_s": "fast"}, "tiers.0.link.Gbit_per_s is 'fast'", "write a number: Gbit_per_s = 1.5"),
        ({}, "tiers.0.link.Gbit_per_s is missing", "add Gbit_per_s = ..."),
        ({"Gbit_per_s": 1, "plane": 2}, "unknown key 'plane'", "did you mean planes?"),
        (3, "tiers.0.link is 3", 'write a text in quotes: link = "..."'),
    ],
)
def test_of_a_value_that_may_be_a_name_or_a_table_the_form_that_was_chosen_is_talked_about(link, what, fix):
    error = complaint({"tiers": [{"name": "rack", "link": link}]})
    assert (error.what, error.fix) == (what, fix)


def test_further_findings_are_counted():
    assert complaint({"num_nodes": "4", "note": 3, "other": 1}).what.endswith("(and 2 more)")


@pytest.mark.parametrize("key", ["str", "[key]", "Table", "LinkTable"])
def test_a_key_called_like_a_type_is_an_unknown_key_like_any_other(key):
    assert complaint({key: 1}).what == f"unknown key {key!r}"
    assert complaint({"tiers": [{"name": "a", key: 1}]}).where == f"tiers.0.{key} in site.toml"


def test_a_long_value_is_shown_in_part():
    what = complaint({"num_nodes": "x" * 100}).what
    assert f"'{'x' * 56}..." in what and "x" * 57 not in what


@pytest.mark.parametrize("table", [[], 3, None, "text"])
def test_what_is_no_table_at_all(table):
    assert complaint(table).where == "the whole table in site.toml"


@given(
    table=st.recursive(
        st.none() | st.integers() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(st.sampled_from(["num_nodes", "tiers", "link", "name", "samples", "str", "xTable"]), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_whatever_a_file_holds_the_answer_is_a_value_or_a_complaint_with_its_place(table):
    try:
        site = checked(SiteTable, table, "site.toml")
    except InputError as error:
        assert error.where.endswith("site.toml") and error.fix
    else:
        assert site.model_dump(exclude_unset=True) == table


def test_complaints_from_within_get_the_name_of_their_file():
    for where, expected in (("head_dim", "head_dim in mine.toml"), ("", "mine.toml")):
        with pytest.raises(InputError) as caught, located("mine.toml"):
            raise InputError("it does not divide", where=where, fix="state it")
        assert (caught.value.what, caught.value.where, caught.value.fix) == ("it does not divide", expected, "state it")


def test_other_faults_pass_through_unchanged():
    with pytest.raises(ZeroDivisionError), located("mine.toml"):
        raise ZeroDivisionError

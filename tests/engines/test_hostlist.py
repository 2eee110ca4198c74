"""Lists of hosts, opened and folded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.engines.hostlist import folded, opened
from meshwright.errors import InputError


@pytest.mark.parametrize(
    "text, hosts",
    [
        ("a", ["a"]),
        ("a,b c\nd", ["a", "b", "c", "d"]),
        ("r[0-1]h[0-1]", ["r0h0", "r0h1", "r1h0", "r1h1"]),
        ("n[08-11,20]", ["n08", "n09", "n10", "n11", "n20"]),
        ("n[1,3],login.x-y", ["n1", "n3", "login.x-y"]),
        ("", []),
    ],
)
def test_a_list_is_opened(text, hosts):
    assert opened(text) == hosts


@pytest.mark.parametrize(
    "text, what",
    [
        ("n[1-", "a bracket of 'n[1-' is not closed"),
        ("n]1", "a bracket of 'n]1' is not closed"),
        ("n[b-c]", "[b-c] is no range of numbers"),
        ("n[3-1]", "[3-1] is no range of numbers"),
        ("n[0-999999999]", "[0-999999999] is no range of numbers"),
        ("a[0-999]b[0-999]", "'a[0-999]b[0-999]' names 1,000,000 hosts"),
        ("a,b,a", "host a is named twice"),
        ("-oProxyCommand=x", "'-oProxyCommand=x' is no name of a host"),
        ("a;b", "'a;b' is no name of a host"),
    ],
)
def test_a_bad_list_is_refused(text, what):
    with pytest.raises(InputError) as caught:
        opened(text, "--nodes")
    assert caught.value.what == what and caught.value.where == "--nodes"


@pytest.mark.parametrize(
    "hosts, text",
    [
        (["r0h0", "r0h1", "r1h0"], "r0h[0-1],r1h0"),
        (["n08", "n09", "n10", "n12"], "n[08-10,12]"),
        (["b", "a"], "b,a"),
        ([], ""),
        (["n9", "n10"], "n9,n10"),
    ],
)
def test_hosts_are_folded(hosts, text):
    assert folded(hosts) == text


@given(st.lists(st.from_regex(r"[a-z]{1,2}[0-9]{1,3}", fullmatch=True), unique=True, max_size=30))
def test_what_is_folded_opens_again(hosts):
    assert opened(folded(hosts)) == hosts

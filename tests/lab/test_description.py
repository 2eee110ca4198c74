"""A lab's names, addresses and rates."""

from __future__ import annotations

import pytest

from meshwright.errors import InputError
from meshwright.lab.description import Host, Lab, rate_of, rate_text


def test_hosts_racks_and_spine_are_namespaces():
    lab = Lab(num_racks=2, num_hosts=1, num_planes=2)
    assert list(lab.namespaces()) == [
        *("mw-lab-r0h0", "mw-lab-r1h0"),
        *("mw-lab-p0rack0", "mw-lab-p0rack1", "mw-lab-p0spine"),
        *("mw-lab-p1rack0", "mw-lab-p1rack1", "mw-lab-p1spine"),
    ]


def test_every_host_has_its_own_address():
    lab = Lab(num_racks=8, num_hosts=16)
    assert len({lab.address(host) for host in lab.hosts}) == 128
    assert lab.address(Host(0, 0)) == "10.65.0.1"


def test_with_several_planes_a_host_has_an_address_of_its_own():
    lab = Lab(num_planes=2)
    assert (lab.address(Host(1, 0)), lab.plane_address(Host(1, 0), 1), lab.interface) == ("10.64.0.3", "10.66.0.3", "own0")


def test_places_for_ranks_fill_host_after_host():
    assert [str(Lab().host_at(slot)) for slot in range(8)] == ["r0h0", "r0h0", "r0h1", "r0h1", "r1h0", "r1h0", "r1h1", "r1h1"]


@pytest.mark.parametrize("text, bits_per_s", [("2gbit", 2e9), ("100mbit", 1e8), ("1.5Gbit", 1.5e9), ("500kbit", 5e5)])
def test_rates_are_written_as_tc_writes_them(text, bits_per_s):
    assert rate_of(text, "--rail") == bits_per_s
    assert rate_of(rate_text(bits_per_s), "--rail") == bits_per_s


@pytest.mark.parametrize("text", ["", "fast", "100", "100mbps", "-5mbit", "0mbit", "999gbit"])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(InputError, match="--uplink is"):
        rate_of(text, "--uplink")


@pytest.mark.parametrize(
    "parts, what",
    [
        ({"name": "a-b"}, "'a-b' is no name for a lab"),
        ({"name": "../x"}, "is no name for a lab"),
        ({"num_racks": 0}, "--racks is 0"),
        ({"num_racks": 20, "num_hosts": 20}, "400 hosts"),
        ({"num_planes": 9}, "--planes is 9"),
        ({"rail_bits_per_s": 0.0}, "--rail is 0 bits per second"),
    ],
)
def test_a_lab_that_cannot_be_is_refused(parts, what):
    with pytest.raises(InputError, match=what):
        Lab(**parts)

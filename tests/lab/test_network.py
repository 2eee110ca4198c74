"""The commands of a lab's network, read without running them."""

from __future__ import annotations

import pytest

from meshwright.errors import InputError
from meshwright.lab.description import Lab
from meshwright.lab.network import chosen, down_commands, links, rate_commands, switch_commands, up_commands


def test_every_command_stays_inside_the_labs_own_namespaces():
    lab = Lab(num_racks=3, num_hosts=2, num_planes=2)
    own = set(lab.namespaces())
    for command in up_commands(lab):
        named = {word for word in command if word.startswith("mw-")}
        assert named and named <= own, command


def test_namespaces_are_made_before_they_are_used():
    made: set[str] = set()
    for command in up_commands(Lab(num_planes=2)):
        if command[:3] == ("ip", "netns", "add"):
            made.add(command[3])
        assert {word for word in command if word.startswith("mw-")} <= made


def test_every_link_is_shaped_at_both_ends():
    lab = Lab()
    shaped = [(command[2], command[6]) for command in up_commands(lab) if command[0] == "tc"]
    assert sorted(shaped) == sorted(end for link in links(lab) for end in link.ends)
    assert len(shaped) == 2 * (4 + 2)


def test_planes_share_the_rates_evenly():
    found = [link for link in links(Lab(num_planes=4, uplink_bits_per_s=2e8)) if link.name == "rack0"]
    assert [(link.plane, link.bits_per_s) for link in found] == [(plane, 5e7) for plane in range(4)]


def test_a_bucket_is_a_millisecond_or_some_packets():
    uplink, rail = chosen(Lab(), "rack0", None)[0], chosen(Lab(), "r0h0", None)[0]
    words = [next(rate_commands(link, link.bits_per_s)) for link in (uplink, rail)]
    assert [command[command.index("burst") + 1] for command in words] == ["20000b", "250000b"]
    assert [command[command.index("rate") + 1] for command in words] == ["100000000bit", "2000000000bit"]


def test_one_plane_needs_no_routes_and_several_lead_to_every_other_host():
    assert not [command for command in up_commands(Lab()) if "route" in command]
    routes = [command for command in up_commands(Lab(num_planes=2)) if "route" in command]
    assert len(routes) == 4 * 3
    assert all(command.count("nexthop") == 2 for command in routes)


def test_links_are_cut_at_the_switch():
    host, uplink = chosen(Lab(), "r1h0", None)[0], chosen(Lab(), "rack1", None)[0]
    assert list(switch_commands(host, is_up=False)) == [("ip", "-n", "mw-lab-p0rack1", "link", "set", "h0", "down")]
    assert list(switch_commands(uplink, is_up=True)) == [("ip", "-n", "mw-lab-p0rack1", "link", "set", "up0", "up")]


def test_a_link_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="no link is named 'rack9'"):
        chosen(Lab(), "rack9", None)
    with pytest.raises(InputError, match="no plane 1"):
        chosen(Lab(), "rack0", 1)


def test_down_removes_what_it_is_given():
    assert list(down_commands(["mw-lab-x"])) == [("ip", "netns", "del", "mw-lab-x")]

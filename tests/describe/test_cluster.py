"""Tiers must nest; resizing keeps the kind of machine."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.describe.cluster import Cluster, Tier, beyond_note
from meshwright.describe.load import accelerator, load_cluster
from meshwright.errors import InputError


def tier(name, count, installed=None):
    return Tier(name=name, link="x", num_accelerators=count, num_installed=installed or count, bytes_per_s=1e9, latency_s=1e-6)


def test_tiers_must_nest():
    with pytest.raises(InputError, match="not a multiple of the 8 in one 'node' domain"):
        Cluster(name="c", accelerator=accelerator("h100"), tiers=(tier("node", 8), tier("fabric", 12)), accelerators_per_node=8)


def test_no_more_are_used_than_installed():
    with pytest.raises(InputError, match="uses 8 of 4"):
        tier("node", 8, installed=4)


def test_a_cluster_needs_a_tier():
    with pytest.raises(InputError, match="no network tier"):
        Cluster(name="c", accelerator=accelerator("h100"), tiers=(), accelerators_per_node=8)


@pytest.mark.parametrize(("count", "inner", "nodes"), [(8192, 64, 2048), (16384, 64, 4096), (64, 64, 16), (16, 16, 4), (96, 48, 24)])
def test_resized(count, inner, nodes):
    cluster = load_cluster("azure-gb200-128").resized(count)
    assert [t.num_accelerators for t in cluster] == [inner, count]
    assert cluster.num_nodes == nodes


def test_resized_to_nothing_is_refused():
    with pytest.raises(InputError, match="at least one accelerator"):
        load_cluster("hgx-h200-ndr").resized(0)


def node_of(link_routing, count=8, per_node=8):
    return Cluster(
        name="c",
        accelerator=accelerator("h100"),
        tiers=(replace(tier("node", count), routing=link_routing),),
        accelerators_per_node=per_node,
    )


def two_nodes():
    tiers = (replace(tier("node", 8), routing="scale-up"), tier("fabric", 16))
    return Cluster(name="two", accelerator=accelerator("h100"), tiers=tiers, accelerators_per_node=8)


@pytest.mark.parametrize("routing", ["scale-up", "adaptive"])
def test_a_node_does_not_grow(routing):
    with pytest.raises(InputError, match="512 accelerators are more than the 8 of c") as caught:
        node_of(routing).resized(512)
    assert "describe the network between such nodes as a further tier, or use at most 8" in caught.value.fix
    assert node_of(routing).resized(5).num_accelerators == 5


def test_a_scale_up_domain_of_several_nodes_does_not_grow():
    rack = node_of("scale-up", count=64, per_node=4)
    assert not rack.can_have(128) and rack.can_have(64)


def test_a_network_grows_and_the_answer_says_so():
    lan = node_of("hashed", count=8, per_node=1)
    assert lan.resized(64).num_nodes == 64
    assert beyond_note(lan, lan.resized(8)) == ""
    assert "64 accelerators are more than the 8 described" in beyond_note(lan, lan.resized(64))


@pytest.mark.parametrize(
    ("count", "sizes", "nodes"), [(8, [8, 8], 1), (10, [5, 10], 2), (12, [6, 12], 2), (14, [7, 14], 2), (16, [8, 16], 2), (32, [8, 32], 4)]
)
def test_a_number_is_spread_evenly_over_the_nodes_there_are(count, sizes, nodes):
    resized = two_nodes().resized(count)
    assert [t.num_accelerators for t in resized] == sizes
    assert resized.num_nodes == nodes and resized.used_per_node == sizes[0]


@pytest.mark.parametrize(("count", "fix"), [(9, "use 8 or 10"), (11, "use 10 or 12"), (15, "use 14 or 16"), (17, "use 16 or 18")])
def test_a_number_that_is_not_is_refused_with_the_nearest_that_are(count, fix):
    with pytest.raises(InputError, match=f"{count} accelerators do not spread evenly over nodes of 8") as caught:
        two_nodes().resized(count)
    assert caught.value.fix == fix


@pytest.mark.parametrize(("count", "nearest"), [(4095, [4088, 4096]), (127, [126, 128]), (1023, [1016, 1024])])
def test_no_number_tears_the_domains_of_a_large_machine_apart(count, nearest):
    machine = load_cluster("dgx-h100-superpod")
    assert not machine.can_have(count) and machine.nearest_sizes(count) == nearest


@given(count=st.integers(1, 3000), name=st.sampled_from(["dgx-h100-superpod", "gb200-nvl72-ndr", "workstation-8x"]))
def test_a_machine_is_resized_where_it_says_so(count, name):
    machine = load_cluster(name)
    if not machine.can_have(count):
        with pytest.raises(InputError):
            machine.resized(count)
        assert all(machine.can_have(size) for size in machine.nearest_sizes(count))
        return
    resized = machine.resized(count)
    assert resized.num_accelerators == count and resized.used_per_node <= resized.accelerators_per_node
    inner = resized.tiers[0]
    assert inner.num_accelerators <= inner.num_installed
    if count <= machine.num_installed:
        assert count // inner.num_accelerators <= machine.num_installed // inner.num_installed
        assert resized.num_nodes <= math.ceil(machine.num_installed / machine.accelerators_per_node)


def test_domains_of_three_tiers_nest():
    tiers = (replace(tier("node", 8), routing="scale-up"), tier("rack", 64), tier("fabric", 512))
    machine = Cluster(name="three", accelerator=accelerator("h100"), tiers=tiers, accelerators_per_node=8)
    assert [t.num_accelerators for t in machine.resized(80)] == [8, 40, 80]
    assert [t.num_accelerators for t in machine.resized(6)] == [6, 6, 6]
    for size in filter(machine.can_have, range(1, 513)):
        assert machine.resized(size).num_accelerators == size


def test_the_whole_of_a_domain_is_used_before_a_second_one():
    machine = load_cluster("gb200-nvl72-ndr")  # 64 of 72 in a rack are in use as it is described
    assert [t.num_accelerators for t in machine.resized(72)] == [72, 72]
    assert [t.num_accelerators for t in machine.resized(576)] == [72, 576]  # nine racks of 64 are more than there are


def test_what_is_a_network():
    machine = load_cluster("dgx-h100-superpod")
    for size in (8, 12, 1024):
        resized = machine.resized(size)
        assert [resized.is_fabric(t) for t in resized] == [False, True]
    assert not any(cluster.is_fabric(cluster.tiers[0]) for cluster in (node_of("scale-up"), node_of("adaptive")))
    assert node_of("hashed", per_node=1).is_fabric(node_of("hashed", per_node=1).tiers[0])


@pytest.mark.parametrize(("count", "sizes"), [(40, [8, 8, 40]), (264, [8, 24, 264]), (96, [8, 32, 96]), (48, [8, 24, 48])])
def test_networks_within_networks_are_cut_to_what_divides(count, sizes):
    """Whole nodes are always to be had: leaves that do not come out even are priced as smaller ones."""
    node = replace(tier("node", 8), routing="scale-up")
    tiers = (node, *(replace(tier(name, size), routing="adaptive") for name, size in (("leaf", 32), ("fabric", 512))))
    machine = Cluster(name="c", accelerator=accelerator("h100"), tiers=tiers, accelerators_per_node=8)
    assert [each.num_accelerators for each in machine.resized(count).tiers] == sizes
    assert all(machine.can_have(8 * number) for number in range(1, 65))


@pytest.mark.parametrize(("count", "sizes"), [(3, [1, 3]), (4, [2, 4]), (2, [2, 2])])
def test_links_within_a_node_are_cut_to_what_divides(count, sizes):
    pair, node = replace(tier("pair", 2), routing="scale-up"), replace(tier("node", 4), routing="adaptive")
    machine = Cluster(name="c", accelerator=accelerator("h100"), tiers=(pair, node), accelerators_per_node=4)
    assert [each.num_accelerators for each in machine.resized(count).tiers] == sizes


@pytest.mark.parametrize("count", [1000, 1056, 5000, 11616])
def test_racks_beyond_those_described_are_filled_like_them(count):
    small, large = load_cluster("gb200-nvl72-ndr").resized(count), load_cluster("azure-gb200-128").resized(count)
    assert [each.num_accelerators for each in small.tiers] == [each.num_accelerators for each in large.tiers]


@pytest.mark.parametrize(("first", "then"), [(4, 8), (1, 2), (2, 16), (512, 64)])
def test_a_machine_cut_and_grown_again_is_the_one_cut_at_once(first, then):
    machine = load_cluster("hgx-h200-ndr")
    again, at_once = machine.resized(first).resized(then), machine.resized(then)
    assert [each.num_accelerators for each in again.tiers] == [each.num_accelerators for each in at_once.tiers]

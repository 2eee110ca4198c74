"""Tiers must nest; resizing keeps the kind of machine."""

import pytest

from meshwright.describe.cluster import Cluster, Tier
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


@pytest.mark.parametrize(("count", "inner", "nodes"), [(8192, 64, 2048), (16384, 64, 4096), (64, 64, 16), (16, 16, 4), (96, 32, 24)])
def test_resized(count, inner, nodes):
    cluster = load_cluster("azure-gb200-128").resized(count)
    assert [t.num_accelerators for t in cluster] == [inner, count]
    assert cluster.num_nodes == nodes


def test_resized_to_nothing_is_refused():
    with pytest.raises(InputError, match="at least one accelerator"):
        load_cluster("hgx-h200-ndr").resized(0)

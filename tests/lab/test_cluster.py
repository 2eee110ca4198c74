"""A lab as a cluster: tiers with the rates of its links, read back from its file."""

from __future__ import annotations

import pytest

from meshwright.describe.load import load_cluster
from meshwright.lab.cluster import cluster_name, lab_cluster, write_description
from meshwright.lab.description import Lab


def test_ranks_of_a_host_share_its_link_and_ranks_of_a_rack_its_uplink():
    tiers = {tier.name: tier for tier in lab_cluster(Lab())}
    assert [(tier.name, tier.num_accelerators) for tier in tiers.values()] == [("host", 2), ("rack", 4), ("spine", 8)]
    assert tiers["rack"].bytes_per_s == 2e9 / 8 / 2
    assert tiers["spine"].bytes_per_s == 1e8 / 8 / 4


def test_an_uplink_faster_than_the_rails_does_not_make_a_rank_faster():
    tiers = {tier.name: tier for tier in lab_cluster(Lab(uplink_bits_per_s=1e11))}
    assert tiers["spine"].bytes_per_s == tiers["rack"].bytes_per_s


@pytest.mark.parametrize(
    "parts, names",
    [({"num_racks": 1}, ["host", "rack"]), ({"num_hosts": 1}, ["host", "spine"]), ({"num_racks": 1, "num_hosts": 1}, ["host"])],
)
def test_a_tier_that_joins_nothing_is_left_out(parts, names):
    assert [tier.name for tier in lab_cluster(Lab(**parts))] == names


@pytest.mark.parametrize("lab", [Lab(), Lab(num_planes=4), Lab(num_racks=3, num_hosts=1, num_ranks=1, name="three")])
def test_the_description_reads_back_as_the_same_cluster(lab, tmp_path):
    read, made = load_cluster(write_description(lab, tmp_path / "lab.toml")), lab_cluster(lab)
    assert (read.name, read.accelerators_per_node, len(read.tiers)) == (cluster_name(lab), lab.num_ranks, len(made.tiers))
    for one, other in zip(read, made, strict=True):
        assert (one.name, one.num_accelerators, one.num_planes, one.routing) == (
            other.name,
            other.num_accelerators,
            other.num_planes,
            other.routing,
        )
        assert one.bytes_per_s == pytest.approx(other.bytes_per_s, rel=1e-12)
    assert read.accelerator.dense_flops_per_s == pytest.approx(made.accelerator.dense_flops_per_s)
    assert read.accelerator.architecture == "cpu"

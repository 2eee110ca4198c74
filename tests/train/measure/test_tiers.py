"""Tiers of a cluster: which groups are timed, and that what is exchanged is what is written down."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from on_exchanges import tiers_timed
from ranks import Pools

from meshwright.describe.load import load_cluster
from meshwright.describe.profile import load_profile, profile_text, read_profile
from meshwright.errors import InputError
from meshwright.lab.cluster import lab_cluster
from meshwright.lab.description import Lab
from meshwright.train.measure.tiers import Placing, check_ranks, placings, whole_payload

FIXTURES = Path(__file__).parents[2] / "fixtures"


def test_every_placement_that_a_layout_can_have_is_timed_once():
    found = [one.members for one in placings(lab_cluster(Lab()))]
    assert found == [(2, 2, 2), (1, 2, 2), (1, 1, 2), (2, 4, 4), (1, 2, 4), (2, 4, 8)]


def test_groups_hold_every_rank_once():
    for one in placings(lab_cluster(Lab(num_racks=3))):
        groups = one.groups(12)
        assert sorted(rank for group in groups for rank in group) == list(range(12)) and {len(group) for group in groups} == {one.size}
    assert Placing(2, 4, (1, 1, 2)).groups(8) == [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize("num_ranks", [2, 3, 6, 8, 24])
def test_a_payload_divides_among_all_ranks(num_ranks):
    assert whole_payload(524_288, num_ranks) % (num_ranks * 4) == 0
    assert abs(whole_payload(524_288, num_ranks) - 524_288) < num_ranks * 512


def test_all_ranks_time_all_tiers_and_the_profile_reads_back(pools: Pools, tmp_path):
    found = pools.of(4).run(tiers_timed, str(FIXTURES / "profile_of_cores.json"))
    profile = read_profile(found[0], "test")
    assert [tier.name for tier in profile.tiers] == ["host", "spine"]
    assert {one.members for one in profile.between_hosts} == {(2, 2), (1, 2), (2, 4)}
    assert all(one.core_s > 0 for one in profile.between_hosts)
    assert profile.on_one_machine == load_profile(FIXTURES / "profile_of_cores.json").on_one_machine
    path = tmp_path / "profile.json"
    path.write_text(profile_text(profile))
    assert load_profile(path) == profile


def test_members_that_do_not_match_the_tiers_are_refused():
    profile = load_profile(FIXTURES / "profile_of_cores.json")
    wrong = replace(profile, collectives=(replace(profile.collectives[0], members=(1, 2, 2)),))
    with pytest.raises(InputError, match="has members="):
        read_profile({"kind": "meshwright hardware profile", "version": 1, **_values(wrong)}, "test")


def _values(profile):
    import json

    return json.loads(profile_text(profile))


def test_gpus_and_a_wrong_number_of_ranks_are_refused():
    with pytest.raises(InputError, match="tiers are timed between processors only"):
        check_ranks(load_cluster("dgx-h100-superpod"), 8)
    with pytest.raises(InputError, match="has 8 accelerators, and 4 ranks were started"):
        check_ranks(lab_cluster(Lab()), 4)

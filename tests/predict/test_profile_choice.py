"""Which hardware profile prices a job: the one that was named, this machine's own, or none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.describe.cluster import Cluster
from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.describe.profile import Profile, TierTimed, load_profile, profile_text, usual_path
from meshwright.errors import InputError
from meshwright.predict import profile_choice
from meshwright.predict.profile_choice import check_fits, with_profile
from meshwright.predict.software import Software, software

FIXTURES = Path(__file__).parents[1] / "fixtures"
CARD = load_profile(FIXTURES / "profile_of_a_card.json")
CORES = load_profile(FIXTURES / "profile_of_cores.json")


@pytest.fixture
def here(tmp_path, monkeypatch) -> Cluster:
    """This machine, on which the profile of cores was made; the user's cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(profile_choice, "processor_name", lambda: "AMD EPYC")
    return load_cluster("this-machine-2x4")


def keep(profile: Profile) -> None:
    usual_path().parent.mkdir(parents=True, exist_ok=True)
    usual_path().write_text(profile_text(profile))


def chosen(cluster: Cluster, choice: Profile | str | Path = "", model: str = "llama-2m", workload: str = "python-stdlib") -> Software:
    return with_profile(software(), load_model(model), cluster, load_workload(workload), choice)


def test_a_named_profile_prices_and_is_named_in_the_note():
    cluster = load_cluster("hgx-h200-ndr").resized(8)
    for choice in (CARD, FIXTURES / "profile_of_a_card.json", str(FIXTURES / "profile_of_a_card.json")):
        stack = chosen(cluster, choice, "llama-3.1-8b", "pretrain-1t")
        assert stack.profile == CARD and "compute as timed here: profile of NVIDIA H200" in stack.note


def test_this_machines_own_profile_is_used_without_a_word(here):
    assert chosen(here).profile is None
    keep(CORES)
    assert chosen(here).profile == CORES


def test_none_leaves_even_ones_own_profile_out(here):
    keep(CORES)
    assert chosen(here, "none") == software()


def test_the_own_profile_says_nothing_of_other_machines(here):
    keep(CORES)
    assert chosen(load_cluster("dgx-h100-superpod"), "", "llama-3.1-8b", "pretrain-1t").profile is None


@pytest.mark.parametrize(
    "unfit",
    [
        replace(CORES, device="Intel Xeon, 2 cores"),  # made on another machine that shared the folder
        CARD,
        replace(CORES, attentions=()),
    ],
    ids=["another processor", "a GPU", "nothing that prices the job"],
)
def test_an_own_profile_that_does_not_fit_is_left_out_unless_it_is_named(unfit, here):
    keep(unfit)
    assert chosen(here).profile is None
    with pytest.raises(InputError):
        chosen(here, usual_path())


def test_an_own_profile_that_is_damaged_is_left_out(here):
    keep(CORES)
    usual_path().write_text("{")
    assert chosen(here).profile is None


def test_what_the_named_profile_cannot_price_is_refused(here):
    with pytest.raises(InputError, match="no products of experts in fp32"):
        chosen(here, CORES, "mixtral-8x7b")
    with pytest.raises(InputError, match="cannot read the hardware profile"):
        chosen(here, "nowhere.json")


@pytest.mark.parametrize(
    ("profile", "cluster", "fits"),
    [
        (CARD, "hgx-h200-ndr", True),
        (CARD, "dgx-h100-superpod", False),
        (CORES, "hgx-h200-ndr", False),
        (CORES, "this-machine-2x4", True),
        (CARD, "this-machine-2x4", False),
        (replace(CARD, device="A card nobody knows"), "hgx-h200-ndr", False),
    ],
)
def test_a_profile_fits_its_own_kind_of_device(profile, cluster, fits, here):
    if fits:
        check_fits(profile, load_cluster(cluster), "profile")
        return
    with pytest.raises(InputError, match=f"the profile is of {profile.device}, and {cluster} has") as caught:
        check_fits(profile, load_cluster(cluster), "a place")
    assert caught.value.where == "a place" and "profile='none'" in caught.value.fix


def test_a_cluster_with_links_has_a_profile_of_its_own(here):
    keep(CORES)
    lab = replace(here, name="this-machine-lab")
    assert chosen(lab).profile is None  # one machine's profile would say that its links cost nothing
    usual_path(lab.name).write_text(profile_text(CORES))
    assert chosen(lab).profile == CORES


def test_a_profile_with_the_tiers_of_another_cluster_is_refused(here):
    tiers = tuple(TierTimed(name=name, num_accelerators=4, bytes_per_s=1e9) for name in ("host", "spine"))
    with pytest.raises(InputError, match="the profile's tiers are host, spine, and this-machine-2x4 has rack, fabric"):
        check_fits(replace(CORES, tiers=tiers), here, "lab.json")

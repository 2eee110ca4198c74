"""Prices, regions and halls: what is looked up, and what a wrong name gets."""

import pytest

from meshwright.describe import economics
from meshwright.errors import InputError


def test_prices_come_cheapest_first():
    found = economics.prices("H100")
    assert [p.usd_per_accelerator_hour for p in found] == sorted(p.usd_per_accelerator_hour for p in found)
    assert {p.accelerator for p in found} == {"h100"}


def test_a_providers_price_of_a_kind():
    price = economics.price("h100", provider="Azure")
    assert (price.usd_per_accelerator_hour, price.kind, price.date) == (12.29, "on-demand", "2026-11-09")
    assert economics.price("h100", provider="aws", kind="spot").usd_per_accelerator_hour == 2.5938
    assert economics.price("gb200", provider="coreweave", kind="reserved").usd_per_accelerator_hour == pytest.approx(10.5 * 0.4)


def test_without_a_provider_the_median_stands():
    listed = economics.prices("h200", kind="on-demand")
    assert economics.price("h200") == listed[(len(listed) - 1) // 2]


def test_a_recalled_price_says_so():
    assert "recalled" in economics.price("gb200", provider="azure").source.text


def test_a_price_nobody_lists_names_what_is_listed():
    with pytest.raises(InputError, match="no spot price is listed for gb200 from azure") as error:
        economics.price("gb200", provider="azure", kind="spot")
    assert error.value.fix == "choose from coreweave reserved, coreweave on-demand, azure on-demand"
    with pytest.raises(InputError, match="no on-demand price is listed for rtx-4090") as error:
        economics.price("rtx-4090")
    assert error.value.fix == "give a price of your own"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: economics.prices("h100", provider="azur"), "did you mean azure"),
        (lambda: economics.prices("h100", kind="lease"), "choose from on-demand, spot, reserved"),
        (lambda: economics.prices("h1000"), "did you mean h100"),
        (lambda: economics.region("virgina"), "did you mean virginia"),
    ],
)
def test_wrong_names_get_the_nearest(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_regions_answer_to_their_providers_names():
    assert economics.region("eastus") == economics.region("us-east4") == economics.region("Virginia")
    virginia = economics.region("virginia")
    assert (virginia.grid_gco2e_per_kwh, virginia.method, virginia.year) == (323.05, "operational", 2024)


def test_a_hall_or_the_industrys_mean():
    azure = economics.facility("azure")
    assert (azure.pue, azure.wue_l_per_kwh) == (1.17, 0.27)
    unknown = economics.facility("coreweave")
    assert (unknown.name, unknown.pue) == ("industry", 1.58)
    assert unknown.wue_l_per_kwh is None

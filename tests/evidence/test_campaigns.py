"""Whole campaigns: hours that model cards state, against the planner's."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.evidence.campaigns import CAMPAIGNS_CSV, Campaign, campaigns

HEAD = "model,accelerator,num_accelerators,tokens,gpu_hours,source\n"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    path = tmp_path_factory.mktemp("campaigns") / "one.csv"
    path.write_text(HEAD + "llama-2-7b,A100-80GB,,1e11,9216,a card\n")
    [found] = campaigns(path)
    return found


def test_what_a_card_leaves_open_is_assumed_and_listed(small: Campaign) -> None:
    assert small.forecast.job.num_accelerators == 16  # 9,216 hours are 12.8 accelerators for a month
    assert small.forecast.job.workload.tokens_per_step == 4 * 2**20
    assert "16 accelerators" in small.assumptions and any(text.startswith("layout tp=") for text in small.assumptions)
    assert small.source == "a card"


def test_hours_are_accelerators_times_the_time_to_train(small: Campaign) -> None:
    time_s = small.forecast.time_to_train
    assert time_s is not None
    assert small.predicted_h == pytest.approx(16 * time_s.value / 3600)
    assert small.error_pct == pytest.approx(100 * (small.predicted_h / 9216 - 1))
    low, high = small.interval_h
    assert low < small.predicted_h < high and small.is_covered == (low <= 9216 <= high)


def test_software_that_a_card_does_not_name_has_the_interval_of_any(small: Campaign) -> None:
    assert small.forecast.job.software.kind == "megatron" and not small.forecast.job.software.known
    assert small.forecast.evidence.distance == "far"


def test_an_unknown_model_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(HEAD + "nobody-7b,A100-80GB,,1e11,9216,a card\n")
    with pytest.raises(InputError, match="no model named 'nobody-7b'"):
        campaigns(path)


def test_every_carried_campaign_has_its_source() -> None:
    lines = CAMPAIGNS_CSV.read_text().splitlines()
    assert len(lines) > 3 and all("arXiv" in line or "model card" in line for line in lines[1:])

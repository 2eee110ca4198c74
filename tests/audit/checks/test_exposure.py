"""Exposed communication: 100 ms of a 1 s step are 10 %; 10 GB at 100 GB/s take 100 ms."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from statements import statements, verdicts

from meshwright.audit.checks.exposure import OWN, check
from meshwright.errors import InputError

PROFILE = {"profile": "https://example.org/trace.json.gz"}


@pytest.mark.parametrize(
    "facts, expected",
    [
        ({"exposed_ms": 100, "exposed_pct": 10}, "consistent"),
        ({"exposed_ms": 100, "exposed_pct": 20}, "misleading"),
        ({"exposed_ms": 2000}, "impossible"),
        ({"exposed_pct": 101}, "impossible"),
    ],
)
def test_the_share_follows_from_the_step(facts: dict[str, Any], expected: str) -> None:
    assert verdicts(check, step_s=1.0, **facts)["exposed share"] == expected


@pytest.mark.parametrize(
    "facts, expected",
    [
        ({"traffic_gb": 10, "exposed_ms": 50}, "consistent"),  # 100 ms can hide behind a step of 1 s
        ({"traffic_gb": 200, "exposed_ms": 100}, "impossible"),  # 2 s cannot: 1 s must show
        ({"traffic_gb": 200, "exposed_ms": 990}, "consistent"),
        ({"traffic_gb": 10, "exposed_ms": 300}, "implausible"),  # more than twice the traffic itself
    ],
)
def test_what_takes_longer_than_the_step_cannot_hide(facts: dict[str, Any], expected: str) -> None:
    assert verdicts(check, step_s=1.0, traffic_gb_per_s=100, **facts)[OWN] == expected


def test_without_a_step_what_can_hide_is_unknown() -> None:
    assert verdicts(check, exposed_ms=50, traffic_gb=10, traffic_gb_per_s=100)[OWN] == "unknown"


def test_a_layout_on_a_cluster_gives_the_traffic_itself() -> None:
    """Eight replicas of 70e9 parameters on eight nodes: tens of GB a step over 50 GB/s."""
    job = {"model": "llama-3.1-70b", "seq_len": 8192, "global_batch": 64, "cluster": "dgx-h100-superpod", "layout": "tp=8,dp=8,zero=1"}
    found = statements(check, **job, gpus=64, exposed_ms=10, step_s=10.0)["bytes over bandwidth"]
    assert found.verdict == "consistent" and "GB per GPU and step" in found.arithmetic[0]
    assert verdicts(check, **job, gpus=64, exposed_ms=9000, step_s=10.0)["bytes over bandwidth"] == "implausible"
    with pytest.raises(InputError, match="the layout has 64 ranks, and the claim 32 gpus"):
        verdicts(check, **job, gpus=32, exposed_ms=10)


def test_a_profile_must_be_named_and_be_one(tmp_path: Path) -> None:
    assert verdicts(check, exposed_ms=100) == {"profile": "unsupported"}
    assert verdicts(check, exposed_ms=100, **PROFILE) == {"profile": "consistent"}
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    (tmp_path / "packed.json.gz").write_bytes(gzip.compress(b'{"traceEvents": []}'))
    (tmp_path / "torn.json.gz").write_bytes(gzip.compress(b'{"traceEvents": []}')[:-12])
    (tmp_path / "other.json").write_text('{"events": []}')
    names = ("trace.json", "packed.json.gz", "torn.json.gz", "other.json")
    found = [verdicts(check, tmp_path, exposed_ms=100, profile=name)["profile"] for name in names]
    assert found == ["consistent", "consistent", "unsupported", "unsupported"]
    with pytest.raises(InputError, match=r"no profile at nowhere\.json"):
        verdicts(check, tmp_path, exposed_ms=100, profile="nowhere.json")


def test_nothing_is_stated_about_no_exposed_time() -> None:
    assert verdicts(check, step_s=1.0, **PROFILE) == {}


def test_what_is_no_bound_is_not_called_one() -> None:
    # Bytes depend on the number format of gradients, and the time on where they are added up first: neither is the least possible.
    facts = {"benchmark": "llama31_405b", "cluster": "azure-gb200-128", "layout": "tp=4,cp=2,pp=8,vp=8,dp=128,mbs=1"}
    for step_s in (0.1, 1.27):
        said = statements(check, exposed_ms=1, step_s=step_s, **facts)["bytes over bandwidth"]
        assert "at least" not in " ".join((said.why, *said.arithmetic))
        assert any("ranks of a domain add up first" in line for line in said.arithmetic)

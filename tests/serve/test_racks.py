"""The place of each rank, and its state: every rank once, slow ones by name, and numbers that make no sense left out."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from meshwright.errors import InputError
from meshwright.layout import Layout
from meshwright.plan.plan import read_plan
from meshwright.serve.live import LiveRun
from meshwright.serve.racks import health_of, racks_of

from .conftest import record


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch):
    monkeypatch.setattr("meshwright.serve.live.LOOK_S", 0.0)


@pytest.fixture(scope="session")
def plan(racks_plan):
    return read_plan(racks_plan)


def health(writer):
    run = LiveRun(writer.folder)
    run.refresh()
    return health_of(run)


def test_every_rank_has_a_place_and_coordinates_of_its_own(plan):
    shown = racks_of(plan)
    assert (shown["num_ranks"], shown["num_used"], shown["num_installed"], shown["per_node"]) == (256, 64, 72, 4)
    for names in (shown["place"], shown["axes"]):
        assert len(set(zip(*(shown["columns"][name] for name in names), strict=True))) == 256
    assert set(shown["axes"]) == {"tp", "cp", "pp", "dp"} and json.loads(json.dumps(shown)) == shown


def test_axes_of_one_rank_are_left_out_and_a_small_job_fills_a_part_of_a_domain(plan):
    alone = racks_of(replace(plan, cluster=plan.cluster.resized(4), layout=Layout(dp=4)))
    assert alone["axes"] == ["dp"] and alone["num_used"] == 4


def test_more_ranks_than_can_be_drawn_are_refused(plan, monkeypatch):
    monkeypatch.setattr("meshwright.serve.racks.MAX_RANKS", 255)
    with pytest.raises(InputError, match="256 ranks are too many to draw"):
        racks_of(plan)


def test_slow_ranks_come_and_go_with_what_was_said_of_them(new_run):
    writer = new_run("a", 3)
    writer.event("slow_rank", 1, rank=7)
    writer.event("slow_rank", 2, rank=9, message="x" * 1000)
    writer.event("slow_rank", 2, rank=11)
    writer.event("recovered_rank", 3, rank=11)
    found = health(writer)
    assert found["slow"] == {"7": "slow since step 1", "9": "x" * 300} and found["recovered"] == [11]


def test_a_run_that_says_nothing_of_its_ranks(new_run):
    assert health(new_run("a", 3)) == {"slow": {}, "recovered": [], "last": None, "busy": None}
    assert health(new_run("empty")) == {"slow": {}, "recovered": [], "last": None, "busy": None}


@pytest.mark.parametrize("rank", ["7", None, 7.5, [7]])
def test_a_rank_that_is_no_number_is_no_rank(new_run, rank):
    writer = new_run("a", 3)
    writer.event("slow_rank", 1, rank=rank)
    assert health(writer)["slow"] == {} and health(writer)["recovered"] == []


def test_the_replicas_that_others_waited_for_are_counted(new_run):
    writer = new_run("a")
    for number, replica in enumerate((3.0, 3.0, 1.0, None, 1e300, -1.0, float("nan")), start=1):
        step = record(number)
        writer.step(step if replica is None else replace(step, extra={"slowest_replica": replica}))
    assert health(writer)["last"] == {"num_steps": 3, "counts": {"3": 2, "1": 1}}


@pytest.mark.parametrize(
    "content, busy",
    [
        ({"step": 3, "num_steps": 2, "busy_s": [0.512345, 0.7]}, {"step": 3, "num_steps": 2, "busy_s": [0.5123, 0.7]}),
        ({"step": 3, "num_steps": 2, "busy_s": [0.5]}, None),
        ({"step": 3, "num_steps": 2, "busy_s": "much"}, None),
        ([], None),
    ],
)
def test_busy_seconds_are_there_for_every_rank_or_not_at_all(new_run, content, busy):
    writer = new_run("a", 3, num_ranks=2)
    (writer.folder / "ranks.json").write_text(json.dumps(content))
    assert health(writer)["busy"] == busy

"""The trace is the predicted step: as long, in order, without overlaps, in the format that Perfetto reads."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from meshwright.describe.load import load_cluster, load_workload
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.layout import parse_layout
from meshwright.plan.trace import COMPUTE, REPLICAS, STAGES, STREAMS, WITHIN, process_id, thread_id, trace, write_trace
from meshwright.predict.forecast import Forecast

RECORD = ("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b", 8192)
SMALL = ("llama-3.1-8b", "dgx-h100-superpod", "pretrain-1t", 64)
LAYOUTS = {
    "record": (RECORD, "tp=4,cp=2,pp=8,vp=8,dp=128", {}),
    "one chunk, blocking messages": (RECORD, "tp=4,cp=2,pp=8,vp=1,dp=128,overlap_pp=no", {}),
    "nothing hidden": (RECORD, "tp=4,cp=2,pp=8,vp=8,dp=128,overlap_dp=no", {}),
    "no pipeline": (SMALL, "dp=64,recompute=full", {}),
    "replicated": (SMALL, "tp=8,dp=8,zero=0", {}),
    "zero 2 and zero bubble": (SMALL, "tp=8,pp=4,dp=2,zero=2,schedule=zero-bubble,recompute=full", {}),
    "zero 3": (SMALL, "dp=64,zero=3", {}),
    "one replica": (SMALL, "tp=8,pp=8,dp=1,vp=4", {}),
    "experts": (("deepseek-v3", "gb200-nvl72-spectrum-x", "mlperf-deepseekv3", 512), "cp=4,dp=128,ep=64,cp_kind=all-to-all", {}),
    "slow storage": (SMALL, "dp=64,recompute=full", {"storage_bytes_per_s": 1e6}),
}


@cache
def priced(name: str) -> Forecast:
    (model, cluster, workload, num_accelerators), layout, machine = LAYOUTS[name]
    job = load_workload(workload)
    if workload.startswith("pretrain"):
        job = replace(job, global_batch=256)
    return Job(model, replace(load_cluster(cluster).resized(num_accelerators), **machine), job).forecast(parse_layout(layout))


@cache
def traced(name: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = trace(priced(name))["traceEvents"]
    return events


def complete(name: str) -> list[dict[str, Any]]:
    return [event for event in traced(name) if event["ph"] == "X"]


def by_thread(name: str) -> dict[tuple[int, int], list[dict[str, Any]]]:
    threads = defaultdict(list)
    for event in complete(name):
        stage = event["pid"] - process_id(0)
        threads[stage, event["tid"] - thread_id(stage, 0)].append(event)
    return threads


@pytest.fixture(params=LAYOUTS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_trace_lasts_as_long_as_the_step(name: str) -> None:
    forecast = priced(name)
    events = complete(name)
    assert min(event["ts"] for event in events) == 0.0
    assert max(event["ts"] + event["dur"] for event in events) == pytest.approx(forecast.step_s * 1e6, rel=1e-6)


def test_events_have_the_keys_and_values_of_the_trace_event_format(name: str) -> None:
    forecast = priced(name)
    for event in traced(name):
        required = {"X": {"ts", "dur", "cat"}, "M": {"args"}, "s": {"ts", "id", "cat"}, "f": {"ts", "id", "cat", "bp"}}[event["ph"]]
        assert {"name", "ph", "pid", "tid"} | required <= set(event)
        assert event.get("ts", 0.0) >= 0 and event.get("dur", 0.0) >= 0
        stage = event["pid"] - process_id(0)
        assert 0 <= stage < forecast.layout.pp and 0 <= event["tid"] - thread_id(stage, 0) < len(STREAMS)


def test_no_two_threads_share_a_number_and_none_has_a_process_s(name: str) -> None:
    """Perfetto takes threads of one number as one, also in two processes, and 0 as the idle one."""
    events = traced(name)
    assert len({event["tid"] for event in events}) == len({(event["pid"], event["tid"]) for event in events})
    assert not {event["tid"] for event in events} & {0, *(event["pid"] for event in events)}


def test_slices_of_a_thread_follow_each_other_without_overlap(name: str) -> None:
    for events in by_thread(name).values():
        for before, after in pairwise(events):
            assert after["ts"] >= before["ts"]
            assert after["ts"] >= before["ts"] + before["dur"] - 2e-3  # two roundings to the nanosecond


def test_every_operation_is_there_once(name: str) -> None:
    forecast = priced(name)
    kinds = 3 if forecast.layout.schedule == "zero-bubble" else 2
    passes = forecast.num_micro_batches * forecast.layout.vp
    threads = by_thread(name)
    for stage in range(forecast.layout.pp):
        names = [event["name"] for event in threads[stage, COMPUTE] if event["name"][:2] in ("F ", "B ", "W ")]
        assert len(names) == len(set(names)) == kinds * passes


def test_a_flow_ends_where_its_receiver_starts_and_not_before_it_begins(name: str) -> None:
    forecast = priced(name)
    starts, sends = (
        {(process_id(stage), event["ts"]) for (stage, stream), events in by_thread(name).items() if stream == wanted for event in events}
        for wanted in (COMPUTE, STAGES)
    )
    flows = defaultdict(dict)
    for event in traced(name):
        if event["ph"] in "sf":
            flows[event["id"]][event["ph"]] = event
    assert bool(flows) == (forecast.layout.pp > 1)
    for ends in flows.values():
        assert ends["s"]["ts"] <= ends["f"]["ts"] + 1e-3
        assert (ends["f"]["pid"], ends["f"]["ts"]) in starts
        assert (ends["s"]["pid"], ends["s"]["ts"]) in sends


def test_traffic_between_replicas_is_whole_and_ends_before_the_optimizer(name: str) -> None:
    forecast = priced(name)
    threads = by_thread(name)
    for stage in range(forecast.layout.pp):
        (optimizer,) = [event for event in threads[stage, COMPUTE] if event["name"] == "optimizer"]
        assert all(event["ts"] + event["dur"] <= optimizer["ts"] + 2e-3 for event in threads[stage, REPLICAS])
        assert optimizer["dur"] == pytest.approx(forecast.parts["optimizer"] * 1e6, abs=2e-3)
        assert bool(threads[stage, REPLICAS]) == (forecast.layout.dp * forecast.layout.cp > 1)


def test_the_record_step_shows_its_axes_on_their_streams() -> None:
    threads = by_thread("record")
    within = {event["args"]["axis"] for event in threads[3, WITHIN]}
    assert within == {"tp", "cp"}
    gathered = [event for event in threads[0, REPLICAS] if "all-gather weights" in event["name"]]
    reduced = [event for event in threads[0, REPLICAS] if "reduce-scatter gradients" in event["name"]]
    assert gathered[0]["name"] == "all-gather weights chunk 0, bucket 1 of 13"
    assert reduced[0]["name"] == "reduce-scatter gradients chunk 7, bucket 1 of 13"
    assert "F chunk 3 mb 5" in {event["name"] for event in threads[0, COMPUTE]}
    # What dp carries in the step, as the explanation computes it, is what its stream shows.
    carried_us = sum(event["args"]["traffic_us"] for event in (*gathered, *reduced))
    assert carried_us == pytest.approx(sum(event["dur"] for event in (*gathered, *reduced)), rel=1e-3)
    assert 0.38e6 < carried_us < 0.51e6  # 25 GB each way at 100 GB/s and what collectives reach of it


def test_weights_arrive_before_their_first_forward_and_gradients_leave_after_their_last_backward() -> None:
    threads = by_thread("record")
    for stage in range(8):
        operations, events = threads[stage, COMPUTE], threads[stage, REPLICAS]
        for chunk in range(8):
            first = min(event["ts"] for event in operations if event["name"].startswith(f"F chunk {chunk} "))
            last = max(event["ts"] + event["dur"] for event in operations if event["name"].startswith(f"B chunk {chunk} "))
            gathered = [event for event in events if event["name"].startswith(f"all-gather weights chunk {chunk},")]
            reduced = [event for event in events if event["name"].startswith(f"reduce-scatter gradients chunk {chunk},")]
            assert max(event["ts"] + event["dur"] for event in gathered) <= first + 2e-3
            assert min(event["ts"] for event in reduced) >= last - 2e-3


def test_the_file_is_json_that_names_its_origin(tmp_path: Path) -> None:
    forecast = priced("record")
    write_trace(forecast, tmp_path / "step.json")
    data = json.loads((tmp_path / "step.json").read_text(encoding="utf-8"))
    assert data["otherData"]["step_s"] == forecast.step_s
    assert "not measured" in data["otherData"]["origin"]
    names = {event["args"]["name"] for event in data["traceEvents"] if event["name"] == "process_name"}
    assert names == {f"stage {stage} of 8" for stage in range(8)}


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write step\.json"):
        write_trace(priced("no pipeline"), tmp_path / "none" / "step.json")


def test_a_step_too_long_to_be_drawn_is_refused() -> None:
    forecast = priced("one replica")
    endless = forecast.job.changed("workload.global_batch=1000000").forecast(forecast.layout)
    with pytest.raises(InputError, match=r"operations .* is too long to draw"):
        trace(endless)

"""A plan made with a hardware profile: its explanation, its trace and its file have the prices that its step was made of."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.describe.profile import CollectiveTime, Profile, load_profile
from meshwright.job import Job
from meshwright.layout import parse_layout
from meshwright.plan.explain import AxisTraffic, explain
from meshwright.plan.export.heading import origin
from meshwright.plan.plan import forecast_of, plan_bytes, plan_of, read_plan, stack_of
from meshwright.plan.trace import COMPUTE, LaidOut, Slice, trace
from meshwright.predict.forecast import Forecast
from meshwright.predict.software import Software, on_profile, software

FIXTURES = Path(__file__).parents[1] / "fixtures"
CORES, CARD = (load_profile(FIXTURES / f"profile_of_{name}.json") for name in ("cores", "a_card"))
KINDS = ("all-gather", "reduce-scatter", "all-reduce", "message")
CARDS = replace(  # 50 GB/s and 0.1 ms, whatever the collective
    CARD,
    collectives=tuple(
        CollectiveTime(kind=kind, num_ranks=ranks, payload_bytes=size, seconds=size / 50e9 + 1e-4)
        for kind in KINDS
        for ranks in (2, 8)
        for size in (1 << 12, 1 << 22, 1 << 30)
    ),
)
PROFILES: dict[str, Profile | None] = {"cores": CORES, "card": CARD, "timed cards": CARDS, "none": None}
NOTHING_HIDES = "overlap_tp=no,overlap_pp=no,overlap_dp=no"
CASES = [
    *(("cores", text) for text in ("tp=2,dp=4", "dp=8", "dp=8,zero=3", "tp=2,pp=2,dp=2", "pp=2,dp=4,zero=2", "cp=2,dp=4")),
    *(("cores", f"{text},{NOTHING_HIDES}") for text in ("tp=2,pp=2,dp=2", "pp=4,dp=2,zero=0")),
    *(
        (name, f"{text},recompute=full")
        for name in ("card", "timed cards", "none")
        for text in (
            "tp=4,dp=2",
            "tp=2,cp=2,pp=2,dp=1",
            "cp=2,cp_kind=all-gather,dp=4",
            "dp=8,zero=3",
            f"tp=2,pp=2,dp=2,{NOTHING_HIDES}",
        )
    ),
    ("none", "dp=8,ep=8,recompute=full"),
]


@cache
def priced(name: str, text: str) -> Forecast:
    if name == "cores":
        return Job("llama-2m", two_racks(), "python-stdlib", stacked(name)).forecast(parse_layout(text))
    model, cluster = load_model("mixtral-8x7b" if "ep=" in text else "llama-3.1-8b"), load_cluster("hgx-h200-ndr").resized(8)
    if "ep=" in text:  # a machine with room for it
        cluster = replace(cluster, accelerator=replace(cluster.accelerator, memory_bytes=1e13))
    workload = replace(load_workload("pretrain-1t"), precision="bf16-pure", global_batch=64)
    return Job(model, cluster, workload, stacked(name)).forecast(parse_layout(text))


@cache
def two_racks():  # asks the machine how fast its memory is: once, or two answers differ
    return load_cluster("this-machine-2x4")


def stacked(name: str) -> Software:
    profile = PROFILES[name]
    return on_profile(software(), profile) if profile else software()


def explained(forecast: Forecast) -> dict[str, AxisTraffic]:
    return {axis.axis: axis for axis in explain(forecast).axes}


def drawn_s(step: LaidOut, key: str) -> dict[str, dict[int, float]]:
    """Seconds that the slices of each axis have under a key, by stage."""
    found: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for each in step.slices():
        if each.stream != COMPUTE and key in each.args:
            found[each.args["axis"]][each.stage] += each.args[key] / 1e6
    return found


@pytest.fixture(params=CASES, ids=" ".join)
def forecast(request: pytest.FixtureRequest) -> Forecast:
    return priced(*request.param)


def test_traffic_takes_what_the_profile_timed() -> None:
    # 4 micro-batches x (4 layers x 8 + 6 at the ends) collectives of 2 ms; 4 buckets of gradients and 4 of weights, 8 ranks, 2 ms each
    tensor = explained(priced("cores", "tp=2,dp=4"))["tp"]
    assert tensor.traffic_s == tensor.exposed_s == pytest.approx(4 * (4 * 8 + 6) * 2e-3)
    replicas = explained(priced("cores", "dp=8"))["dp"]
    assert replicas.traffic_s == pytest.approx(8 * 2e-3) == replicas.exposed_s


def test_waiting_ranks_leave_their_cores_to_messages_too() -> None:
    # Every micro-batch forward and backward, a message of 2 ms with each, in a pipeline that takes less than its own time
    forecast = priced("cores", f"tp=2,pp=2,dp=2,{NOTHING_HIDES}")
    share = float(forecast.detail.stretch[0])
    messages = explained(forecast)["pp"]
    num_messages = 2 * forecast.num_micro_batches
    assert share < 1 and messages.traffic_s == pytest.approx(num_messages * 2e-3 * share)


def test_what_is_exposed_is_the_prediction_s_and_never_more_than_what_is_carried(forecast: Forecast) -> None:
    for name, axis in explained(forecast).items():
        assert axis.exposed_s == pytest.approx(float(forecast.prediction.parts[f"exposed_{name}"][0]), rel=1e-12)
        assert axis.exposed_s <= axis.traffic_s * (1 + 1e-12) and axis.traffic_s > 0


@pytest.mark.parametrize(("name", "text"), [case for case in CASES if NOTHING_HIDES in case[1]])
def test_where_nothing_hides_all_of_it_is_exposed(name: str, text: str) -> None:
    for axis in explained(priced(name, text)).values():
        assert axis.exposed_s == pytest.approx(axis.traffic_s, rel=1e-12)


def test_a_change_fits_where_the_machine_keeps_back_what_plans_leave_it() -> None:
    changes = explain(priced("cores", "tp=2,pp=2,dp=2")).changes
    assert changes and all(change.fits for change in changes)  # 0.1 GiB of a few


def test_the_trace_carries_what_the_explanation_says(forecast: Forecast) -> None:
    expected, drawn = explained(forecast), drawn_s(LaidOut.of(forecast), "traffic_us")
    assert drawn.keys() == expected.keys() - {"pp"}
    for name, by_stage in drawn.items():
        assert max(by_stage.values()) == pytest.approx(expected[name].traffic_s, rel=1e-4)  # slices are written to the nanosecond
    if "pp" in expected:
        num_operations = 2 * forecast.layout.vp * forecast.num_micro_batches
        assert LaidOut.of(forecast).message_s * num_operations == pytest.approx(expected["pp"].traffic_s, rel=1e-12)


def test_the_parts_of_the_trace_are_the_parts_of_the_step(forecast: Forecast) -> None:
    step, made = LaidOut.of(forecast), forecast.detail
    lengths = {each.name: each.end_s - each.start_s for each in step.slices() if each.stage == 0 and each.stream == COMPUTE}
    assert lengths["optimizer"] == pytest.approx(forecast.parts["optimizer"], rel=1e-9)
    assert lengths.get("overhead: norm, clipping, logging", 0.0) == pytest.approx(float(made.end_s[0]), abs=1e-9)
    # What is left is the pipeline, as long as its parts, and longer by the exposed traffic that it does not wait for.
    inside = ("compute", "exposed_tp", "exposed_cp", "exposed_ep", "exposed_pp", "bubble", "overhead")
    pipeline_s = sum(forecast.parts[part] for part in inside) - float(made.end_s[0])
    assert pipeline_s == pytest.approx(float(made.stretch[0]) * step.schedule.makespan_s, rel=1e-4)
    within_s = forecast.parts["exposed_dp"] - (step.weights_s - step.data_s) - (step.reduced_s - step.drained_s)
    assert step.drained_s - step.weights_s == pytest.approx(pipeline_s + within_s, rel=1e-9)
    assert within_s >= -1e-9


def test_operations_of_a_profile_s_plan_are_as_long_as_their_traffic_says() -> None:
    slices = list(LaidOut.of(priced("cores", "tp=2,dp=4")).slices())
    (forward,) = [each for each in slices if each.name == "F chunk 0 mb 0"]
    (tensor,) = [each for each in slices if each.name == "tp: F chunk 0 mb 0"]
    assert _length_s(tensor) == pytest.approx((4 * 4 + 3) * 2e-3) and tensor.end_s <= forward.end_s


def _length_s(each: Slice) -> float:
    return each.end_s - each.start_s


def test_a_plan_carries_its_profile(tmp_path: Path) -> None:
    forecast = priced("cores", "tp=2,pp=2,dp=2")
    plan = plan_of(forecast)
    plan.write(tmp_path / "plan.json")
    again = read_plan(tmp_path / "plan.json")
    assert again == plan and again.profile == CORES
    drawn = trace(forecast_of(again))
    assert stack_of(again) == stacked("cores") and forecast_of(again).step_s == plan.step_s
    assert drawn == trace(forecast)
    assert any("AMD EPYC" in note for note in drawn["otherData"]["notes"]) and "AMD EPYC" in origin(again)[0]


def test_a_plan_without_a_profile_has_no_word_of_it() -> None:
    plan = plan_of(priced("none", "tp=4,dp=2,recompute=full"))
    assert b"profile" not in plan_bytes(plan) and stack_of(plan) == software()

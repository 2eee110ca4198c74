"""What a run takes: money, energy, carbon and water worked by hand, and what stays unknown, with the reason."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshwright.cost.energy import PowerConstants
from meshwright.describe.cluster import Cluster
from meshwright.describe.load import accelerator, load_cluster, load_model, load_workload
from meshwright.describe.this_machine import CORE_W, num_cores
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.layout import Layouts, parse_layout
from meshwright.predict.goodput import expected_on
from meshwright.predict.outcome import (
    CORE_USD_PER_HOUR,
    Spread,
    Terms,
    busy_seconds,
    busy_share,
    interruptions_note,
    node_w,
    outcome,
    power_constants,
    price_of,
)
from meshwright.predict.prediction import Prediction, predict
from meshwright.predict.uncertainty import Interval
from meshwright.say.forecast import mfu_text
from meshwright.units import HOUR, KWH

MODEL, RECORD, WORKLOAD = load_model("llama-3.1-405b"), load_cluster("azure-gb200-128"), load_workload("mlperf-llama31-405b")
LAYOUT = parse_layout("tp=4,cp=2,pp=8,vp=8,dp=128,mbs=1")
LAYOUTS = Layouts.of([LAYOUT])
PREDICTION = predict(Job(MODEL, RECORD, WORKLOAD), LAYOUTS)
# The record machine for an hour, give or take: what it takes can be worked by hand.
AN_HOUR = replace(PREDICTION, time_to_train_s=np.array([HOUR]), interval=Interval(0.9, 1.2, "nothing", 0, "near"))
CONSTANTS = PowerConstants(waiting_fraction=0.3, host_w_per_accelerator=200.0, fan_fraction=0.1, wall_per_dc=1.05)


def on(cluster: Cluster) -> Prediction:
    """The hour on another cluster, in a precision that every chip has: prices, power and data centre are that cluster's."""
    return replace(AN_HOUR, job=replace(AN_HOUR.job, cluster=cluster, workload=replace(WORKLOAD, precision="bf16")))


def with_factor(log_factor: float) -> Prediction:
    """The prediction with a release that is so much slower than the reference."""
    job = PREDICTION.job
    return replace(PREDICTION, job=replace(job, software=replace(job.software, log_factor=log_factor)))


def spread_of(value: float) -> tuple[float, float, float]:
    return pytest.approx((value, 0.9 * value, 1.2 * value))


def values(spread: Spread | None) -> tuple[float, float, float]:
    assert spread is not None
    return spread.value, spread.low, spread.high


def test_cost_matches_a_hand_worked_case() -> None:
    # 8,192 accelerators for an hour at azure's 27.04 dollars
    spent = outcome(AN_HOUR)
    assert values(spent.accelerator_hours) == spread_of(8192)
    assert spent.offer is not None and (spent.offer.price.provider, spent.offer.price.kind) == ("azure", "on-demand")
    assert values(spent.offer.cost_usd) == spread_of(8192 * 27.04)


def test_every_listed_price_is_an_alternative_cheapest_first() -> None:
    costs = [offer.cost_usd.value for offer in outcome(AN_HOUR).alternatives]
    assert costs == sorted(costs) == pytest.approx([8192 * 4.2, 8192 * 10.5, 8192 * 27.04])


@pytest.mark.parametrize(
    ("asked", "provider", "usd"),
    [
        ({"provider": "coreweave"}, "coreweave", 10.5),
        ({"provider": "coreweave", "price_kind": "reserved"}, "coreweave", 4.2),
        ({"price_kind": "reserved"}, "coreweave", 4.2),  # azure lists none
    ],
)
def test_a_price_that_is_asked_for(asked: dict[str, str], provider: str, usd: float) -> None:
    offer = outcome(AN_HOUR, terms=Terms(**asked)).offer
    assert offer is not None and (offer.price.provider, offer.price.usd_per_accelerator_hour) == (provider, usd)


def test_without_a_provider_the_median_on_demand_price_stands() -> None:
    offer = outcome(on(replace(RECORD, provider=""))).offer
    assert offer is not None and offer.price.kind == "on-demand" and offer.price.usd_per_accelerator_hour == 10.5


def test_a_price_that_is_asked_for_and_not_listed_is_an_error() -> None:
    with pytest.raises(InputError, match="no spot price is listed for gb200 from azure"):
        outcome(AN_HOUR, terms=Terms(provider="azure", price_kind="spot"))


def test_energy_carbon_and_water_match_a_hand_worked_case(monkeypatch: pytest.MonkeyPatch) -> None:
    # half busy: 4 x 1,200 x (0.3 + 0.7 x 0.5) = 3,120 W and 1,867 W beside; 2,048 nodes for an hour: 10,213.376 kWh
    monkeypatch.setattr("meshwright.predict.outcome.power_constants", lambda: CONSTANTS)
    monkeypatch.setattr("meshwright.predict.outcome.busy_share", lambda *_: np.array([0.5]))
    spent = outcome(AN_HOUR)
    energy_kwh = 2048 * (3120 + 1867) / 1000
    assert spent.node_w == pytest.approx(4987)
    assert values(spent.energy_j and spent.energy_j.times(1 / KWH)) == spread_of(energy_kwh)
    assert values(spent.facility_energy_j and spent.facility_energy_j.times(1 / KWH)) == spread_of(energy_kwh * 1.17)
    assert values(spent.carbon_kg) == spread_of(energy_kwh * 1.17 * 369.473 / 1000)
    assert values(spent.water_l) == spread_of(energy_kwh * 0.27)
    assert spent.unknown == {}


def test_the_grid_is_the_one_asked_for_or_the_clusters_or_the_default() -> None:
    assert outcome(AN_HOUR, terms=Terms(region="eastus")).region.name == "virginia"
    assert outcome(on(replace(RECORD, region="france"))).region.name == "france"
    assert outcome(on(replace(RECORD, region=""))).region.name == "usa"
    with pytest.raises(InputError, match="no region named 'mars'"):
        outcome(AN_HOUR, terms=Terms(region="mars"))


def test_nodes_that_state_nothing_are_like_the_metered_ones() -> None:
    # half busy: 8 x 700 x 0.65 = 3,640 W and 8 x 200 W: 5,240 W; a tenth for fans, 5 % lost in the power supply
    bare = replace(load_cluster("dgx-h100-superpod"), node_overhead_w=0.0)
    assert node_w(bare, 0.5, CONSTANTS) == (pytest.approx(5240 * 1.1 * 1.05), "as metered nodes cooled by air")
    assert node_w(bare, 0.5, CONSTANTS, "liquid") == (pytest.approx(5240 * 1.05), "as metered nodes cooled by liquid")
    assert node_w(replace(RECORD, node_overhead_w=0.0), 0.5, CONSTANTS)[1] == "as metered nodes cooled by liquid"


def test_what_a_cluster_states_of_its_nodes_includes_fans_unless_cooling_is_asked_for() -> None:
    stated = replace(load_cluster("dgx-h100-superpod"), node_overhead_w=4600.0)
    assert node_w(stated, 0.5, CONSTANTS) == (pytest.approx(3640 + 4600), "4,600 W per node, stated for dgx-h100-superpod")
    assert node_w(stated, 0.5, CONSTANTS, "air")[0] == pytest.approx(5240 * 1.1 * 1.05)
    with pytest.raises(InputError, match="no cooling by 'ice'"):
        node_w(stated, 0.5, CONSTANTS, "ice")


def test_busy_seconds_match_a_hand_worked_case() -> None:
    # a release half as fast: compute and optimizer 1.1 s are 0.55 s of work, beside 0.1 + 0.2 + 0.3 s of exposed tp, cp and ep
    parts = {part: np.array([9.0]) for part in PREDICTION.parts}
    parts |= {"compute": np.array([1.0]), "optimizer": np.array([0.1])}
    parts |= {f"exposed_{axis}": np.array([s]) for axis, s in (("tp", 0.1), ("cp", 0.2), ("ep", 0.3))}
    made = replace(with_factor(math.log(2)), parts=parts)
    assert busy_seconds(made)[0] == pytest.approx([0.55 + 0.6])


def test_a_run_is_busy_for_a_share_of_it() -> None:
    assert 0.3 < busy_share(PREDICTION)[0] < 1
    assert busy_share(with_factor(-1.0))[0] == 1


def test_an_accelerator_without_prices_or_stated_power_says_so() -> None:
    chip = replace(accelerator("rtx-4090"), power_cap_w=math.nan)
    spent = outcome(on(replace(RECORD, accelerator=chip)))
    assert (spent.offer, spent.alternatives, spent.energy_j, spent.carbon_kg, spent.water_l, spent.node_w) == (None, (), *[None] * 4)
    assert spent.unknown == {
        "cost": "no on-demand price is listed for rtx-4090",
        "energy": "power of rtx-4090 not stated by the vendor",
        "water": "power of rtx-4090 not stated by the vendor",
    }


def test_halls_that_publish_no_water_leave_it_unknown() -> None:
    spent = outcome(on(replace(RECORD, provider="coreweave")))
    assert spent.energy_j is not None and spent.water_l is None
    assert spent.unknown == {"water": "coreweave publishes no litres per kWh"}


def test_a_workload_without_an_end_has_no_time_to_train() -> None:
    endless = replace(WORKLOAD, convergence=None, evaluation=None)
    spent = outcome(predict(Job(MODEL, RECORD, endless), LAYOUTS))
    assert (spent.time_to_train_s, spent.accelerator_hours, spent.offer, spent.energy_j) == (None, None, None, None)
    assert set(spent.unknown.values()) == {"mlperf-llama31-405b states neither tokens nor a target"}


def test_the_example_prints_what_stands_beside_it() -> None:
    example = Path(__file__).parents[2] / "examples" / "predict_record.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, check=True)
    assert done.stdout == example.with_suffix(".txt").read_text(encoding="utf-8")


def test_emulated_racks_share_the_machine_out_and_cost_by_core():
    cluster = load_cluster("this-machine-2x4")
    assert [tier.num_accelerators for tier in cluster.tiers] == [4, 8]
    price = price_of(cluster)
    assert price is not None and price.kind == "assumed"
    assert 8 * price.usd_per_accelerator_hour == pytest.approx(num_cores() * CORE_USD_PER_HOUR)
    for busy in (0.0, 1.0):  # processes that wait poll, and a processor has no host beside it
        watts, hosts = node_w(cluster, busy, power_constants())
        assert (2 * watts, hosts) == (pytest.approx(num_cores() * CORE_W), "the processor itself, nothing beside")


def test_a_run_on_a_processor_costs_its_cores_and_draws_their_watts() -> None:
    cluster = load_cluster("this-machine-2x4")
    spent = outcome(on(cluster))
    assert spent.offer is not None
    assert values(spent.offer.cost_usd) == spread_of(num_cores() * CORE_USD_PER_HOUR)
    assert values(spent.energy_j) == spread_of(num_cores() * CORE_W * HOUR)


def test_what_a_cluster_of_processors_states_of_its_nodes_is_added() -> None:
    cluster = replace(load_cluster("this-machine-2x4"), node_overhead_w=30.0)
    watts, hosts = node_w(cluster, 0.5, power_constants())
    assert watts == pytest.approx(num_cores() * CORE_W / 2 + 30)
    assert hosts == "the processor itself, and 30 W per node, stated for this-machine-2x4"


def test_a_processor_has_no_listed_price_and_no_metered_cooling() -> None:
    cluster = load_cluster("this-machine-2x4")
    with pytest.raises(InputError, match="no azure price is listed for a processor"):
        price_of(cluster, "azure")
    with pytest.raises(InputError, match="no node of processors cooled by air was metered"):
        outcome(on(cluster), terms=Terms(cooling="air"))
    unknown: dict[str, str] = {}
    silent = replace(cluster, accelerator=replace(cluster.accelerator, power_cap_w=math.nan))
    assert price_of(silent, unknown=unknown) is None and "is derived from its power" in unknown["cost"]


def test_inside_the_measured_batches_nothing_is_remarked_on() -> None:
    forecast = PREDICTION.job.forecast(LAYOUT)
    assert (forecast.outcome.batch_beyond, forecast.outcome.is_lower_bound, forecast.notes) == ("", False, ())
    assert forecast.time_to_train is not None
    assert forecast.outcome.words(forecast.time_to_train, str) == str(forecast.time_to_train.value)


@pytest.mark.parametrize(
    ("batch", "beyond", "reason"),
    [(16384, "above", "Steps are a lower bound"), (128, "below", "those of the smallest batch are used")],
)
def test_beyond_the_measured_batches_samples_to_the_target_are_unknown(batch: int, beyond: str, reason: str) -> None:
    workload = replace(WORKLOAD, global_batch=batch)
    spent = outcome(predict(Job(MODEL, RECORD, workload), LAYOUTS))
    assert (spent.batch_beyond, spent.is_lower_bound) == (beyond, beyond == "above")
    assert spent.time_to_train_s is not None and spent.carbon_kg is not None and spent.offer is not None
    for spread in (spent.time_to_train_s, spent.carbon_kg, spent.offer.cost_usd):
        assert math.isinf(spread.high) == (beyond == "above")
        # only the lower end is a bound: the prediction itself may be too high
        assert spent.words(spread, str) == (f"at least {spread.low}" if beyond == "above" else f"about {spread.value}")
        assert spread.between(str) == (f"{spread.low} or more" if beyond == "above" else f"{spread.low} to {spread.high}")
    (note,) = Job(MODEL, RECORD, workload).forecast(LAYOUT).notes
    assert f"at batches from 896 to 1,152 only (nvfp4): at {batch:,} they are unknown" in note and reason in note


def test_a_run_through_stated_tokens_knows_its_length_at_any_batch() -> None:
    workload = replace(WORKLOAD, global_batch=16384, convergence=None, evaluation=None, num_tokens=1e12)
    forecast = Job(MODEL, RECORD, workload).forecast(LAYOUT)
    assert (forecast.outcome.batch_beyond, forecast.notes) == ("", ())


def test_an_mfu_above_its_peak_is_reported_as_a_peak_that_is_too_low(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mfu_text(0.4321) == "43.2 %" and mfu_text(3.951) == "395.1 % of a peak described too low"
    monkeypatch.setattr("meshwright.predict.forecast.exact_prediction", lambda closed: replace(closed, mfu=np.array([3.951])))
    (note,) = PREDICTION.job.forecast(LAYOUT).notes
    assert note.startswith("an MFU of 395.1 % is impossible: the peak described for gb200 (")


# 512 H100 through tokens: 100 hours without interruptions.
LONG_JOB = Job("llama-3.1-70b", "dgx-h100-superpod", "pretrain-1t", gpus=512)
LONG = replace(
    predict(LONG_JOB, Layouts.of([LONG_JOB.layout("tp=8,pp=8,mbs=1")])),
    time_to_train_s=np.array([100 * HOUR]),
    interval=Interval(0.9, 1.2, "nothing", 0, "near"),
)


def test_a_long_run_carries_its_interruptions_and_pays_for_its_spares() -> None:
    whole, ideal = outcome(LONG), outcome(LONG, terms=Terms(ideal=True))
    failing = whole.interruptions
    assert failing is not None and failing == expected_on(LONG_JOB.cluster) and failing.num_spares == 1
    assert values(whole.time_to_train_s) == spread_of(100 * HOUR * (1 + failing.stalls) / failing.goodput)
    assert whole.goodput == failing.goodput and whole.ideal_s == ideal.ideal_s == 100 * HOUR
    assert values(whole.accelerator_hours) == spread_of((512 + 8) * 100 * failing.stretch)
    assert whole.offer is not None
    assert whole.offer.cost_usd.value == pytest.approx(520 * 100 * failing.stretch * whole.offer.price.usd_per_accelerator_hour)
    assert (ideal.interruptions, ideal.goodput) == (None, None)
    assert values(ideal.time_to_train_s) == spread_of(100 * HOUR)
    assert values(ideal.accelerator_hours) == spread_of(51200)


def test_a_long_run_draws_less_while_it_waits_and_its_spares_draw_too(monkeypatch: pytest.MonkeyPatch) -> None:
    # work and what is done again at half busy, the rest and one spare node of 65 waiting
    monkeypatch.setattr("meshwright.predict.outcome.power_constants", lambda: CONSTANTS)
    monkeypatch.setattr("meshwright.predict.outcome.busy_share", lambda *_: np.array([0.5]))
    whole = outcome(LONG)
    assert whole.interruptions is not None and whole.time_to_train_s is not None
    trains = (whole.interruptions.work + whole.interruptions.lost) / (1 + whole.interruptions.stalls)
    half_w, idle_w = (node_w(LONG_JOB.cluster, busy, CONSTANTS)[0] for busy in (0.5, 0.0))
    watts_w = 64 * (trains * half_w + (1 - trains) * idle_w) + idle_w
    assert values(whole.energy_j) == spread_of(whole.time_to_train_s.value * watts_w)
    assert whole.busy == pytest.approx(0.5 * trains)


def test_a_run_of_a_day_leaves_interruptions_out_and_says_so_where_one_is_expected() -> None:
    day = replace(LONG, time_to_train_s=np.array([24 * HOUR]))
    longer = replace(LONG, time_to_train_s=np.array([24 * HOUR + 1]))
    assert outcome(day).interruptions is None and outcome(longer).interruptions is not None
    assert interruptions_note(outcome(day), LONG_JOB.cluster, Terms()) == ""  # one every 99 h is expected
    large = LONG_JOB.cluster.resized(8192)
    note = interruptions_note(outcome(replace(day, job=LONG_JOB.on(large))), large, Terms())
    assert note.startswith("interruptions are counted in runs of more than a day only: this one has to expect 3.9, and would take 25.")
    assert interruptions_note(outcome(day), large, Terms(ideal=True)) == ""


def test_a_machine_that_never_restarts_in_time_trains_nothing() -> None:
    *inner, outer = LONG_JOB.cluster.tiers
    grown = replace(LONG_JOB.cluster, tiers=(*inner, replace(outer, num_accelerators=10**8, num_installed=10**8)))
    spent = outcome(replace(LONG, job=LONG_JOB.on(grown)))
    assert spent.time_to_train_s is None and spent.ideal_s == 100 * HOUR
    assert spent.unknown["time_to_train"].endswith("and a restart takes 9.483 min: no work gets done")

"""Prices from a hardware profile: slices come back as they were, and waits between hosts are those that were timed."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from meshwright.cost.measured import exchange_s
from meshwright.cost.pipeline import ChunkTimes, pipeline_s
from meshwright.describe.cluster import Cluster, Tier
from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.describe.model import Model
from meshwright.describe.profile import CollectiveTime, TierTimed, load_profile
from meshwright.describe.workload import Workload
from meshwright.job import Job
from meshwright.layout import Layout, Layouts
from meshwright.predict.inputs import Inputs, inputs_of
from meshwright.predict.measured import measured
from meshwright.predict.measured_prices import MeasuredPricer
from meshwright.predict.software import software
from meshwright.predict.stages import stage_layers

FIXTURES = Path(__file__).parents[1] / "fixtures"
REAL = load_cluster("dgx-h100-superpod")


def inputs(model: Model, cluster: Cluster, workload: Workload) -> Inputs:
    """The job as numbers."""
    return inputs_of(Job(model, cluster, workload, software()))


def profiled(name: str, model: str, precision: str, **layout: object) -> MeasuredPricer:
    """Prices by one of the profiles that tests have."""
    llama, job = load_model(model), replace(load_workload("pretrain-1t"), precision=precision, seq_len=8192, global_batch=8)
    seen = measured(llama, job, load_profile(FIXTURES / f"{name}.json"))
    return MeasuredPricer(inputs(llama, REAL, job), Layouts.of([Layout(**layout)]), software("v5.1").constants, seen)  # type: ignore[arg-type]


def test_a_profile_gives_back_the_slices_it_was_made_of() -> None:
    """The card's layer took 20 ms, both ends of the model 40 ms, and an update 1 ms and 10 ps a parameter."""
    card = profiled("profile_of_a_card", "llama-3.1-8b", "bf16-pure")
    assert (card.layer().total_s(0) + card.layer().total_s(1))[0] == pytest.approx(0.02)
    assert sum(way[0] for way in card.head_s()) == pytest.approx(0.04) and card.embedding_s()[0] == 0.0
    cut = stage_layers(np.array([32]), np.array([1]))
    assert card.optimizer_s(cut)[0] == pytest.approx(1e-3 + 8.03e9 * 1e-11, rel=1e-3)
    assert card.step_s()[0] == 0.0 and card.core_share(ChunkTimes(forward_s=1.0, backward_s=2.0), np.ones(1)) == 1.0


LAB = replace(
    REAL,
    tiers=tuple(
        Tier(name=name, link="", num_accelerators=size, num_installed=size, bytes_per_s=rate, latency_s=1e-4)
        for name, size, rate in (("host", 2, 1e9), ("spine", 4, 1e6))
    ),
    accelerators_per_node=2,
)


def on_lab(slower: float = 1.0, cores_share: float = 0.0, **layout: object) -> MeasuredPricer:
    """Prices on two hosts of two ranks: between hosts an exchange of 1 MB takes 1 s longer than in one, and less in proportion.

    `cores_share` of this is the cores' work for the network.
    """
    cores = load_profile(FIXTURES / "profile_of_cores.json")
    llama, job = load_model("llama-2m"), load_workload("python-stdlib")
    tiers = tuple(TierTimed(name=one.name, num_accelerators=one.num_accelerators, bytes_per_s=one.bytes_per_s) for one in LAB)
    placed = []
    for members, wait_s in (((2, 2), 0.0), ((1, 2), 1.0), ((2, 4), 1.0)):
        for kind in ("all-gather", "reduce-scatter", "all-reduce", "message"):
            for size in (2**power for power in range(10, 23)):
                times, ranks = measured(llama, job, cores).rates.collectives[kind], members[-1]
                alone_s, wait = float(exchange_s(size, ranks, *times)), wait_s * size / 1e6
                core_s = (alone_s + cores_share * wait) / max(cores.num_processes / cores.num_cores, 1.0) if cores_share else 0.0
                timed = CollectiveTime(
                    kind=kind, num_ranks=ranks, payload_bytes=size, seconds=alone_s + wait, members=members, core_s=core_s
                )
                placed.append(timed)
    profile = replace(cores, tiers=tiers, collectives=(*cores.collectives, *placed))
    spine = replace(LAB.tiers[1], bytes_per_s=LAB.tiers[1].bytes_per_s / slower)
    cluster = replace(LAB, tiers=(LAB.tiers[0], spine))
    seen = measured(llama, job, profile)
    return MeasuredPricer(inputs(llama, cluster, job), Layouts.of([Layout(**layout)]), software("v5.1").constants, seen)  # type: ignore[arg-type]


def test_an_axis_that_leaves_the_host_waits_for_the_link_and_one_that_stays_does_not() -> None:
    inside, across = on_lab(tp=2, dp=2), on_lab(tp=2, dp=2, order=("dp", "cp", "pp", "tp"))
    payload = 128 * 192 * 4
    assert inside.tensor_s() == pytest.approx(inside.without_waits().tensor_s())
    waits_s = across.tensor_s() - across.without_waits().tensor_s()
    assert waits_s == pytest.approx(4 * payload / 1e6, rel=0.02)
    assert across.without_waits().tensor_s() == pytest.approx(inside.tensor_s())


def test_what_the_network_costs_the_cores_is_no_wait_for_a_link() -> None:
    outermost_tp = ("dp", "cp", "pp", "tp")
    uncounted = on_lab(tp=2, dp=2, order=outermost_tp)
    counted = on_lab(cores_share=0.25, tp=2, dp=2, order=outermost_tp)
    assert counted.tensor_s() == pytest.approx(uncounted.tensor_s())  # the same seconds by the clock
    waits_s = uncounted.tensor_s() - uncounted.without_waits().tensor_s()
    assert counted.without_waits().tensor_s() - uncounted.without_waits().tensor_s() == pytest.approx(0.25 * waits_s, rel=0.02)
    slower = on_lab(2.0, cores_share=0.25, tp=2, dp=2, order=outermost_tp)
    assert slower.tensor_s() - counted.tensor_s() == pytest.approx(0.75 * waits_s, rel=0.02)  # a slower link is no more work


def test_a_link_that_became_slower_makes_its_waits_longer_in_proportion() -> None:
    now, halved = (on_lab(slower, tp=2, dp=2, order=("dp", "cp", "pp", "tp")) for slower in (1.0, 2.0))
    assert halved.tensor_s() - now.without_waits().tensor_s() == pytest.approx(2 * (now.tensor_s() - now.without_waits().tensor_s()))


def test_a_message_waits_for_the_outermost_tier_that_a_pipeline_crosses_and_its_sender_only_for_its_cores() -> None:
    deep = on_lab(pp=4)
    message_s, working_s = deep.message_s(), deep.without_waits().message_s()
    assert message_s - working_s == pytest.approx(128 * 192 * 4 / 1e6, rel=0.02)
    assert deep.sent_s(message_s, np.array([0.0])) == pytest.approx(working_s)
    assert deep.working_message_s(message_s) == pytest.approx(working_s)


def test_what_a_pipeline_waits_for_a_link_hides_behind_what_other_stages_compute() -> None:
    piped = on_lab(pp=4)
    times = ChunkTimes(**{f.name: np.ones(1) for f in fields(ChunkTimes)})
    without, waiting = (float(piped.core_share(times, np.full(1, hop_s))[0]) for hop_s in (0.0, 2.0))
    even_s = [float(pipeline_s(piped.num_micro_batches, 4, 1, times, hop_s)[0]) for hop_s in (0.0, 2.0)]
    assert without < waiting < 1.0
    assert waiting * even_s[1] - without * even_s[0] < even_s[1] - even_s[0]


def test_replicas_between_hosts_wait_for_all_that_is_not_hidden() -> None:
    near, far = on_lab(tp=2, dp=2, order=("dp", "cp", "pp", "tp")), on_lab(tp=2, dp=2)
    cut = stage_layers(np.array([4]), np.array([1]))
    assert near.between(cut).reduce_s == pytest.approx(near.without_waits().between(cut).reduce_s)
    waits_s = far.between(cut).reduced_s - far.without_waits().between(cut).reduced_s
    assert waits_s == pytest.approx(far.parameters(cut)[0] * 4 / 1e6, rel=0.05)
    exposed_s = [one.data_parallel_s(cut, one.layer()) for one in (near, far)]
    assert exposed_s[1] > exposed_s[0]


def test_recomputing_by_a_profile_runs_a_compiled_layer_whole_and_a_cut_one_to_its_last_product() -> None:
    plain, whole = (profiled("profile_of_a_card", "llama-3.1-8b", "bf16-pure", recompute=kind).layer() for kind in ("none", "full"))
    assert (whole.total_s(1) - plain.total_s(1))[0] == pytest.approx(plain.total_s(0)[0])
    cut = {"tp": 2, "overlap_tp": False}
    plain, again = (profiled("profile_of_a_card", "llama-3.1-8b", "bf16-pure", recompute=kind, **cut).layer() for kind in ("none", "full"))
    assert (again.compute_s(1) - plain.compute_s(1))[0] < plain.compute_s(0)[0]

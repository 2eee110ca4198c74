"""Chunks hold every layer once, and messages between stages arrive once and in the order in which they are sent."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from parity import LLAMA, WORKLOAD, joined, run_evaluations, run_steps
from ranks import Pools

from meshwright.cost.schedule import BACKWARD, FORWARD, schedule_named
from meshwright.layout import Layout, parse_layout
from meshwright.predict.parameters import chunks_of
from meshwright.predict.stages import stage_layers
from meshwright.train.parallel.pipeline import Operation, RoundTrip, chunk_layers, operations
from meshwright.train.parallel.timing import HostTimer

DEEP = replace(LLAMA, num_layers=8)
law = settings(deadline=None, max_examples=60)


def of_stages(name: str, num_stages: int, num_chunks: int, num_micro_batches: int) -> list[list[Operation]]:
    schedule = schedule_named(name, num_stages, num_chunks, num_micro_batches)
    return [operations(schedule, stage)[0] for stage in range(num_stages)]


pipes = st.tuples(st.sampled_from(["1f1b", "interleaved", "zero-bubble"]), st.integers(2, 5), st.integers(1, 3), st.integers(1, 9))


@law
@given(pipes)
def test_each_message_is_received_once(pipe: tuple[str, int, int, int]) -> None:
    name, num_stages, num_chunks, m = pipe
    assume(name != "1f1b" or num_chunks == 1)
    stages = of_stages(name, num_stages, num_chunks, m)
    sent, taken = defaultdict(int), defaultdict(list)
    for stage, made in enumerate(stages):
        for operation in made:
            if operation.sends_to is not None:
                sent[stage, operation.sends_to] += 1
            if operation.receives is not None:
                taken[operation.receives[0], stage].append(operation.receives[1])
    assert {pair: sorted(numbers) for pair, numbers in taken.items()} == {pair: list(range(count)) for pair, count in sent.items()}
    for stage in range(num_stages):
        _, coming = operations(schedule_named(name, num_stages, num_chunks, m), stage)
        assert dict(coming) == {source: count for (source, target), count in sent.items() if target == stage}


@law
@given(pipes)
def test_a_message_holds_what_its_receiver_expects(pipe: tuple[str, int, int, int]) -> None:
    name, num_stages, num_chunks, m = pipe
    assume(name != "1f1b" or num_chunks == 1)
    stages = of_stages(name, num_stages, num_chunks, m)
    letters: dict[tuple[int, int], list[Operation]] = defaultdict(list)  # in the order in which each stage sends
    for stage, made in enumerate(stages):
        for operation in made:
            if operation.sends_to is not None:
                letters[stage, operation.sends_to].append(operation)
    for stage, made in enumerate(stages):
        for operation in (o for o in made if o.receives is not None):
            source, number = operation.receives
            letter = letters[source, stage][number]
            assert (letter.kind, letter.micro_batch) == (operation.kind, operation.micro_batch)
            step = 1 if operation.kind == FORWARD else -1
            assert operation.chunk * num_stages + stage == letter.chunk * num_stages + source + step


@law
@given(pipes)
def test_no_two_stages_wait_for_each_other(pipe: tuple[str, int, int, int]) -> None:
    """Stages that run their operations in order, and go on where the message is there, all come to the end."""
    name, num_stages, num_chunks, m = pipe
    assume(name != "1f1b" or num_chunks == 1)
    stages = of_stages(name, num_stages, num_chunks, m)
    sent: dict[tuple[int, int], int] = defaultdict(int)
    places = [0] * num_stages
    moved = True
    while moved:
        moved = False
        for stage, made in enumerate(stages):
            while places[stage] < len(made):
                operation = made[places[stage]]
                if operation.receives is not None and sent[operation.receives[0], stage] <= operation.receives[1]:
                    break
                if operation.sends_to is not None:
                    sent[stage, operation.sends_to] += 1
                places[stage] += 1
                moved = True
    assert places == [len(made) for made in stages]


@law
@given(pipes)
def test_every_micro_batch_goes_forward_and_backward_once_through_every_chunk(pipe: tuple[str, int, int, int]) -> None:
    name, num_stages, num_chunks, m = pipe
    assume(name != "1f1b" or num_chunks == 1)
    every = {(chunk, micro_batch) for chunk in range(num_chunks) for micro_batch in range(m)}
    for made in of_stages(name, num_stages, num_chunks, m):
        for kind in (FORWARD, BACKWARD):
            passes = [(o.chunk, o.micro_batch) for o in made if o.kind == kind]
            assert len(passes) == len(every) and set(passes) == every


def splits() -> list[tuple[int, int, int, int, int]]:
    """Layers, stages, chunks, and layers stated for the first and the last stage, of all that divide."""
    every = np.array(list(product(range(1, 25), range(1, 5), range(1, 5), range(7), range(7)))).T
    legal = stage_layers(*every).legal & ((every[2] == 1) | (every[1] > 1))
    return [tuple(row) for row in every[:, legal].T.tolist()]


@law
@given(st.sampled_from(splits()))
def test_chunks_hold_every_layer_once_and_in_order(split: tuple[int, int, int, int, int]) -> None:
    num_layers, pp, vp, first, last = split
    model = replace(LLAMA, num_layers=num_layers)
    layout = Layout(pp=pp, vp=vp, first_stage_layers=first, last_stage_layers=last)
    found = chunk_layers(model, layout)
    in_order = [layer for chunk in range(vp) for stage in range(pp) for layer in found[stage][chunk]]
    assert in_order == list(range(num_layers))
    # The predicted traffic assumes the same chunks.
    assert [[len(layers) for layers in stage] for stage in found] == [
        [c.num_layers for c in chunks_of(model, layout, s)] for s in range(pp)
    ]


@pytest.mark.parametrize(
    "layout, sizes",
    [
        (Layout(pp=2, first_stage_layers=1, last_stage_layers=3), [[1], [3]]),
        (Layout(pp=2, vp=3), [[0, 1, 1], [1, 1, 0]]),  # the ends count as a layer each
        (Layout(pp=4), [[1], [1], [1], [1]]),
    ],
)
def test_layers_of_chunks(layout: Layout, sizes: list[list[int]]) -> None:
    assert [[len(layers) for layers in stage] for stage in chunk_layers(LLAMA, layout)] == sizes


@pytest.mark.parametrize(
    "text", ["pp=2", "pp=2,vp=2", "pp=2,vp=2,schedule=zero-bubble", "pp=4,vp=2", "pp=4,vp=2,schedule=zero-bubble", "pp=2,vp=2,dp=2"]
)
def test_an_evaluation_between_steps_gives_the_loss_of_one_rank(pools: Pools, text: str) -> None:
    """A receive that an evaluation leaves posted would take the next step's message."""
    layout = parse_layout(text, Layout(micro_batch=1))
    (wanted,) = pools.of(1).run(run_evaluations, DEEP, WORKLOAD, Layout(micro_batch=1), 4)
    for found in pools.of(layout.num_ranks).run(run_evaluations, DEEP, WORKLOAD, layout, 4):
        assert found == [pytest.approx(one, rel=1e-5) for one in wanted]


@pytest.mark.parametrize(
    "text",
    [
        "pp=2,vp=2,mbs=1",
        "pp=2,vp=2,schedule=zero-bubble,mbs=1,tp=2",
        "pp=2,dp=2,zero=2,mbs=1",
        "pp=2,dp=2,zero=3,mbs=1",
        "pp=2,dp=2,zero=1",
    ],
)
def test_a_trial_of_all_chunks_before_the_first_step_changes_nothing(pools: Pools, text: str) -> None:
    layout = parse_layout(text)
    plain, tried = (joined(pools.of(layout.num_ranks).run(run_steps, DEEP, WORKLOAD, layout, 2, tries)) for tries in (False, True))
    assert tried.losses == plain.losses and tried.norms == plain.norms
    assert all(np.array_equal(tried.gradients[name], plain.gradients[name]) for name in plain.gradients)


def test_a_round_trip_is_told_by_two_clocks_that_differ() -> None:
    """Stage 0 sends at 10 by its clock and receives the last message at 20; stage 1 holds them from 112 to 118: 2 each way."""
    now_s = [10.0]
    timer = HostTimer()
    timer.moment = lambda: now_s[0]  # type: ignore[method-assign]
    first = RoundTrip(0, timer, num_coming={1: 2}, num_going={1: 2})
    first.sends(1, 0)
    for number, (begun, ended) in enumerate([(11.0, 14.0), (17.0, 20.0)]):
        first.sends(1, 1)
        now_s[0] = begun
        with first.receives(1, number):
            now_s[0] = ended
    assert timer.take() == {"wait_after": [3.0], "away": [10.0]}
    second = RoundTrip(1, timer, num_coming={0: 2}, num_going={0: 2})
    for number, (begun, ended) in enumerate([(101.0, 112.0), (113.0, 114.0)]):
        now_s[0] = begun
        with second.receives(0, number):
            now_s[0] = ended
        now_s[0] = 115.0 + 3 * number
        second.sends(0, number)
    assert timer.take() == {"wait_before": [11.0], "held": [6.0]}


def test_a_stage_that_does_not_know_what_it_sends_times_no_round_trip() -> None:
    timer = HostTimer()
    trip = RoundTrip(0, timer, num_coming={1: 1}, num_going={})
    trip.sends(1, 0)
    with trip.receives(1, 0):
        pass
    assert timer.take() == {}

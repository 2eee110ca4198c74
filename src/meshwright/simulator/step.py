"""Steps of all replicas as a graph of max and plus: the pipeline of each, and the traffic that joins them.

One replica's schedule is walked once, operation by operation; every operation is an array over steps x replicas. What is left of the
traffic between replicas when the pipelines have drained is exposed; without a pipeline the wait for the slowest replica is too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.record.entries import PARTS
from meshwright.simulator import noise as draws
from meshwright.simulator.noise import QUIET, Noise
from meshwright.simulator.planned_step import PlannedStep, Traffic

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Report = Callable[[str, int, int], None]

COLUMNS_PER_BLOCK = 1 << 15  # steps x replicas walked at once: arrays that stay in cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """A rank whose every operation takes `factor` times as long."""

    rank: int
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is simulated in addition to the plan: how strong the noise is, who is slow, and what each stage's rings have of their NICs."""

    noise: Noise = QUIET
    slow: tuple[Slow, ...] = ()
    stage_traffic: tuple[Traffic, ...] = ()  # by stage; empty: the job's own for all


UNDISTURBED = Setting()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """Simulated steps in their order: seconds, and every part of them."""

    step_s: Floats
    parts_s: dict[str, Floats]  # by step.PARTS; they add up to the step
    stall_s: Floats  # of the overhead: what stalls took
    slowest_replica: Ints  # the one whose pipeline drained last
    is_first: NDArray[np.bool_]  # after a start or an evaluation

    def __len__(self) -> int:
        return len(self.step_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Walked:
    """What a walk of the pipelines gives, one entry per step."""

    pipeline_s: Floats  # when the last replica has drained
    waited_s: Floats  # of that: what replicas wait for the last one, the mean of all
    weights_s: Floats  # of that: waiting for weights
    gradients_s: Floats  # when the last gradients are reduced; as pipeline_s where nothing is chained
    slowest_replica: Ints


def simulate(
    planned: PlannedStep,
    num_steps: int,
    seed: int,
    setting: Setting | None = None,
    first_steps: Ints | None = None,
    report: Report | None = None,
) -> Steps:
    """`num_steps` steps of a job. `first_steps` are the numbers (from 0) of those that follow a start or an evaluation.

    Broken off by the user, it returns the steps that are done; before any is, the interrupt goes on.
    """
    setting = setting or Setting()
    setting = replace(setting, noise=setting.noise.of_one_run(np.random.default_rng([seed, 6])))
    firsts = np.array([0]) if first_steps is None else first_steps
    walked = _walked(planned, num_steps, seed, setting, report)
    return _composed(planned, setting, walked, firsts, undisturbed(planned), np.random.default_rng([seed, 2]))


def simulate_typical(planned: PlannedStep, num_steps: int, seeds: Sequence[int], noise: Noise, first_steps: Ints) -> tuple[Steps, ...]:
    """Typical runs of a job that share their pipelines, walked once, and differ in all that disturbs the whole machine.

    Hundreds of steps say enough of how ranks jitter; of a slow drift a run says little, and many runs cost nothing that way.
    """
    setting = Setting(noise=noise.of_typical_run())
    walked, base = _walked(planned, num_steps, seeds[0], setting, None), undisturbed(planned)
    return tuple(_composed(planned, setting, walked, first_steps, base, np.random.default_rng([seed, 2])) for seed in seeds)


def _walked(planned: PlannedStep, num_steps: int, seed: int, setting: Setting, report: Report | None) -> Walked:
    """The pipelines of all steps, block by block; as many as were done when the user broke off."""
    pieces = []
    try:
        for first, count in _blocks(planned, num_steps):
            pieces.append(walk(planned, count, setting, np.random.default_rng([seed, 1, first])))
            if report:
                report("simulating steps", first + count, num_steps)
    except KeyboardInterrupt:
        if not pieces:
            raise
    return Walked(**{name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in Walked.__slots__})


def _blocks(planned: PlannedStep, num_steps: int) -> Iterator[tuple[int, int]]:
    """First step and number of steps of each block; their size depends on the job alone, so that the draws do too."""
    each = max(COLUMNS_PER_BLOCK // planned.plan.layout.dp, 1)
    for first in range(0, num_steps, each):
        yield first, min(each, num_steps - first)


def walk(planned: PlannedStep, num_steps: int, setting: Setting, rng: np.random.Generator, num_replicas: int = 0) -> Walked:
    """The pipelines of all replicas (or of `num_replicas`) over `num_steps` steps, and the chains of traffic that join them."""
    order, noise = planned.schedule, setting.noise
    shape = (num_steps, num_replicas or planned.plan.layout.dp)
    size = shape[0] * shape[1]
    late_s = _late(planned, shape, noise, rng)
    speeds = _speeds(planned, setting.slow)
    gates = _gates(planned, setting)
    kept = set(planned.last_backward.ravel().tolist()) if planned.chains else set()
    free_s = np.zeros((order.num_stages, *shape))
    waited_s = np.zeros((order.num_stages, num_steps))
    arrived_s: dict[int, Floats] = {}
    ready_s: dict[int, Floats] = {}
    waits_for, awaited = order.waits_for.tolist(), planned.is_awaited.tolist()
    durations, hops = planned.duration_s.tolist(), planned.hop_s.tolist()
    for i, stage in enumerate(order.stage.tolist()):
        clock = free_s[stage]
        if waits_for[i] >= 0:
            np.maximum(clock, arrived_s.pop(waits_for[i]), out=clock)
        if i in gates:
            waited_s[stage] += np.maximum(gates[i] - clock, 0.0).max(axis=1)
            np.maximum(clock, gates[i], out=clock)
        duration = durations[i] * speeds[stage] if stage in speeds else durations[i]
        if noise.jitter > 0:
            jitter = draws.group_jitter(planned.ranks_per_group, size, rng).reshape(shape)
            clock += duration * (1.0 + noise.jitter * jitter.astype(np.float64))
        else:
            clock += duration
        if i == planned.last_operation and late_s is not None:
            clock += late_s
        if awaited[i]:
            arrived_s[i] = clock + hops[i]
        if i in kept:
            ready_s[i] = clock.max(axis=1)
    drained_s = free_s.max(axis=0)
    pipeline_s = drained_s.max(axis=1)
    return Walked(
        pipeline_s=pipeline_s,
        waited_s=pipeline_s - drained_s.mean(axis=1),
        weights_s=waited_s.max(axis=0),
        gradients_s=_reduced_s(planned, setting, ready_s, pipeline_s) if planned.chains else pipeline_s,
        slowest_replica=drained_s.argmax(axis=1),
    )


def _speeds(planned: PlannedStep, slow: tuple[Slow, ...]) -> dict[int, Floats]:
    """By stage that has a slow rank: the factor on its operations, by replica. A group goes at the pace of its slowest rank."""
    layout = planned.plan.layout
    speeds: dict[int, Floats] = {}
    for one in slow:
        at = layout.coordinate(one.rank)
        factors = speeds.setdefault(at["pp"], np.ones(layout.dp))
        factors[at["dp"]] = max(factors[at["dp"]], one.factor)
    return speeds


def _late(planned: PlannedStep, shape: tuple[int, int], noise: Noise, rng: np.random.Generator) -> Floats | None:
    """Seconds by which the latest rank of each replica is late; None where none is."""
    if noise.delay == 0:
        return None
    return noise.delay * planned.busy_s * draws.latest_rank(planned.plan.layout, shape, rng)


def _gates(planned: PlannedStep, setting: Setting) -> dict[int, float]:
    """By operation that needs a chunk's weights first: when they are there. Chunks are gathered one after the other."""
    if not planned.chains:
        return {}
    gates = {}
    num_chunks = planned.schedule.num_chunks
    for stage, operations in enumerate(planned.first_forward):
        gather_s = _traffic(planned, setting, stage).gather_s
        for chunk, i in enumerate(operations.tolist()):
            gates[i] = (chunk + 1) * gather_s / num_chunks
    return gates if any(gates.values()) else {}


def _reduced_s(planned: PlannedStep, setting: Setting, ready_s: dict[int, Floats], pipeline_s: Floats) -> Floats:
    """When the last stage has reduced its last gradients: a chunk's leave when every replica has them and the chunk before is through."""
    last_s = pipeline_s
    for stage, operations in enumerate(planned.last_backward):
        each_s = _traffic(planned, setting, stage).reduce_s / planned.schedule.num_chunks
        done_s = np.zeros_like(pipeline_s)
        for i in sorted(operations.tolist()):  # the walk's order, in which the stage finished them
            done_s = np.maximum(done_s, ready_s[i]) + each_s
        last_s = np.maximum(last_s, done_s)
    return last_s


def _traffic(planned: PlannedStep, setting: Setting, stage: int) -> Traffic:
    return setting.stage_traffic[stage] if setting.stage_traffic else planned.traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Undisturbed:
    """The quiet walk of a job, which says what the closed form adds to it."""

    pipeline_s: float  # without the wait for weights
    exposed_dp_s: float


def _composed(planned: PlannedStep, setting: Setting, walked: Walked, firsts: Ints, base: Undisturbed, rng: np.random.Generator) -> Steps:
    """Steps from walked pipelines: with what disturbs the whole machine, the optimizer, the host and storage."""
    pipeline_s = walked.pipeline_s - walked.weights_s
    wide = _machine_wide(planned, setting.noise, len(pipeline_s), firsts, rng)
    parts = {part: np.full(len(pipeline_s), seconds) for part, seconds in planned.parts_s.items()}
    # The closed form of the prediction and the walk differ by a constant where hiding is short: the prediction's is kept.
    parts["exposed_dp"] = parts["exposed_dp"] + (_exposed_dp_s(planned, setting, walked) - base.exposed_dp_s)
    for part, late_s in _late_parts(planned, walked, pipeline_s - base.pipeline_s).items():
        parts[part] = parts[part] + late_s
    parts["compute"] = parts["compute"] + wide["drift"]
    parts["overhead"] = parts["overhead"] + wide["stall"] + wide["first"]
    parts["data"] = np.zeros(len(pipeline_s))
    busy_s = np.sum([parts[part] for part in PARTS], axis=0)
    parts["data"] = np.maximum(planned.read_s - busy_s, 0.0)
    is_first = np.zeros(len(pipeline_s), dtype=bool)
    is_first[firsts[firsts < len(is_first)]] = True
    return Steps(
        step_s=np.asarray(busy_s + parts["data"]),
        parts_s=parts,
        stall_s=wide["stall"],
        slowest_replica=walked.slowest_replica,
        is_first=is_first,
    )


def _late_parts(planned: PlannedStep, walked: Walked, late_s: Floats) -> dict[str, Floats]:
    """By part of the step, the seconds by which the pipelines drain later than undisturbed, where the trainer books them.

    Stages of a pipeline wait for each other: bubble. Without one, a replica is slower at its own work, and the others wait for the slowest
    where their gradients meet. Parts are means over replicas, as in a measured step (train.measured.parts_of).
    """
    if planned.plan.layout.pp > 1:
        return {"bubble": late_s}
    return {"compute": late_s - walked.waited_s, "exposed_dp": walked.waited_s}


def undisturbed(planned: PlannedStep) -> Undisturbed:
    """The job without noise: what the bucket chains leave exposed, and by how much the closed form differs from them."""
    quiet = walk(planned, 1, UNDISTURBED, np.random.default_rng(0), num_replicas=1)
    exposed_s = float(_exposed_dp_s(planned, UNDISTURBED, quiet)[0])
    pipeline_s = float(quiet.pipeline_s[0] - quiet.weights_s[0])
    return Undisturbed(pipeline_s=pipeline_s, exposed_dp_s=exposed_s)


def _exposed_dp_s(planned: PlannedStep, setting: Setting, walked: Walked) -> Floats:
    """Seconds that traffic between replicas adds to each step: what is left over, and what the hidden part takes from compute."""
    traffic = [_traffic(planned, setting, stage) for stage in range(planned.schedule.num_stages)]
    if not planned.chains:
        return np.full(len(walked.pipeline_s), max(one.closed_s for one in traffic))
    total_s = max(one.reduce_s + one.gather_s for one in traffic)
    open_s = walked.gradients_s - walked.pipeline_s + walked.weights_s
    return np.asarray(open_s + planned.traffic.contention * np.maximum(total_s - open_s, 0.0))


def _machine_wide(planned: PlannedStep, noise: Noise, num_steps: int, firsts: Ints, rng: np.random.Generator) -> dict[str, Floats]:
    """Seconds that the whole machine loses in each step: to drift and a slow run, to stalls, to first steps."""
    run = noise.run_spread * float(rng.standard_exponential())
    drift_s = planned.busy_s * (noise.drift * draws.drift_path(num_steps, rng) + run)
    stall_s = draws.stalls(num_steps, planned.plan.layout.num_ranks, planned.step_s, noise, rng)
    first_s, deviates = np.zeros(num_steps), rng.standard_exponential(num_steps)
    inside = firsts[firsts < num_steps]
    first_s[inside] = deviates[inside] * noise.after_evaluation_s
    if len(inside) and inside[0] == 0:
        first_s[0] = deviates[0] * noise.first_step_s
    return {"drift": drift_s, "stall": stall_s, "first": first_s}

"""How fast the simulator is, and the figures of docs/simulator.md.

`python benchmarks/simulate.py` prints a dated table of speed; with `figures`, what the record machine, weak scaling, weeks and checkpoint
advice come to (minutes); with `averages`, the error of everything that is averaged.

2026-11-15, 2 cores x86_64 shared with other work, Python 3.11.7, numpy 2.4.6, one core:
  record run, 8,192 GPUs, 324 steps, every rank      0.32 s of the core,   0.32 s by the clock
  one exact step of 1,024 GPUs                       0.06 s of the core,   0.06 s by the clock, at most 0.07 GB so far
  one exact step of 8,192 GPUs                       0.05 s of the core,   0.05 s by the clock, at most 0.07 GB so far
  one exact step of 32,768 GPUs                      0.07 s of the core,   0.07 s by the clock, at most 0.07 GB so far
  one exact step of 131,072 GPUs                     0.09 s of the core,   0.09 s by the clock, at most 0.07 GB so far
  one exact step of 1,048,576 GPUs                   0.20 s of the core,   0.20 s by the clock, at most 0.07 GB so far
  54 days of 16,384 GPUs, 1 runs                     0.64 s of the core,   0.64 s by the clock
  54 days of 16,384 GPUs, 100 runs                   0.59 s of the core,   0.59 s by the clock
"""

from __future__ import annotations

import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from meshwright.describe.failures import failures
from meshwright.describe.load import load_workload
from meshwright.job import Job
from meshwright.plan.plan import Plan, job_of, plan_of
from meshwright.simulator.checkpoints import advice_errors
from meshwright.simulator.exposure import exposed_between_replicas
from meshwright.simulator.fabric import Fabric
from meshwright.simulator.logs import step_logs
from meshwright.simulator.noise import group_jitter
from meshwright.simulator.outlook import campaign_of, mean_step, outlook
from meshwright.simulator.planned_step import planned_step
from meshwright.simulator.run import Conditions, OverSeeds, run_plan, seeds_of
from meshwright.simulator.step import Slow, undisturbed
from meshwright.units import DAY

RACK = 64
SEEDS = 100
RECORD_MIN = 424.118 / 60


def record(num_racks: int = 128) -> Plan:
    """The record's layout on so many racks, 8 sequences to each."""
    job = Job("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b", gpus=num_racks * RACK)
    return plan_of(job.changed(f"workload.global_batch={8 * num_racks}").forecast("tp=4,cp=2,pp=8,vp=8,mbs=1"))


def llama3() -> Plan:
    """Llama 3 405B on 16,384 H100: 16 M tokens per step, tensor 8 and pipeline 16, the rest as `meshwright plan` lays it out."""
    workload = replace(load_workload("pretrain-15t"), seq_len=8192, global_batch=2048, precision="bf16")
    job = Job("llama-3.1-405b", "dgx-h100-superpod", workload, gpus=16384)
    return plan_of(job.forecast("tp=8,pp=16,vp=8,mbs=1,zero=3,schedule=interleaved,order=cp-dp-tp-pp"))


def timed(body: Callable[[], object], num_runs: int = 3) -> str:
    """Seconds of the fastest run: of the core, and by the clock (which others' work on the same core lengthens)."""
    core_s, clock_s = [], []
    for _ in range(num_runs):
        starts_s = time.process_time(), time.perf_counter()
        body()
        core_s.append(time.process_time() - starts_s[0])
        clock_s.append(time.perf_counter() - starts_s[1])
    return f"{min(core_s):6.2f} s of the core, {min(clock_s):6.2f} s by the clock"


def peak_gb() -> float:
    """Most memory this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def speed_rows() -> Iterator[str]:
    """One line for each thing that is timed."""
    plan = record()
    yield f"{'record run, 8,192 GPUs, 324 steps, every rank':<48} {timed(lambda: run_plan(plan, Conditions()))}"
    for num_racks in (16, 128, 512, 2048, 16384):
        wide = record(num_racks)
        took = timed(lambda wide=wide: run_plan(wide, Conditions(), 1), 1 if num_racks > 2048 else 3)  # type: ignore[misc]
        yield f"{f'one exact step of {num_racks * RACK:,} GPUs':<48} {took}, at most {peak_gb():.2f} GB so far"
    long, rates = llama3(), failures("llama3")
    campaign = campaign_of(long, rates, None, None)
    for num_seeds in (1, SEEDS):
        took = timed(lambda n=num_seeds: outlook(long, Conditions(), campaign, 0, n, 54 * DAY))  # type: ignore[misc]
        yield f"{f'54 days of 16,384 GPUs, {num_seeds} runs':<48} {took}"


def in_words(value: OverSeeds, form: str) -> str:
    mean, low, high, error = (form.format(number) for number in (value.mean, value.low, value.high, value.standard_error))
    return f"{mean} (80 % of runs {low} to {high}; the mean +- {error})"


def record_rows() -> Iterator[str]:
    """The record run, and weak scaling from 112 racks."""
    medians = {}
    for num_racks, first_seed in ((112, 1000), (128, 0)):  # two machines, two draws: no run shares its luck with one of the other
        runs = list(seeds_of(record(num_racks), Conditions(), 324, first_seed, SEEDS))
        medians[num_racks] = np.array([run.times.median_s for run in runs])
        minutes = OverSeeds.of([run.time_to_train_s / 60 for run in runs])
        yield f"{num_racks} racks, median step [s]: {in_words(OverSeeds.of(medians[num_racks]), '{:.4f}')}"
        yield f"{num_racks} racks, 324 steps and evaluations [min]: {in_words(minutes, '{:.3f}')}"
        if num_racks == 128:
            yield f"record end to end: {minutes.mean:.3f} min simulated, {RECORD_MIN:.3f} logged: {minutes.mean / RECORD_MIN - 1:+.2%}"
    yield f"weak-scaling efficiency 112 -> 128, one run of each: {in_words(OverSeeds.of(medians[112] / medians[128]), '{:.2%}')}"


def fabric_rows() -> Iterator[str]:
    """Exposed time between replicas on the record machine, and what it becomes."""
    plan = record()
    exposed = exposed_between_replicas(job_of(plan), plan.layout)
    yield f"exposed, predicted: {1e3 * exposed.seconds:.1f} ms (80 % {1e3 * exposed.low_s:.1f} to {1e3 * exposed.high_s:.1f})"
    cases = {
        "as it is": Conditions(),
        "7/8 planes, all NICs": Conditions(fabric=Fabric(planes_lost=1)),
        "7/8 planes, one NIC": Conditions(fabric=Fabric(planes_lost=1, nics_hit=1)),
        "6/8 planes, all NICs": Conditions(fabric=Fabric(planes_lost=2)),
        "4/8 planes, all NICs": Conditions(fabric=Fabric(planes_lost=4)),
        "ECMP instead of spraying": Conditions(fabric=Fabric(routing="hashed")),
        "one rank 30 % slower": Conditions(slow=(Slow(rank=4000, factor=1.3),)),
        "twice the jitter": Conditions(jitter=2.0),
    }
    for name, conditions in cases.items():
        runs = list(seeds_of(plan, conditions, 64, 0, 10))
        exposed_ms = OverSeeds.of([1e3 * run.mean_exposed_s["dp"] for run in runs])
        steps = OverSeeds.of([run.times.median_s for run in runs])
        yield f"{name:<26} exposed [ms] {in_words(exposed_ms, '{:.1f}')}; median step [s] {in_words(steps, '{:.4f}')}"


def weeks_rows() -> Iterator[str]:
    """Llama 3's 54 days, and how good the advice on checkpoints is."""
    plan, rates = llama3(), failures("llama3")
    seen = outlook(plan, Conditions(), campaign_of(plan, rates, None, None), 0, SEEDS, 54 * DAY)
    yield f"54 days, 16,384 H100: interruptions {in_words(seen.interruptions, '{:.1f}')}, effective time {in_words(seen.goodput, '{:.2%}')}"
    yield "by cause: " + ", ".join(f"{name} {mean:.1f}" for name, mean in seen.by_cause.items())
    errors = np.abs(advice_errors(1000, 0))
    yield f"checkpoint interval against the simulated best, 1,000 cases: mean {errors.mean():.2%}, worst {errors.max():.2%} off"


def average_rows() -> Iterator[str]:
    """The errors of what is drawn at once or stood in for."""
    for num_ranks in (1, 8, 16):
        exact = sum(1 / k for k in range(1, num_ranks + 1))
        drawn = group_jitter(num_ranks, 1 << 22, np.random.default_rng(0)).astype(np.float64).mean()
        yield f"jitter of a group of {num_ranks}: mean {drawn:.5f}, exact {exact:.5f}: {drawn / exact - 1:+.3%}"
    jobs = [log.planned for log in step_logs() if log.planned.chains]
    shares = [abs(undisturbed(job).exposed_dp_s - job.parts_s["exposed_dp"]) / job.step_s for job in jobs]
    difference = f"differ by {np.mean(shares):.3%} of a step, at most {max(shares):.3%}"
    yield f"buckets walked against the closed form, {len(jobs)} logged layouts: {difference}"
    for name, plan in (("record", record()), ("Llama 3", llama3())):
        alike = Conditions(noise=replace(Conditions().noise_on(planned_step(plan)).of_typical_run(), run_spread=0.0))
        means = np.array([mean_step(plan, alike, seed).seconds for seed in range(20)])
        yield f"mean of 64 steps for all, {name}: standard deviation {np.std(means, ddof=1) / np.mean(means):.3%} over 20 seeds"


def main() -> None:
    processor = platform.processor() or platform.machine()
    print(f"{datetime.now(UTC):%Y-%m-%d}, {processor}, Python {sys.version.split()[0]}, numpy {np.__version__}, one core:")
    asked = {"": (speed_rows,), "figures": (record_rows, fabric_rows, weeks_rows), "averages": (average_rows,)}
    for part in asked[sys.argv[1] if len(sys.argv) > 1 else ""]:
        for row in part():
            print("  " + row, flush=True)


if __name__ == "__main__":
    main()

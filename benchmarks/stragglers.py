"""Whether slow ranks are named and sound ones are not, and whether a hang is ever seen where none is: the detectors on traces.

`python benchmarks/stragglers.py` prints the tables; `--json` prints the same as JSON; `--trials N` changes the number of trials (100).
`--live` also trains on four ranks of this machine, one of which is made slower (or none), five times each. A second table has traces in
which a link, a host's link or a rank is slower, judged by the detectors of links and of ranks together (link_traces.py).

A trial is 50 steps of eight ranks on two stages. Its noise is of one of these kinds:
  drawn      the simulator's noise of one class of machines: jitter, late ranks, stalls; the level of each run is drawn too
  recorded   every rank has a stretch of a logged run of MLPerf, at a random place, divided by the running median: the slow drift of a
             machine is common to its ranks. The rest is the noise of a whole machine, which is more than that of one rank.
  shared     ranks that other programs take cores from: heavy-tailed jitter of 10 %, and now and then 1.2 to 2 times slower for some steps

2026-11-19, 2 cores x86_64 with much other work, Python 3.11.7, torch 2.13:
  noise                    slower by 10 %   30 %   100 %   sound ranks named
  drawn, seven classes                100    100     100   0
  recorded                            100    100     100   0
  shared                                6     89     100   1
Named within 50 steps, of 100 trials each; the last column counts trials in which a sound rank was named. Links: 100 of 100 and none
wrongly in drawn and recorded noise, by 10, 30 and 100 %; docs/training.md has the rest of that table and the live runs.
The hang detector gave no false alarm in 10,000 steps of 0.05, 1, 3, 10 and 60 s, drawn and logged, with steps of 1.6 medians among them.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from link_traces import cases, link_trials
from numpy.typing import NDArray

from meshwright.record.step_times import read_step_times
from meshwright.simulator.logs import FOLDER
from meshwright.simulator.noise import DELAY_TAIL, Noise, stalls
from meshwright.simulator.noise_classes import fitted_noise
from meshwright.train.health.stragglers import Stragglers
from meshwright.train.health.watch import Patience

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int, int], Floats]  # generator, steps, ranks -> busy times in units of the usual one

STAGES = (0, 0, 0, 0, 1, 1, 1, 1)
SLOW_RANK = 5
NUM_STEPS = 50
NUM_OPERATIONS = 64  # passes of micro-batches in a step: each has jitter of its own
DRIFT_WINDOW = 31  # steps, in which the drift of a whole machine changes little
SLOWDOWNS = (1.0, 1.1, 1.3, 2.0)
MEDIANS_S = (0.05, 1.0, 3.0, 10.0, 60.0)  # of a step, for the hang detector
HANG_STEPS = 10_000
LONG_STEP = 1.6  # medians
LONG_SHARE = 0.02  # of the steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """How often a slow rank was named within 50 steps, and how often another one was."""

    noise: str
    slowdown: float
    num_trials: int
    num_named: int
    num_wrong: int


def drawn(noise: Noise) -> Draw:
    """Busy times with the simulator's noise of one class of machines; every call is one run."""

    def draw(rng: np.random.Generator, num_steps: int, num_ranks: int) -> Floats:
        one = noise.of_one_run(rng)
        jitter = one.jitter * rng.standard_gamma(NUM_OPERATIONS, (num_steps, num_ranks)) / NUM_OPERATIONS
        late = one.delay * (rng.random((num_steps, num_ranks)) * num_ranks) ** (-1.0 / DELAY_TAIL)
        stalled = np.stack([stalls(num_steps, 1, 1.0, one, rng) for _ in range(num_ranks)], axis=1)
        return np.asarray(1.0 + jitter + late + stalled)

    return draw


def recorded(folder: Path) -> Draw:
    """Busy times of logged runs: every rank has a stretch of one of them, divided by its running median."""
    seconds = [read_step_times(path).steady_s for path in sorted(folder.glob("*.csv"))]
    logs = [log / _running_median(log) for log in seconds if len(log) >= NUM_STEPS]

    def draw(rng: np.random.Generator, num_steps: int, num_ranks: int) -> Floats:
        log = logs[rng.integers(len(logs))]
        starts = rng.integers(len(log), size=num_ranks)
        return np.stack([np.take(log, range(start, start + num_steps), mode="wrap") for start in starts], axis=1)

    return draw


def _running_median(values: Floats) -> Floats:
    """The median of the `DRIFT_WINDOW` values around each one."""
    half = DRIFT_WINDOW // 2
    padded = np.pad(values, half, mode="edge")
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, DRIFT_WINDOW), axis=1))


def shared(rng: np.random.Generator, num_steps: int, num_ranks: int) -> Floats:
    """Busy times of ranks that other programs take cores from."""
    noise = rng.standard_t(3, (num_steps, num_ranks)) / math.sqrt(3)
    times = np.exp(0.1 * np.clip(noise, -8, 8))
    for rank in range(num_ranks):
        for begin in np.flatnonzero(rng.random(num_steps) < 0.03):
            times[begin : begin + rng.geometric(0.25), rank] *= rng.uniform(1.2, 2.0)
    return times


def kinds(folder: Path) -> dict[str, Draw]:
    """All kinds of noise, by name."""
    classes = fitted_noise()
    return {**{f"drawn, {name}": drawn(classes.of(name)) for name in classes.classes}, "recorded": recorded(folder), "shared": shared}


def trials(name: str, draw: Draw, slowdown: float, num_trials: int) -> Trials:
    """Run the detector on so many traces with one rank that is slower from the start."""
    num_named = num_wrong = 0
    for seed in range(num_trials):
        times = draw(np.random.default_rng([seed, len(name)]), NUM_STEPS, len(STAGES))
        times[:, SLOW_RANK] *= slowdown
        detector = Stragglers(STAGES)
        named = {one.rank for step, row in enumerate(times, start=1) for one in detector.update(step, row) if not one.recovered}
        num_named += SLOW_RANK in named and slowdown > 1.0
        num_wrong += bool(named - ({SLOW_RANK} if slowdown > 1.0 else set()))
    return Trials(noise=name, slowdown=slowdown, num_trials=num_trials, num_named=num_named, num_wrong=num_wrong)


def false_hangs(median_s: float, steps: Floats) -> int:
    """How often the hang detector would end a run whose steps take so many medians, if a rank showed no progress inside a step."""
    patience, now_s, next_tick_s, alarms = Patience(10.0, 600.0), 0.0, 1.0, 0
    for moves, share in enumerate(steps):
        ends_s = now_s + median_s * float(share)
        while next_tick_s < ends_s:
            patience.tick(next_tick_s, moves)
            alarms += patience.overdue
            next_tick_s += patience.beat_s
        patience.step(ends_s - now_s)
        now_s = ends_s
    return alarms


def hang_traces(folder: Path) -> Iterator[tuple[str, Floats]]:
    """Steps in units of their median: with a spread of 3 % and some of 1.6 medians, and all logged runs one after another."""
    rng = np.random.default_rng(1)
    steps = np.exp(0.03 * rng.standard_normal(HANG_STEPS))
    yield "3 % spread, some of 1.6 medians", np.where(rng.random(HANG_STEPS) < LONG_SHARE, LONG_STEP, steps)
    logs = [times.seconds / times.median_s for times in (read_step_times(path) for path in sorted(folder.glob("*.csv")))]
    joined = np.concatenate([np.maximum(log, np.where(rng.random(len(log)) < LONG_SHARE, LONG_STEP, 0.0)) for log in logs])
    yield "logged runs, some steps of 1.6 medians", np.resize(joined, HANG_STEPS)


def live(slowdown: float, number: int) -> dict[str, object]:
    """Train on four ranks, one of which computes longer; which ranks were named within 50 steps, and when."""
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_trained, args=(folder, slowdown))
        process.start()
        process.join()
        busy_s = json.loads((Path(folder) / "runs" / "a" / "ranks.json").read_text())["busy_s"]
        events = [json.loads(line) for line in (Path(folder) / "runs" / "a" / "events.jsonl").read_text().splitlines()]
    named = [(event["rank"], event["step"]) for event in events if event["kind"] == "slow_rank"]
    ratio = busy_s[1] / float(np.median([busy_s[rank] for rank in (0, 2, 3)]))
    return {"slowdown": slowdown, "run": number, "named": named, "ratio": round(ratio, 2), "load": round(os.getloadavg()[0], 1)}


def _trained(folder: str, slowdown: float) -> None:
    """Train in a process of its own, whose ranks inherit a slower computation on rank 1."""
    import time

    import torch.distributed as dist

    from meshwright.cli.main import main
    from meshwright.train.parallel.pipeline import Stage

    os.chdir(folder)
    run = Stage.run

    def slowly(self: Stage, *arguments: object) -> object:
        begun_s = time.perf_counter()  # of the wall: ranks that share cores take longer than their processor time
        found = run(self, *arguments)  # type: ignore[arg-type]
        if dist.get_rank() == 1:
            time.sleep((slowdown - 1) * (time.perf_counter() - begun_s))
        return found

    Stage.run = slowly  # type: ignore[method-assign, assignment]
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    main(["train", "--layout", "dp=4,mbs=4,zero=0", "--steps", "53", "--name", "a", "--no-save", "--profile", "none"])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--logs", type=Path, default=FOLDER, help="folder of logged step times")
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = [trials(name, draw, slowdown, given.trials) for name, draw in kinds(given.logs).items() for slowdown in SLOWDOWNS]
    draws = kinds(given.logs)
    links = [link_trials(name, draw, case, given.trials) for name, draw in draws.items() for case in cases(SLOWDOWNS[1:])]
    hangs = [(name, median_s, false_hangs(median_s, steps)) for name, steps in hang_traces(given.logs) for median_s in MEDIANS_S]
    runs = [live(slowdown, number) for number in range(5) for slowdown in (1.3, 2.0, 1.0)] if given.live else []
    if given.json:
        print(json.dumps({"trials": [asdict(one) for one in found], "links": [asdict(one) for one in links], "hangs": hangs, "live": runs}))
        return
    print(f"{'noise':24} {'slower by':>9}  {'named':>9}  {'a wrong one':>11}")
    for one in found:
        by = f"{100 * (one.slowdown - 1):.0f} %" if one.slowdown > 1 else "sound"
        print(f"{one.noise:24} {by:>9}  {one.num_named:4} / {one.num_trials}  {one.num_wrong:11}")
    print(f"\n{'noise':24} {'slower':20} {'by':>6}  {'named':>9}  {'a wrong one':>11}")
    for link in links:
        by = f"{100 * (link.slowdown - 1):.0f} %"
        print(f"{link.noise:24} {link.what:20} {by:>6}  {link.num_named:4} / {link.num_trials}  {link.num_wrong:11}")
    for name, median_s, alarms in hangs:
        print(f"hang detector, {HANG_STEPS:,} steps of {median_s:g} s, {name}: {alarms} false alarms")
    for run in runs:
        by = f"slower by {100 * (float(str(run['slowdown'])) - 1):.0f} %, busy {run['ratio']} times as long as the others"
        print(f"live, rank 1 {by}: named (rank, step) {run['named']}, load {run['load']}")


if __name__ == "__main__":
    main()

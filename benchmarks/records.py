"""What records cost a training step on rank 0: `python benchmarks/records.py` prints a dated table.

Parts are timed alone. Their share of a step is measured in a real run of the embedded default, by that run's own timers: the time of each
step on one side; the exchange of times over all ranks, the records, the MLPerf line and the watch on the other, as `recording_s` in
steps.jsonl.

2026-11-15, 2 cores x86_64 otherwise idle, Python 3.11.7, numpy 2.4.6; parts in processor time, shares in wall time:
  step record                       28.2 us
  MLPerf line                       90.5 us
  marks around a collective          0.5 us
  slow ranks among 8               105.0 us
  slow ranks among 1024           1540.2 us
  reading 5000 steps back          195.3 ms
  share of a step, the default layout            1.00 % of all time,  0.84 % at the median (35 steps; times ride in the step's sum)
  share of a step, dp=2                          0.77 % of all time,  0.49 % at the median
The default's eight ranks share two cores: what is left of its share is rank 0's wait for a core, not work.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from meshwright.describe.load import load_model
from meshwright.record.entries import PARTS, StepRecord
from meshwright.record.header import RunHeader
from meshwright.record.run import read_run
from meshwright.record.writer import RunWriter
from meshwright.train.benchmark.settings import OWN, LogSettings
from meshwright.train.health.stragglers import Stragglers
from meshwright.train.parallel.marks import Marks
from meshwright.train.record.mlperf import MlperfLog

NUM_STEPS = 5_000
NUM_TRAINED_STEPS = 60
LAYOUTS = ("", "dp=2", "dp=1")  # eight ranks, as many as two cores have room for, and one
SETTINGS = LogSettings(
    model=load_model("llama-3.1-8b"),
    dataset="none",
    platform="none",
    organisation="meshwright",
    seed=1,
    global_batch=32,
    gradient_accumulation_steps=1,
    sequence_length=128,
    train_samples=1,
    eval_samples=1,
    target=1.0,
    max_steps=1,
    base_learning_rate=1e-3,
    end_learning_rate=1e-4,
    warmup_steps=0,
    decay_steps=1,
    beta_1=0.9,
    beta_2=0.95,
    epsilon=1e-5,
    weight_decay=0.1,
    clip_norm=1.0,
    micro_batch=1,
    tp=1,
    pp=1,
    cp=1,
)


def mean_us(body: Callable[[int], object], num_calls: int = NUM_STEPS) -> float:
    """Mean microseconds of processor time of a call, over many: what a step pays, whatever else the machine does meanwhile."""
    start_s = time.process_time()
    for number in range(1, num_calls + 1):
        body(number)
    return 1e6 * (time.process_time() - start_s) / num_calls


def a_step(number: int) -> StepRecord:
    parts_s = dict.fromkeys(PARTS, 0.01)
    return StepRecord(step=number, samples=32 * number, loss=3.0, grad_norm=1.0, step_s=0.1, parts_s=parts_s, extra={"tokens_per_s": 4e4})


def rows(folder: Path) -> list[tuple[str, float, str]]:
    """Each part's name, cost and unit."""
    with RunWriter.create(folder, RunHeader(name="run", kind="trained", seed=1, num_ranks=8, machine="none")) as writer:
        step_us = mean_us(lambda number: writer.step(a_step(number)))
    read_us = mean_us(lambda _: read_run(folder / "run"), 3)
    log = MlperfLog(folder / "log", OWN, SETTINGS)
    log_us = mean_us(lambda number: log.step(number, 32 * number, 3.0, 0.1, 1e-3))
    log.close()
    marks, ranks = Marks(), (0, 1)
    marks_us = mean_us(lambda _: (marks.enter("all-gather", "tp", ranks), marks.leave()), 100_000)
    found = [("step record", step_us, "us"), ("MLPerf line", log_us, "us"), ("marks around a collective", marks_us, "us")]
    for num_ranks in (8, 1024):
        detector = Stragglers([0] * num_ranks)
        busy_s = 0.1 + 0.005 * np.random.default_rng(1).random((NUM_STEPS, num_ranks))
        found.append(
            (f"slow ranks among {num_ranks}", mean_us(lambda number, d=detector, b=busy_s: d.update(number, b[number - 1]), 2_000), "us")
        )
    found += [("checks of 2 M gradients", checks_us(2_000_000), "us")]
    return [*found, (f"reading {NUM_STEPS} steps back", read_us / 1e3, "ms")]


def checks_us(num_parameters: int) -> float:
    """Microseconds that the search for damaged numbers adds to a step on one rank: sums, largest value and digest."""
    import torch

    from meshwright.train.parallel.digests import Digests
    from meshwright.train.parallel.shards import measures_of, squares_of, sum_of

    torch.set_num_threads(1)
    gradient = torch.randn(num_parameters)
    digests = Digests([gradient] * 3)  # weights and both moments
    all_us = mean_us(lambda _: (measures_of(gradient), sum_of(gradient), digests.next()), 200)
    return all_us - mean_us(lambda _: squares_of([gradient]), 200)  # that was computed before, for the norm


def shares_pct(folder: Path, layout: str) -> tuple[float, float]:
    """Recording against training in one run: of all its time, and at the median step, in percent."""
    name = layout or "default"
    arguments = ["train", "--runs", str(folder), "--name", name, "--steps", str(NUM_TRAINED_STEPS), "--no-save", "--json"]
    given = ["--layout", layout] if layout else []
    subprocess.run([sys.executable, "-m", "meshwright", *arguments, *given], check=True, capture_output=True)
    records = read_run(folder / name).records
    recording_s, training_s = np.array([(step.extra["recording_s"], step.step_s) for step in records[2:]]).T
    return 100 * recording_s.sum() / training_s.sum(), 100 * float(np.median(recording_s) / np.median(training_s))


def main() -> int:
    print(f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}")
    with TemporaryDirectory() as folder:
        for name, cost, unit in rows(Path(folder)):
            print(f"  {name:<28} {cost:9.1f} {unit}")
        for layout in LAYOUTS:
            of_all, at_median = shares_pct(Path(folder), layout)
            print(f"  share of a step, {layout or 'the default layout':<28} {of_all:5.2f} % of all time, {at_median:5.2f} % at the median")
    return 0


if __name__ == "__main__":
    sys.exit(main())

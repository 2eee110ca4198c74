"""Products of large models on one GPU, for seconds on end: at which rate, which clock and which power.

    python benchmarks/power.py [--case NAME]... [--seconds S] [--out FILE]

The products of one layer (forward, input gradient and weight gradient, on normal random numbers) run one after another without a pause, as
in a step whose batch is large. A GPU at its power limit lowers its clock, so a rate that holds for the first tenth of a second need not
hold for a whole step. Without a GPU the script says so, claims nothing and exits with 0; `--dry-run` runs the same code on the processor
with tiny shapes, and its figures mean nothing.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from h200_parts.child import Results, say

from meshwright.describe.load import load_model
from meshwright.describe.model import Model

NOTHING = "nothing was measured, and nothing is claimed"
REST_S = 4.0  # before each case, so that none begins with the heat of another
AT_ONCE_S, SETTLED = 0.2, 0.5  # the first seconds, and the share at the end that counts as settled
ASKED = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw,temperature.gpu", "--format=csv,noheader,nounits", "--id=0", "-lms", "100"]


@dataclass(frozen=True)
class Case:
    """A layer of a model, divided among TP ranks, and the rows that each product has."""

    name: str
    model: str
    tp: int
    rows: int


CASES = (
    Case("1B", "llama-3.2-1b", 1, 16384),
    Case("8B", "llama-3.1-8b", 1, 8192),
    Case("70B tp8", "llama-3.1-70b", 8, 8192),
    Case("405B tp4 cp2", "llama-3.1-405b", 4, 4096),
)


def shapes_of(model: Model, tp: int) -> dict[str, tuple[int, int]]:
    """Width in and width out of a layer's products on one rank."""
    return {
        "qkv": (model.hidden, (model.query_dim + 2 * model.kv_dim) // tp),
        "o": (model.value_dim // tp, model.hidden),
        "gate and up": (model.hidden, 2 * model.ffn_hidden // tp),
        "down": (model.ffn_hidden // tp, model.hidden),
    }


def products(shapes: dict[str, tuple[int, int]], rows: int, device: torch.device) -> tuple[list[Callable[[], object]], float]:
    """The products of a layer, and how many operations they are."""
    works: list[Callable[[], object]] = []
    num_operations = 0.0
    for width, out in shapes.values():
        given, gradient = (torch.randn(rows, side, device=device, dtype=torch.bfloat16) for side in (width, out))
        weight = torch.randn(out, width, device=device, dtype=torch.bfloat16)
        works += [partial(torch.mm, given, weight.T), partial(torch.mm, gradient, weight), partial(torch.mm, gradient.T, given)]
        num_operations += 6.0 * rows * width * out
    return works, num_operations


@contextmanager
def sampled(is_gpu: bool) -> Iterator[list[tuple[float, float, float, float]]]:
    """Second, clock in MHz, power in W and degrees of the first GPU, ten times a second, as the driver says them."""
    samples: list[tuple[float, float, float, float]] = []
    if not is_gpu:
        yield samples
        return
    with subprocess.Popen(ASKED, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None

        def read(lines: Iterator[str]) -> None:
            for line in lines:
                try:
                    clock, power, degrees = (float(word) for word in line.split(","))
                except ValueError:  # a value that this GPU does not give
                    continue
                samples.append((time.monotonic(), clock, power, degrees))

        reader = Thread(target=read, args=(iter(process.stdout),), daemon=True)
        reader.start()
        try:
            yield samples
        finally:
            process.terminate()


def measured(case: Case, seconds: float, device: torch.device) -> dict[str, Any]:
    """The rate at once and when it has settled, and what the driver said meanwhile."""
    is_gpu = device.type == "cuda"
    finish = torch.cuda.synchronize if is_gpu else (lambda: None)
    works, num_operations = products(shapes_of(load_model(case.model), case.tp) if is_gpu else {"tiny": (64, 64)}, case.rows, device)
    for work in works:  # first calls choose algorithms
        work()
    finish()
    if is_gpu:
        time.sleep(REST_S)
    rounds: list[tuple[float, float]] = []  # when a round ended, and how long it took
    with sampled(is_gpu) as samples:
        started_s = before_s = time.monotonic()
        while before_s < started_s + seconds:
            for work in works:
                work()
            finish()  # once a round, of tens of products: microseconds beside tens of milliseconds
            now_s = time.monotonic()
            rounds.append((now_s - started_s, now_s - before_s))
            before_s = now_s
    at_once = [took_s for end_s, took_s in rounds if end_s < AT_ONCE_S] or [rounds[0][1]]
    settled = [took_s for end_s, took_s in rounds if end_s > SETTLED * seconds] or [rounds[-1][1]]
    late = [sample[1:] for sample in samples if sample[0] > started_s + SETTLED * seconds]
    clock, power, degrees = [statistics.median(values) for values in zip(*late, strict=True)] if late else [None] * 3
    return {
        "case": case.name,
        "rows": case.rows,
        "round_s": statistics.median(settled),
        "at_once_tflops": num_operations / statistics.median(at_once) / 1e12,
        "settled_tflops": num_operations / statistics.median(settled) / 1e12,
        "clock_mhz": clock,
        "power_w": power,
        "degrees": degrees,
    }


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What was found, as a page shows it."""
    lines = ["| layer | rows | at once | settled | clock | power |", "| --- | --: | --: | --: | --: | --: |"]
    for row in rows:
        clock, power = (f"{row[name]:,.0f} {unit}" if row[name] else "-" for name, unit in (("clock_mhz", "MHz"), ("power_w", "W")))
        rates = f"{row['at_once_tflops']:.1f} TFLOP/s | {row['settled_tflops']:.1f} TFLOP/s"
        lines.append(f"| {row['case']} | {row['rows']:,} | {rates} | {clock} | {power} |")
    return lines


def main(words: Sequence[str] | None = None) -> int:
    """Run the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", default=[], choices=[case.name for case in CASES])
    parser.add_argument("--seconds", type=float, default=8.0, help="of each case (default %(default)s)")
    parser.add_argument("--out", type=Path, help="write results here as they come, as JSON")
    parser.add_argument("--dry-run", action="store_true", help="on the processor with tiny shapes: the figures mean nothing")
    given = parser.parse_args(words)
    if not torch.cuda.is_available() and not given.dry_run:
        say(f"no GPU here: {NOTHING}")
        return 0
    device = torch.device("cpu" if given.dry_run else "cuda")
    name = "dry run on the processor: the figures mean nothing" if given.dry_run else torch.cuda.get_device_name()
    results = Results(given.out, {"date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", "device": name, "torch": torch.__version__})
    for case in CASES:
        if not given.case or case.name in given.case:
            results.add("products", measured(replace(case, rows=8) if given.dry_run else case, given.seconds, device))
            say(table(results.rows("products"))[-1])
    say("\n".join([f"\n{results.content['date']}, {name}, torch {torch.__version__}\n", *table(results.rows("products"))]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

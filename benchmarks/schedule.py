"""How fast the exact schedules and the closed form are: `python benchmarks/schedule.py` prints a dated table.

2026-11-15, AMD EPYC virtual machine, Python 3.11.7, numpy 2.4, one core:
  1f1b         pp=8   vp=1   m=288     4608 ops      5.1 ms anew      1.7 ms cached
  interleaved  pp=8   vp=8   m=288    36864 ops     37.8 ms anew     13.7 ms cached
  zero-bubble  pp=8   vp=1   m=288     6912 ops      6.7 ms anew      2.5 ms cached
  zero-bubble  pp=8   vp=8   m=288    55296 ops     48.7 ms anew     13.8 ms cached
  interleaved  pp=16  vp=12  m=288   110592 ops     84.5 ms anew     31.2 ms cached
  1f1b         closed form, 250000 layouts     27.5 ms
  interleaved  closed form, 250000 layouts     45.8 ms
  zero-bubble  closed form, 250000 layouts     86.2 ms
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np

from meshwright.cost import schedule
from meshwright.cost.pipeline import ChunkTimes, pipeline_s

NUM_LAYOUTS = 250_000
ROWS_PER_CALL = 8_192  # columns that stay in cache
SHAPES = [
    ("1f1b", 8, 1, 288),
    ("interleaved", 8, 8, 288),
    ("zero-bubble", 8, 1, 288),
    ("zero-bubble", 8, 8, 288),
    ("interleaved", 16, 12, 288),
]


def best_ms(body: Callable[[], object], num_runs: int) -> float:
    """Milliseconds of the fastest run."""
    times_s = []
    for _ in range(num_runs):
        start_s = time.perf_counter()
        body()
        times_s.append(time.perf_counter() - start_s)
    return 1e3 * min(times_s)


def schedule_row(name: str, pp: int, vp: int, m: int) -> str:
    """One line: operations, and milliseconds with the order built anew and with it cached."""
    forward_s = np.full((pp, vp), 1.0)
    forward_s[-1, -1] = 1.3

    def walk() -> schedule.Timeline:
        return schedule.evaluate(schedule.schedule_named(name, pp, vp, m), forward_s, 2 * forward_s, weight_s=0.8 * forward_s)

    def walk_anew() -> None:
        schedule._build.cache_clear()  # the only way to see what the first call costs
        walk()

    shape = f"{name:<12} pp={pp:<3} vp={vp:<3} m={m:<4} {len(walk().start_s):>7} ops"
    return f"{shape} {best_ms(walk_anew, 3):8.1f} ms anew {best_ms(walk, 7):8.1f} ms cached"


def closed_form_row(name: str, vp_choices: list[int], zero_bubble: bool) -> str:
    """One line: milliseconds to price many layouts."""
    rng = np.random.default_rng(0)
    pp = rng.choice([2, 4, 8, 16], NUM_LAYOUTS)
    vp, m = rng.choice(vp_choices, NUM_LAYOUTS), pp * rng.integers(1, 20, NUM_LAYOUTS)
    forward_s = rng.uniform(0.5, 1.5, NUM_LAYOUTS)

    def price() -> None:
        for first in range(0, NUM_LAYOUTS, ROWS_PER_CALL):
            rows = slice(first, first + ROWS_PER_CALL)
            f = forward_s[rows]
            times = ChunkTimes(forward_s=f, backward_s=2 * f, weight_s=0.8 * f, last_forward_s=0.1 * f, last_backward_s=0.2 * f)
            pipeline_s(m[rows], pp[rows], vp[rows], times, 0.05 * f, zero_bubble=zero_bubble)

    return f"{name:<12} closed form, {NUM_LAYOUTS} layouts {best_ms(price, 3):8.1f} ms"


def main() -> None:
    print(f"{datetime.now(UTC):%Y-%m-%d}, {platform.processor() or platform.machine()}, Python {sys.version.split()[0]}, one core:")
    for shape in SHAPES:
        print("  " + schedule_row(*shape))
    for name, vp_choices, zero_bubble in (("1f1b", [1], False), ("interleaved", [2, 4, 8], False), ("zero-bubble", [1, 2, 4], True)):
        print("  " + closed_form_row(name, vp_choices, zero_bubble))


if __name__ == "__main__":
    main()

"""Measures how fast one core multiplies and copies: a separate program, which `this_machine` starts with BLAS limited to one thread.

Seconds are processor time of this thread, so that other programs on the machine hardly change them. Several threads of BLAS cannot be timed
like this, because they use processor time while they wait for each other. The number of threads is fixed when numpy is loaded, so this must
be a separate program.
"""

import json
import math
import time
from collections.abc import Callable

import numpy as np

ROUNDS = 5  # multiplications and copies by turns: a moment at a low clock strikes some of them only
ROUND_S = 0.02  # of processor time, for each of the two
MATRIX = 256  # a try in a fraction of a millisecond, which is seldom interrupted
COPY_BYTES = 64_000_000


def speed() -> dict[str, float]:
    """FLOP/s of a square fp32 multiplication, and the bytes per second that a copy reads and writes together: the best of many tries."""
    a = np.ones((MATRIX, MATRIX), dtype=np.float32)
    source = np.ones(COPY_BYTES, dtype=np.uint8)
    product, target = np.empty_like(a), np.empty_like(source)
    multiply_s, copy_s = best_s(lambda: np.matmul(a, a, out=product), lambda: np.copyto(target, source))
    return {"flops_per_s": 2.0 * MATRIX**3 / multiply_s, "bytes_per_s": 2.0 * COPY_BYTES / copy_s}


def best_s(*works: Callable[[], object], clock: Callable[[], float] = time.thread_time) -> list[float]:
    """Seconds by `clock` of each work's fastest try, after one to warm up.

    A clock may tick more slowly than a try takes: then the tries within a tick share it.
    """
    best = [math.inf] * len(works)
    for work in works:
        work()
    for _ in range(ROUNDS):
        for number, work in enumerate(works):
            start = now = clock()
            while now < start + ROUND_S:
                before, tries = now, 0
                while now == before:
                    work()
                    tries += 1
                    now = clock()
                best[number] = min(best[number], (now - before) / tries)
    return best


if __name__ == "__main__":
    print(json.dumps(speed()))

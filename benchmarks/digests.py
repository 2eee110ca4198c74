"""What the comparison of replicas' states costs: processor time of the digests, as a share of that of all steps.

    python benchmarks/digests.py

Trains a built-in model with two replicas, and adds up the processor time that rank 0 spends in digests and in whole steps. Unlike wall
time, this does not depend on other work on the machine.

"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "train"))

NUM_STEPS = 40
SKIPPED = 4  # first steps


def plant(path: str) -> None:
    """Time digests and steps in every rank that will be forked; rank 0 writes the sums."""
    import torch.distributed as dist

    from meshwright.train.parallel.digests import Digests
    from meshwright.train.replica import Replica

    spent = {"digests": 0.0, "steps": 0.0, "count": 0.0}
    digest, step = Digests.next, Replica.step

    def timed_digest(self: Any) -> Any:
        begun_s = time.thread_time()
        found = digest(self)
        spent["digests"] += time.thread_time() - begun_s
        return found

    def timed_step(self: Any, *arguments: Any) -> Any:
        begun_s = time.process_time()
        found = step(self, *arguments)
        spent["steps"] += time.process_time() - begun_s
        spent["count"] += 1
        if spent["count"] == SKIPPED:
            spent.update(digests=0.0, steps=0.0)
        if dist.get_rank() == 0:
            Path(path).write_text(json.dumps(spent))
        return found

    Digests.next, Replica.step = timed_digest, timed_step  # type: ignore[method-assign]


def main() -> None:
    """Print the share."""
    from small_run import start

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        given = ["train", "--layout", "dp=2,mbs=4", "--steps", str(NUM_STEPS), "--name", "a", "--no-save", "--profile", "none"]
        command = start(folder, given, before=plant, with_=(str(folder / "spent.json"),))
        assert command.wait(1200.0) == 0, command.err
        spent = json.loads((folder / "spent.json").read_text())
    per_step = [1e3 * spent[name] / (spent["count"] - SKIPPED) for name in ("digests", "steps")]
    print(f"digests {per_step[0]:.3f} ms of {per_step[1]:.1f} ms of processor time a step: {spent['digests'] / spent['steps']:.3%}")


if __name__ == "__main__":
    main()

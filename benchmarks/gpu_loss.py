"""A replica is killed on a GPU: whether the other one goes on, and after how long.

    python benchmarks/gpu_loss.py --trials 3

Two replicas of one rank share the first GPU (`--ranks-per-gpu 2`: docs/gpus.md says which NCCL this needs), or have one each
(`--ranks-per-gpu 1`). One is killed (SIGKILL) in the middle of a run. The state stays in the memory of the
GPU; with ZeRO a copy of each rank's part is at the other one, in host memory. Without a GPU the script says so and ends.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fault_record import lines

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "train"))

if TYPE_CHECKING:
    from small_run import Command

NUM_STEPS, KILLED_AFTER = 400, 40
GPU_CLUSTER = "hgx-h200-ndr"


def ranks_of(command: Command) -> list[int]:
    """The process ids of both ranks: the command's own children, of which the process of the store was started first."""
    children = []
    for pid in command.others():
        with suppress(OSError):  # ended meanwhile
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            children += [pid] if parent == command.pid else []  # a rank may have processes of its own, such as a compiler
    return sorted(children)[-2:]


def tried(folder: Path, corpus: Path, per_gpu: int, victim: int) -> str:
    """One run of which one rank is killed; what the record says."""
    from small_run import Small, train

    plan = Small(corpus=corpus, cluster=GPU_CLUSTER).plan_file(folder / "plan.json", "dp=2,zero=1", training={"most_samples": 10**6})
    options = ("--steps", str(NUM_STEPS), "--checkpoint-every", "50", "--profile", "none", "--ranks-per-gpu", str(per_gpu))
    command = train(folder, plan, "--name", "run", "--keep-going", *options)
    run = folder / "runs" / "run"
    command.step(run, KILLED_AFTER)
    killed = time.monotonic()
    os.kill(ranks_of(command)[victim], signal.SIGKILL)
    command.step(run, KILLED_AFTER + 5)
    seconds = time.monotonic() - killed
    code = command.wait(300.0)
    events = lines(run / "events.jsonl")
    incidents = [f"{event['action']}, down {event.get('down_s', 0.0):.2f} s" for event in events if event["kind"] == "incident"]
    if not incidents:
        raise SystemExit(f"a rank was killed after step {KILLED_AFTER}, and the record knows of no incident: nothing was shown")
    return f"exit {code}; five steps after {seconds:.2f} s; {'; '.join(incidents)}" + (f"\n{command.err[-3000:]}" if code else "")


def main() -> int:
    """Kill each rank in turn."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--ranks-per-gpu", type=int, default=2)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU here: nothing to try")
        return 0
    from small_run import make_corpus

    base = Path(tempfile.mkdtemp(prefix="meshwright-gpu-"))
    corpus = make_corpus(base / "made")
    for trial in range(given.trials):
        folder = base / str(trial)
        folder.mkdir()
        print(f"rank {trial % 2} killed: {tried(folder, corpus, given.ranks_per_gpu, trial % 2)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

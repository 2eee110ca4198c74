"""A rank is killed on a GPU: whether the run goes on, after how long, and if not, why.

    python benchmarks/gpu_loss.py [control] [loss] [restart] [--limit-s 100] [--model 3b] [--out FILE]

`control`: two processes without NCCL share the GPU, and one is killed. If that takes the other one along, MPS has done it, and not
meshwright. `loss`: of a run of two replicas that share the GPU (`--ranks-per-gpu 2`: docs/gpus.md says which NCCL this needs), or have one
each (`--ranks-per-gpu 1`), one is killed (SIGKILL): when the other one goes on, and when both are together again. With ZeRO a copy of each
rank's part of the state is at the other one, in host memory. If the control has failed, or a loss was not recovered from, a loss is tried
without MPS: the GPU then gives each process slices of time, so that none can take another one along. `restart`: a rank of a larger model
(`--model 3b`: the shape of Llama 3.2 3B with all its layers, weights and moments in bf16) is killed after its first checkpoint, and comes
back from it: from the kill to the next step. `--replicas 2` has two of them on the GPU, of which one is killed, and the other goes on.

Without parts: `control` and `loss`. Each part says what it found as soon as it has; one that fails says all that is known: last words,
events, stacks of the ranks, the GPU, the driver, MPS. Nothing is waited for after `--limit-s`, and nothing is left running. Without a GPU
the script says so and ends; `--dry-run` does all of it with small models over gloo, and proves nothing about GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "train"))

from gpu_loss_parts import control
from gpu_loss_parts.mps import PIPE, Mps
from gpu_loss_parts.runs import MODELS, Clock, lost, restarted

from meshwright.describe.this_machine import gpu_names

PARTS = ("control", "loss", "restart")
USUAL_PARTS = PARTS[:2]
CONTROL_S = 45.0
LEAST_S = 15.0  # left for a part to begin
OVERTIME_S = 20.0  # after the limit: then all is ended from outside
NOTHING = "nothing was tried, and nothing is claimed"


class Bench:
    """One call: its time, its folder and what was found so far."""

    def __init__(self, given: argparse.Namespace, folder: Path) -> None:
        self.given, self.folder = given, folder
        self.clock = Clock(given.limit_s)
        shared = (given.ranks_per_gpu == 2 and set(given.parts or USUAL_PARTS) & set(USUAL_PARTS)) or given.replicas == 2
        self.mps = Mps.here(folder) if shared and not given.dry_run else None
        self.shares = "alone" if given.dry_run or given.ranks_per_gpu == 1 else given.share
        self.rows: list[dict[str, Any]] = []
        self._corpus: Path | None = None

    def corpus(self) -> Path:
        """Texts to train on."""
        from small_run import make_corpus

        self._corpus = self._corpus or make_corpus(self.folder / "made")
        return self._corpus

    def keep(self, part: str, row: dict[str, Any]) -> None:
        """Keep what a part found, and say it."""
        self.rows.append({"part": part, **row})
        numbers = {
            key: round(value, 3) if isinstance(value, float) else value for key, value in row.items() if key not in ("told", "trouble")
        }
        words = "  ".join(f"{key} {value}" for key, value in numbers.items())
        say(f"{'FAILED' if row['trouble'] else 'ok    '}  {part}  {words}")
        if row["trouble"]:
            say(f"        {row['trouble']}\n{row.get('told', '')}")
        if self.given.out:
            about = {
                "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
                "gpu": "none: dry run over gloo" if self.given.dry_run else gpu_names(),
            }
            self.given.out.write_text(json.dumps({**about, "rows": self.rows}, indent=1))

    def has_time(self, part: str) -> bool:
        """Whether a part may begin; if not, that is said and counts as a failure."""
        if self.clock.left_s > LEAST_S:
            return True
        self.keep(part, {"trouble": f"not tried: {self.clock.left_s:.0f} s are left (--limit-s)"})
        return False

    def control(self) -> None:
        """Without meshwright."""
        environment = {} if self.mps is None else self.mps.environment
        device = "cpu" if self.given.dry_run else "cuda"
        row = control.tried(device, environment, min(CONTROL_S, self.clock.left_s))
        self.keep("control", {**row, "shares": self.shares})
        if row["trouble"] and row["is_known"] and self.shares == "mps":
            say("        the processes below share the GPU without MPS")
            self.shares = "time"

    def loss(self) -> None:
        """Each rank is killed in turn."""
        for trial in range(self.given.trials):
            if not self.has_time("loss"):
                return
            row = self._lost(trial)
            if row["trouble"] and self.shares == "mps" and self.clock.left_s > LEAST_S:
                say("        the same without MPS, which may be the cause:")
                self.shares = "time"
                self._lost(trial)
                return

    def _lost(self, trial: int) -> dict[str, Any]:
        folder = self.folder / f"loss-{trial}-{self.shares}"
        folder.mkdir()
        given, pipe = self.given, self.mps.pipe if self.mps else None
        how = {"layout": given.layout, "shares": self.shares, "per_gpu": given.ranks_per_gpu, "mps": pipe, "is_dry": given.dry_run}
        row = whole(lambda: lost(folder, self.corpus(), self.clock, (1 + trial) % 2, **how))
        self.keep("loss", row)
        return row

    def restart(self) -> None:
        """A larger model."""
        if not self.has_time("restart"):
            return
        folder = self.folder / "restart"
        folder.mkdir()
        given, pipe = self.given, self.mps.pipe if self.mps else None
        shares = "alone" if given.replicas == 1 else self.shares
        how = {"model": given.model, "replicas": given.replicas, "shares": shares, "mps": pipe, "is_dry": given.dry_run}
        free = shutil.disk_usage(folder).free
        row = whole(lambda: restarted(folder, self.corpus(), self.clock, **how))
        self.keep("restart", {"disk_free_gb": free / 1e9, **row})
        shutil.rmtree(folder, ignore_errors=True)  # its checkpoint is large


def whole(part: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a part found; if it broke itself, the call goes on with the next."""
    try:
        return part()
    except Exception as error:
        return {"trouble": f"the benchmark broke: {error}", "told": traceback.format_exc()}


def say(text: str) -> None:
    """Print at once: a call that is cut off leaves what was printed."""
    print(text, flush=True)


def end_from_outside(bench: Bench) -> None:
    """End everything, if the call has not ended by itself some time after its limit."""
    from small_run import session

    say(f"gpu_loss: not over {OVERTIME_S:.0f} s after the limit; all is ended")
    mine = os.getpid()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and str(bench.folder) in _environment(int(entry.name)) and int(entry.name) != mine:
            for pid in {int(entry.name), *session(int(entry.name))}:
                try:
                    os.kill(pid, 9)
                except OSError:
                    continue
    if bench.mps:
        bench.mps.end()
    os._exit(3)


def _environment(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace") + os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def main(words: Sequence[str] | None = None) -> int:
    """Try each part; 0 if all went on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=f"{', '.join(PARTS)}; default: control and loss")
    parser.add_argument("--limit-s", type=float, default=100.0, help="nothing is waited for after so many seconds (default %(default)s)")
    parser.add_argument("--trials", type=int, default=2, help="losses: rank 1, then rank 0, and so on (default %(default)s)")
    parser.add_argument("--layout", default="dp=2,zero=1", help="of the losses, of two ranks (default %(default)s)")
    parser.add_argument("--ranks-per-gpu", type=int, default=2, choices=(1, 2))
    parser.add_argument("--share", default="mps", choices=("mps", "time"), help="how ranks share the GPU (default %(default)s)")
    parser.add_argument("--model", default="3b", choices=list(MODELS), help="of the restart (default %(default)s)")
    parser.add_argument("--replicas", type=int, default=1, choices=(1, 2), help="of the restart (default %(default)s)")
    parser.add_argument("--folder", type=Path, help="where runs and checkpoints are written (default: a temporary folder)")
    parser.add_argument("--out", type=Path, help="write what was found here, as JSON")
    parser.add_argument("--dry-run", action="store_true", help="small models over gloo: the code runs, no GPU is tried")
    given = parser.parse_args(words)
    if not gpu_names() and not given.dry_run:
        say(f"no GPU here: {NOTHING}")
        return 0
    base = Path(tempfile.mkdtemp(prefix="meshwright-gpu-", dir=given.folder))
    bench = Bench(given, base)
    guard = threading.Timer(given.limit_s + OVERTIME_S, end_from_outside, [bench])
    guard.daemon = True
    guard.start()
    try:
        for part in given.parts or USUAL_PARTS:
            getattr(bench, part)()
    finally:
        if bench.mps:
            bench.mps.end()
        guard.cancel()
        shutil.rmtree(base, ignore_errors=True)
    took_s = time.monotonic() - bench.clock.began_s
    failed = sum(bool(row["trouble"]) for row in bench.rows)
    say(f"{len(bench.rows)} tried, {failed} failed, {took_s:.0f} s; {os.environ.get(PIPE, '')}".rstrip("; "))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

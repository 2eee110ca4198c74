"""Ranks of large plans on one GPU, each alone: predicted against rehearsed memory and compute.

    python benchmarks/rehearse.py [--case NAME]... [--steps N] [--measure FILE | --profile FILE] [--out FILE]

Every rank is rehearsed by `meshwright rehearse` in a process of its own, and so is the one-rank plan that is trained beside it: the same
step, in a real process group of one rank, timed by the clock on the wall. All cases take less than eight minutes of an H200. Plans are
priced by fitted constants; with `--profile FILE` by a hardware profile, which `--measure FILE` makes of this card first, in 90 s at most:
kernels at the shapes of the cases' models, and slices of the step of those that fit. Without a GPU the script says so, claims nothing and
exits with 0; `--dry-run` runs the same code on the processor with a tiny model, and its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from h200_parts.child import Results, say

from meshwright.describe.this_machine import gpu_names
from meshwright.errors import FitError
from meshwright.job import Job
from meshwright.plan.plan import Plan, plan_of, read_plan

NOTHING = "nothing was measured, and nothing is claimed"
DRY = "dry run on the processor with a tiny model: the code runs, the figures mean nothing"
LIMIT_S = 470.0
MEASURE_S = 90.0
RECOMPUTES = ("none", "selective", "full")  # the first that is predicted to fit is taken
GIB = 2**30


@dataclass(frozen=True)
class Case:
    """A plan, and which of its stages to rehearse."""

    name: str
    model: str
    gpus: int
    layout: str
    stages: tuple[int, ...]
    changes: tuple[str, ...] = ()
    trains: bool = False  # whether the plan is of one rank, and is trained as well

    def plan(self, profile: Path | None = None) -> Plan:
        """The plan, with as little recomputed as is predicted to fit into an H200; priced by a hardware profile, if there is one."""
        job = Job(self.model, "hgx-h200-ndr", "pretrain-1t", profile=profile or "", gpus=self.gpus)
        for change in self.changes:
            job = job.changed(change)
        for recompute in RECOMPUTES:
            try:
                return plan_of(job.forecast(f"{self.layout},recompute={recompute}"), self.name)
            except FitError as error:
                refusal = error
        raise refusal


CASES = (
    Case(
        "405B tp4 cp2 pp8 vp8 dp128",
        "llama-3.1-405b",
        8192,
        "tp=4,cp=2,pp=8,vp=8,dp=128,mbs=1,cp_kind=all-to-all,schedule=interleaved",
        (0, 4, 7),
        ("workload.global_batch=1024",),
    ),
    Case("70B tp8 pp4 dp64", "llama-3.1-70b", 2048, "tp=8,pp=4,dp=64,mbs=1,schedule=1f1b", (0, 3)),
    Case("8B dp64", "llama-3.1-8b", 64, "dp=64,mbs=1", (0,)),
    Case("1B on one GPU", "llama-3.2-1b", 1, "dp=1,mbs=2", (0,), ("workload.global_batch=8",), trains=True),
)
TINY = ("workload.seq_len=64", "workload.precision=bf16")
DRY_CASES = (
    Case("tiny tp2 cp2 pp2 vp2 dp2", "llama-2m", 16, "tp=2,cp=2,pp=2,vp=2,dp=2,mbs=1", (0, 1), (*TINY, "workload.global_batch=8")),
    Case("tiny on one", "llama-2m", 1, "dp=1,mbs=2", (0,), (*TINY, "workload.global_batch=4"), trains=True),
)


def main(words: Sequence[str] | None = None) -> int:
    """Run the cases; 1 where one of them gave no result."""
    given = _parser().parse_args(words)
    if given.trained:
        print(json.dumps(trained(read_plan(given.trained), given.steps)))
        return 0
    if not given.dry_run and not has_gpu():
        say(f"no GPU here: {NOTHING}")
        return 0
    device = DRY if given.dry_run else ", ".join(gpu_names())
    say(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {device}, {given.steps} timed steps")
    cases = [one for one in (DRY_CASES if given.dry_run else CASES) if not given.case or one.name in given.case]
    profile = _measured(given.measure, cases) if given.measure else given.profile
    results = Results(given.out, {"date": f"{datetime.now(UTC):%Y-%m-%d}", "device": device})
    until_s, num_failed = time.monotonic() + given.limit_s, 0
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(cases):
            path = Path(folder) / f"{number}.json"
            case.plan(profile).write(path)
            num_failed += _run_case(case, path, given.steps, results, until_s)
    for line in table(results.rows("rehearsed")):
        say(line)
    for line in ratios(results.rows("rehearsed"), results.rows("trained")):
        say(line)
    if num_failed:
        say(f"\n{num_failed} measurements gave no result, as listed above; the tables leave them out.")
    return 1 if num_failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", default=[], choices=[case.name for case in (*CASES, *DRY_CASES)])
    parser.add_argument("--steps", type=int, default=2, help="timed steps of each rank (default %(default)s)")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="seconds of this call (default %(default)s)")
    priced = parser.add_mutually_exclusive_group()
    priced.add_argument("--measure", type=Path, metavar="FILE", help="measure this card first, and price plans by this profile")
    priced.add_argument("--profile", type=Path, metavar="FILE", help="price plans by this hardware profile")
    parser.add_argument("--out", type=Path, help="write results here as they come, as JSON")
    parser.add_argument("--dry-run", action="store_true", help=DRY)
    parser.add_argument("--trained", type=Path, help=argparse.SUPPRESS)  # a child that trains the plan of one rank
    return parser


def has_gpu() -> bool:
    """Whether torch sees a GPU."""
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def _measured(path: Path, cases: Sequence[Case]) -> Path:
    """A hardware profile of this card for the models of some cases, and for one of which slices fit into any card."""
    names = dict.fromkeys([*(case.model for case in cases), *([] if cases[0] in DRY_CASES else ["llama-3.1-8b"])])
    words = ["-m", "meshwright", "measure", *(word for name in names for word in ("--model", name)), "--precision", "bf16"]
    started_s = time.monotonic()
    subprocess.run([sys.executable, *words, "--seconds", f"{MEASURE_S:.0f}", "--out", str(path)], check=True, stdout=subprocess.DEVNULL)
    say(f"profile of {', '.join(names)}: {time.monotonic() - started_s:.0f} s")
    return path


def _run_case(case: Case, path: Path, steps: int, results: Results, until_s: float) -> int:
    """Rehearse the stages of a case, and train it where that is wanted; how many gave no result."""
    num_failed = 0
    for stage in case.stages:
        words = ["-m", "meshwright", "rehearse", str(path), "--stage", str(stage), "--steps", str(steps), "--json"]
        found = _child(f"{case.name}, stage {stage}", words, until_s)
        num_failed += found is None
        if found is not None:
            results.add("rehearsed", {"case": case.name, **found})
    if case.trains:
        found = _child(f"{case.name}, trained", [__file__, "--trained", str(path), "--steps", str(steps + 1)], until_s)
        num_failed += found is None
        if found is not None:
            results.add("trained", {"case": case.name, **found})
    return num_failed


def _child(what: str, words: Sequence[str], until_s: float) -> dict[str, Any] | None:
    """What a process of its own printed as JSON; None where it failed or no time is left."""
    left_s, started_s = until_s - time.monotonic(), time.monotonic()
    if left_s < 20:
        say(f"{what}: not run, {max(left_s, 0):.0f} s of this call are left")
        return None
    try:
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=left_s, env=os.environ)
    except subprocess.TimeoutExpired:
        say(f"{what}: stopped after {left_s:.0f} s, the end of this call")
        return None
    if done.returncode:
        say(f"{what}: exit status {done.returncode}\n{done.stderr[-2000:]}")
        return None
    say(f"{what}: {time.monotonic() - started_s:.0f} s")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def trained(plan: Plan, steps: int) -> dict[str, Any]:
    """Seconds of a step of a one-rank plan in a real process group, median, and bytes at its peak (0 on a processor)."""
    import torch

    from meshwright.train.measure.clock import synchronize
    from meshwright.train.measure.slices import alone
    from meshwright.train.rehearse.boundaries import Boundaries
    from meshwright.train.rehearse.rank import Part, device_here, stand_of

    device = device_here()
    end = alone(device)
    part = Part(model=plan.model, workload=plan.workload, layout=plan.layout, rank=0, num_steps=steps)
    stand = stand_of(part, device, Boundaries())
    for _ in range(2):  # one compiles, the next finds its memory
        stand.step()
    seconds = []
    for _ in range(steps):
        synchronize(device)
        started_s = time.perf_counter()
        stand.step()
        synchronize(device)
        seconds.append(time.perf_counter() - started_s)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    end()
    return {"step_s": statistics.median(seconds), "peak_bytes": peak}


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Predicted and rehearsed memory and compute of every rank, as a table of Markdown."""
    lines = [
        "",
        "| plan | rank | recompute | peak predicted | rehearsed | off | compute predicted | rehearsed | off | optimizer | idle |",
        "| --- | --: | --- | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for row in rows:
        peak = next(part for part in row["rehearsed_memory"] if part["part"] == "peak")
        compute, _, optimizer = row["rehearsed_parts"]
        idle = row["kernel_idle_s"]
        cells = (
            f"{row['case']}, stage {row['stage']}",
            f"{row['rehearsed_rank']:,}",
            row["layout"]["recompute"],
            f"{peak['predicted_part_bytes'] / GIB:.2f} GiB",
            f"{peak['rehearsed_part_bytes'] / GIB:.2f} GiB",
            f"{peak['off_pct']:+.1f} %",
            f"{compute['predicted_part_s']:.3f} s",
            f"{compute['rehearsed_part_s']:.3f} s",
            f"{compute['off_pct']:+.1f} %",
            f"{1e3 * optimizer['rehearsed_part_s']:.1f} ms",
            "" if idle is None else f"{idle:.3f} s",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def ratios(rehearsed: Sequence[dict[str, Any]], real: Sequence[dict[str, Any]]) -> list[str]:
    """How a rehearsed step compares with the same step trained, a line for each plan of one rank."""
    lines = []
    for row in real:
        found = next((one for one in rehearsed if one["case"] == row["case"]), None)
        if found is None:
            continue
        step_s = sum(part["rehearsed_part_s"] for part in found["rehearsed_parts"])
        peak = next(part for part in found["rehearsed_memory"] if part["part"] == "peak")["rehearsed_part_bytes"]
        memory = f"; peak {peak / GIB:.3f} against {row['peak_bytes'] / GIB:.3f} GiB" if row["peak_bytes"] else ""
        lines.append(
            f"\n{row['case']}: rehearsed {step_s:.4f} s, trained {row['step_s']:.4f} s, ratio {step_s / row['step_s']:.3f}{memory}"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())

"""The effective time of a run with faults, measured, and predicted by `meshwright simulate --faults` for the same faults.

    python benchmarks/ettr.py --seed 1 --faults 12 --layout dp=3,zero=1

Two runs are struck by faults that are drawn from two seeds. The first says how long this machine takes for each part of a recovery. The
second gives the faults of the trace: when each struck, what it was, and how many replicas it took. The prediction knows nothing else of
the second run. The trace is written beside the result.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fault_plan import CHECKPOINT_STEPS, PATIENCE_S, STALL_S, Fault, batch_of
from fault_plant import plant
from fault_record import lines, told

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "train"))

KINDS = ("kill", "exception", "sockets", "kill", "exception", "stop")  # in turn
RECOVERS = ("recovery", "change of replicas")  # spans of the ledger


@dataclass(frozen=True, kw_only=True)
class Struck:
    """A run that faults struck: its folder, what became of each fault, and how its time was used."""

    folder: Path
    faults: list[dict[str, Any]]
    wall_s: float  # from the first step to the last
    recovering_s: float
    lost_s: float
    step_s: float  # evaluations and checkpoints included
    join_s: list[float]
    return_s: list[float]

    @property
    def ettr(self) -> float:
        """Share of the time that is work which counts."""
        return 1.0 - (self.recovering_s + self.lost_s) / self.wall_s


def struck(folder: Path, plan: Path, dp: int, faults: Sequence[Fault], num_steps: int) -> Struck:
    """Run a plan under faults."""
    from small_run import train

    (folder / "marks").mkdir(parents=True)
    options = ("--steps", str(num_steps), "--checkpoint-every", str(CHECKPOINT_STEPS), "--stall-timeout", str(STALL_S), "--profile", "none")
    planted = ([asdict(fault) for fault in faults], str(folder / "marks"), dp)
    command = train(folder, plan, "--name", "run", "--keep-going", *options, before=plant, with_=planted)
    assert command.wait(PATIENCE_S) == 0, command.err
    return _read(folder / "runs" / "run", folder / "marks", faults, num_steps)


def _read(run: Path, marks: Path, faults: Sequence[Fault], num_steps: int) -> Struck:
    from meshwright.ledger.timeline import BESIDE, spans_of
    from meshwright.record.run import read_run

    spans = [span for span in spans_of(read_run(run)) if span.what not in BESIDE and span.what != "start"]
    recovering_s = sum(span.end_s - span.start_s for span in spans if span.what in RECOVERS)
    lost_s = sum(span.end_s - span.start_s for span in spans if span.is_lost)
    wall_s = spans[-1].end_s - spans[0].start_s
    found = list(told(run, marks, faults))
    created_s = datetime.fromisoformat(json.loads((run / "run.json").read_text())["created"]).timestamp()
    for number, entry in enumerate(found):
        entry["time_s"] = json.loads((marks / str(number)).read_text())["time_s"] - created_s - spans[0].start_s
    return Struck(
        folder=run,
        faults=found,
        wall_s=wall_s,
        recovering_s=recovering_s,
        lost_s=lost_s,
        step_s=(wall_s - recovering_s - lost_s) / num_steps,
        join_s=[span.end_s - span.start_s for span in spans if span.what == "change of replicas"],
        return_s=list(_returns(run)),
    )


def _returns(run: Path) -> Iterator[float]:
    """Seconds from the loss of a replica until it joined again."""
    lost_s = None
    for event in lines(run / "events.jsonl"):
        if event["kind"] == "membership":
            if event["reason"] == "joined" and lost_s is not None:
                yield event["time_s"] - lost_s
            lost_s = event["time_s"] if event["reason"] == "lost" else None


def recovery_of(seen: Struck) -> dict[str, Any]:
    """What a run says about recoveries on this machine: means, because the sum counts."""
    notice: dict[str, list[float]] = defaultdict(list)
    ways: dict[bool, list[float]] = defaultdict(list)
    for one in seen.faults:
        if "recovered_s" in one:
            notice[one["kind"]].append(one["noticed_s"])
            ways[one["how"] == "restarted"].append(one["recovered_s"] - one["noticed_s"])
    regroup_s = statistics.mean(ways[False])
    return {
        "step_s": seen.step_s,
        "notice_s": {kind: statistics.mean(found) for kind, found in notice.items()},
        "regroup_s": regroup_s,
        "return_s": statistics.mean(seen.return_s),
        "join_s": statistics.mean(seen.join_s),
        "restart_s": statistics.mean(ways[True]) if ways[True] else 4 * regroup_s,
    }


def trace_text(seen: Struck, recovery: Mapping[str, Any], num_steps: int) -> str:
    """The trace as a file for `meshwright simulate --faults`."""
    notice = ", ".join(f'"{kind}" = {value:.4f}' for kind, value in recovery["notice_s"].items())
    numbers = "\n".join(f"{name} = {value:.5f}" for name, value in recovery.items() if name != "notice_s")
    head = f"num_steps = {num_steps}\ncheckpoint_steps = {CHECKPOINT_STEPS}\n\n[recovery]\nnotice_s = {{ {notice} }}\n{numbers}\n"
    rows = [
        f'\n[[faults]]\ntime_s = {one["time_s"]:.3f}\nwhat = "{one["kind"]}"\nnum_replicas = {0 if one["kind"] == "sockets" else 1}\n'
        for one in seen.faults
    ]
    return head + "".join(rows)


def _words(recovery: Mapping[str, Any]) -> str:
    notice = ", ".join(f"{kind} {value:.2f}" for kind, value in recovery["notice_s"].items())
    rest = ", ".join(f"{name.removesuffix('_s')} {value:.2f}" for name, value in recovery.items() if name not in ("notice_s", "step_s"))
    return f"noticed after {notice}; {rest} s"


def planned(seed: int, num_faults: int, steps_apart: int) -> list[Fault]:
    """Faults of all kinds in turn, spread over a run."""
    return [
        Fault(kind=KINDS[number % len(KINDS)], phase="step", step=steps_apart * (number + 1), rank=7 * seed + 5 * number)
        for number in range(num_faults)
    ]


def main() -> int:
    """Measure, predict and compare; the exit status is 1 if the two differ by more than a point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=12)
    parser.add_argument("--steps-apart", type=int, default=80, help="steps between two faults")
    parser.add_argument("--layout", default="dp=3,zero=1,mbs=1")
    parser.add_argument("--out", type=Path, default=Path("faults.toml"), help="the trace")
    given = parser.parse_args()
    from small_run import Small, make_corpus

    num_steps, dp = given.steps_apart * (given.faults + 1), int(given.layout[3])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small = Small(corpus=make_corpus(folder / "made"))
        plan = small.plan_file(folder / "plan.json", given.layout, global_batch=batch_of(given.layout), training={"most_samples": 10**6})
        first, second = (
            struck(folder / str(number), plan, dp, planned(given.seed + number, given.faults, given.steps_apart), num_steps)
            for number in (0, 1)
        )
        given.out.write_text(trace_text(second, recovery_of(first), num_steps))
        command = [sys.executable, "-m", "meshwright", "simulate", str(plan), "--faults", str(given.out), "--json"]
        predicted = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for name, seen in (("the first run", first), ("the second run", second)):
        print(f"recoveries of {name}: {_words(recovery_of(seen))}")
    off = 100 * (predicted["goodput"] - second.ettr)
    print(f"{len(second.faults)} faults in {second.wall_s:.1f} s of {given.layout}, {num_steps} steps of {1e3 * second.step_s:.1f} ms")
    print(f"recovering: measured {second.recovering_s:.2f} s, predicted {predicted['recovering_s']:.2f} s")
    print(f"done again: measured {second.lost_s:.2f} s, predicted {predicted['lost_s']:.2f} s")
    print(f"effective time: measured {second.ettr:.2%}, predicted {predicted['goodput']:.2%}, off by {off:+.2f} points")
    return int(abs(off) > 1.0)


if __name__ == "__main__":
    sys.exit(main())

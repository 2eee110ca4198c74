"""What the others wait for while a replica joins, part by part, beside the time of a step.

`python benchmarks/joining.py` trains the built-in model with replicas that join and leave at given steps; `--plan FILE` trains another one;
`--json` prints the same as JSON. The parts are those of a rank that was there before, from the end of its last step until its first step
of the new generation begins; medians over all joins. The first join is apart: some code runs for the first time.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

STEPS_APART = 8
PARTS = {  # function, by module -> the part that it is
    ("generations", "_leave_groups"): "leave the groups",
    ("elastic.member", "Member.next"): "hear of the generation",
    ("elastic.member", "Member.place"): "connect to the store",
    ("generations", "wait_for_all"): "meet",
    ("session.dist", "init_process_group"): "first group",
    ("session", "make_mesh"): "groups",
    ("session", "_locked"): "lock of the folder",
    ("session", "MlperfLog"): "log",
    ("session", "Replica"): "new replica",
    ("session", "digests"): "digests",
    ("session", "_begin"): "hand over",
    ("session", "_opened"): "records",
    ("session", "Logbook"): "logbook",
    ("session", "Saves"): "saves",
    ("elastic.regroup", "Regroup.keep"): "copies",
    ("session", "agreed"): "evaluation owed?",
    ("elastic.carry", "Keeping.hand_in"): "hand in",
    ("saves", "Saves.close"): "end of saves",
    ("record.logbook", "Logbook.leave"): "end of records",
    ("feed", "Feed.__exit__"): "end of the feed",
    ("health.watch", "Watch.stop"): "end of the watchdog",
    ("session.dist", "destroy_process_group"): "end of the groups",
    ("feed", "Feed.__init__"): "feed",
    ("feed", "Feed.next"): "first batch",
    ("health.watch", "Watch.start"): "watchdog",
    ("record.logbook", "Logbook.regrouped"): "event",
    ("health.garbage", "Garbage.__enter__"): "garbage held",
    ("health.garbage", "Garbage.__exit__"): "garbage let go",
}


def _note(name: str, begun_s: float) -> None:
    with open(f"{os.environ['JOINING_FOLDER']}/{os.getpid()}.jsonl", "a") as file:
        file.write(json.dumps([name, begun_s, time.monotonic()]) + "\n")


def _timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call, updated=())
    def timed(*given: Any, **named: Any) -> Any:
        begun_s = time.monotonic()
        try:
            return call(*given, **named)
        finally:
            _note(name, begun_s)

    return timed


def _trained(folder: str, arguments: list[str]) -> None:
    """Train in a process of its own, whose ranks inherit functions that note their times."""
    import importlib

    import torch  # noqa: F401 - before the parts

    from meshwright.cli.main import main
    from meshwright.train.elastic import carry
    from meshwright.train.replica import Replica

    os.environ["JOINING_FOLDER"] = folder
    importlib.import_module("meshwright.train.generations")
    carry.hand_over = _timed("hand over: pieces", carry.hand_over)
    carry.everyones_whole_texts = _timed("hand over: who has what", carry.everyones_texts)
    Replica.step = _timed("step", Replica.step)  # type: ignore[method-assign]
    for (module, name), part in PARTS.items():
        first, _, attribute = module.partition(".")
        owner: Any = importlib.import_module(f"meshwright.train.{module}" if attribute != "dist" else f"meshwright.train.{first}")
        owner = owner.dist if attribute == "dist" else owner
        for step in name.split(".")[:-1]:
            owner = getattr(owner, step)
        last = name.split(".")[-1]
        setattr(owner, last, _timed(part, getattr(owner, last)))
    began: list[float] = []

    def collected(phase: str, _: object) -> None:
        if phase == "start":
            began.append(time.monotonic())
        else:
            _note("garbage collection", began.pop())

    gc.callbacks.append(collected)
    os.chdir(folder)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    main(arguments)


def measured(more: list[str], layout: str, num_joins: int) -> dict[str, Any]:
    """The times of a run whose replicas join and leave: parts of each join by name, the whole, and the median step."""
    with tempfile.TemporaryDirectory() as folder:
        changes = [{"from_step": 1 + STEPS_APART * number, "dp": 1 + number % 2} for number in range(2 * num_joins)]
        Path(folder, "memberships.jsonl").write_text("".join(json.dumps(change) + "\n" for change in changes))
        arguments = ["train", *more, "--layout", layout, "--steps", str(STEPS_APART * 2 * num_joins), "--name", "a", "--no-save"]
        arguments += ["--keep-going", "--profile", "none", "--memberships", "memberships.jsonl"]
        process = multiprocessing.get_context("spawn").Process(target=_trained, args=(folder, arguments))
        process.start()
        process.join()
        events = [json.loads(line) for line in Path(folder, "runs/a/events.jsonl").read_text().splitlines()]
        steps = [json.loads(line) for line in Path(folder, "runs/a/steps.jsonl").read_text().splitlines()]
        notes = [
            [json.loads(line) for line in path.read_text().splitlines()] for path in Path(folder).glob("*.jsonl") if path.stem.isdigit()
        ]
    joins = [event for event in events if event["kind"] == "membership" and event["dp"] > 1 and event["from_step"] > 1]
    first = {event["from_step"] for event in events if event["kind"] == "membership"}
    oldest = max(notes, key=len)  # the process that is in all generations
    return {
        "step_s": statistics.median(step["step_s"] for step in steps if step["step"] not in first and _dp_at(changes, step["step"]) > 1),
        "first_step_s": [step["step_s"] for step in steps if step["step"] in {event["from_step"] for event in joins}],
        "change_s": [event["change_s"] for event in joins],
        "parts_s": [parts for number, parts in enumerate(_parts(oldest)) if number % 2 == 0],
        "load": os.getloadavg()[0],
    }


def _dp_at(changes: list[dict[str, int]], step: int) -> int:
    return [change["dp"] for change in changes if change["from_step"] <= step][-1]


def _parts(notes: list[list[Any]]) -> list[Mapping[str, float]]:
    """Seconds by part for each change of the replicas: between a step and the next one where a generation was met."""
    found: list[Mapping[str, float]] = []
    now: dict[str, float] = defaultdict(float)
    ended_s = 0.0
    for name, begun_s, until_s in sorted(notes, key=lambda note: note[2]):
        if name != "step":
            now[name] += until_s - begun_s
            continue
        if "meet" in now and ended_s:
            found.append({**now, "whole": begun_s - ended_s, "first step": until_s - begun_s})
        now, ended_s = defaultdict(float), until_s
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layout", default="dp=2,mbs=4")
    parser.add_argument("--plan", type=Path, help="a plan with one or two replicas; default: the built-in one")
    parser.add_argument("--joins", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measured([str(given.plan.absolute())] if given.plan else [], given.layout, given.joins)
    if given.json:
        print(json.dumps(found))
        return
    later = found["parts_s"][1:]
    print(f"step {found['step_s']:.3f} s; load {found['load']:.1f}")
    print(f"{'part':26} {'first':>8} {'later':>8}")
    for name in found["parts_s"][0]:
        print(f"{name:26} {found['parts_s'][0][name]:8.3f} {statistics.median(parts.get(name, 0.0) for parts in later):8.3f}")
    print(f"change_s of the events: {', '.join(f'{seconds:.3f}' for seconds in found['change_s'])}")


if __name__ == "__main__":
    main()

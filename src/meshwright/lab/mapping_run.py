"""Mappings of a job that are run on a lab: steps as measured, and how much of the cores other programs used meanwhile."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from collections.abc import Mapping as Table
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

import numpy as np

from meshwright.errors import MeshwrightError
from meshwright.lab import ranks
from meshwright.lab.description import Lab
from meshwright.lab.mapping import Mapping, num_steps_for
from meshwright.plan.plan import plan_of
from meshwright.record.entries import PARTS
from meshwright.record.run import read_run

STAT = Path("/proc/stat")
TICKS_PER_S = 100.0  # of /proc/stat, whatever the kernel's own
WIDE = 1.2533  # of the standard error of a median of normal values, over that of their mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A mapping that was run."""

    mapping: Mapping
    run: Path
    measured_s: float  # median of the steady steps
    error_s: float  # standard error of it
    parts_s: Table[str, float]  # means over ranks and steady steps
    num_steps: int
    others_share: float  # of the core time that was used during the run, by other programs

    @property
    def off(self) -> float:
        """How much longer the forecast is than the measured step, as a share of it."""
        return self.mapping.predicted_s / self.measured_s - 1.0


def try_mapping(mapping: Mapping, lab: Lab, folder: Path, num_cores: int, budget_s: float) -> Tried:
    """Run one mapping, and read what it recorded."""
    plan, log, name = folder / f"{mapping.name}.plan.json", folder / f"{mapping.name}.log", mapping.name
    plan_of(mapping.forecast).write(plan)
    steps = num_steps_for(mapping.predicted_s, budget_s)
    stall_s = max(60.0, 10 * mapping.predicted_s)
    options = ["--runs", str(folder / "runs"), "--name", name, "--steps", str(steps), "--no-save", "--stall-timeout", f"{stall_s:.0f}"]
    words = ["meshwright", "train", str(plan), *options]
    busy_s, own_s = busy_seconds(), children_seconds()
    code = ranks.run(ranks.starts(lab, words, mapping.slots, num_cores), log)
    busy_s, own_s = busy_seconds() - busy_s, children_seconds() - own_s
    if code:
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise MeshwrightError(f"the run with {mapping.words} ended with status {code}: {last[-1] if last else ''}", where=str(log))
    return tried(mapping, folder / "runs" / name, max(1.0 - own_s / busy_s, 0.0) if busy_s > 0 else 0.0)


def tried(mapping: Mapping, folder: Path, others_share: float) -> Tried:
    """What a finished run says about its mapping."""
    run = read_run(folder)
    steady = run.is_steady
    steps_s = run.columns["step_s"][steady]
    known = [part for part in PARTS if f"{part}_s" in run.columns]
    parts = dict.fromkeys(PARTS, 0.0) | {part: float(np.mean(run.columns[f"{part}_s"][steady])) for part in known}
    spread_s = float(np.std(steps_s, ddof=1)) if len(steps_s) > 1 else float("nan")
    return Tried(
        mapping=mapping,
        run=folder,
        measured_s=float(np.median(steps_s)),
        error_s=WIDE * spread_s / float(np.sqrt(len(steps_s))),
        parts_s=parts,
        num_steps=len(steps_s),
        others_share=others_share,
    )


def try_all(
    wanted: Sequence[Mapping], lab: Lab, folder: Path, num_cores: int, budget_s: float, report: Callable[[str], None]
) -> list[Tried]:
    """Run all mappings, one after another; those that are expected to be fast come first, so that their results are soon known."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for mapping in sorted(wanted, key=lambda one: one.predicted_s):
        report(f"running {mapping.words}: {num_steps_for(mapping.predicted_s, budget_s)} steps of about {mapping.predicted_s:.2f} s")
        found.append(try_mapping(mapping, lab, folder, num_cores, budget_s))
    return found


def in_measured_order(several: Sequence[Tried]) -> list[tuple[Tried, Tried]]:
    """Pairs whose measured steps differ by more than the noise, two standard errors, and that the forecast has in the other order."""
    wrong = []
    for i, one in enumerate(several):
        for other in several[i + 1 :]:
            noise_s = 2.0 * float(np.hypot(one.error_s, other.error_s))
            differs = abs(one.measured_s - other.measured_s) > noise_s
            if differs and (one.measured_s - other.measured_s) * (one.mapping.predicted_s - other.mapping.predicted_s) < 0:
                wrong.append((one, other))
    return wrong


def unused_folder(wanted: Path) -> Path:
    """The folder, or the first of `wanted-2`, `wanted-3`, ... that holds nothing yet: runs are not mixed, and none is deleted."""
    numbered = (wanted.with_name(f"{wanted.name}-{number}") for number in count(2))
    return next(folder for folder in chain([wanted], numbered) if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())))


def busy_seconds(path: Path = STAT) -> float:
    """Core seconds that all programs of this machine have used since it started."""
    words = path.read_text(encoding="utf-8").splitlines()[0].split()[1:]
    user, nice, system, _, _, irq, softirq = (int(word) for word in words[:7])
    return (user + nice + system + irq + softirq) / TICKS_PER_S


def children_seconds() -> float:
    """Core seconds of processes that this process started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

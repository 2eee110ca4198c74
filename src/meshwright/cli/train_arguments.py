"""The options that a run was started with. Its header keeps them, so that `train --resume` needs only the run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshwright.errors import InputError
from meshwright.record.header import RunHeader, read_header
from meshwright.record.run import list_runs
from meshwright.storage import Remote, is_url

# The options that a resumed run keeps, with the types they have in a header. Layout and profile are in its plan.
KEPT: dict[str, tuple[type, ...]] = {
    "steps": (int, type(None)),
    "corpus": (str, type(None)),
    "start_from": (str, type(None)),
    "seed": (int,),
    "benchmark": (str,),
    "checkpoint_every": (int, type(None)),
    "save": (bool,),
    "keep": (int,),
    "keep_every": (int,),
    "stall_timeout_s": (int, float),
    "grace_s": (int, float),
    "rendezvous_timeout_s": (int, float),
    "ranks_per_gpu": (int,),
    "skip_batches": (int,),
    "spike_deviations": (int, float),
    "rebalance": (bool,),
    "bad_nodes": (str, type(None)),
}
PATHS = ("corpus", "start_from", "bad_nodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the command line asks for; `given` names the options that were written there, the others are defaults."""

    plan: Path | None
    layout: str
    steps: int | None
    name: str
    runs: Path
    resume: bool
    corpus: Path | None
    start_from: Path | None
    seed: int
    benchmark: str
    checkpoint_every: int | None
    keep: int
    stall_timeout_s: float
    grace_s: float
    rendezvous_timeout_s: float
    allow_changed: tuple[str, ...]
    as_json: bool
    save: bool = True
    keep_every: int = 0
    budget: str | None = None
    price: str | None = None
    profile: str = ""
    resume_if_exists: bool = False
    keep_going: bool = False
    nodes: int = 1
    node: int = 0
    meet: str = ""
    memory_every: int = 1
    memberships: Path | None = None
    ranks_per_gpu: int = 1
    trace_from: int = 0
    secret: Path | None = None
    remote: Remote | None = None  # the URL of the runs, if they are in object storage; `runs` is then a folder of this machine
    skip_batches: int = 3
    spike_deviations: float = 20.0
    rebalance: bool = False
    bad_nodes: Path | None = None
    given: frozenset[str] = frozenset()


def kept_arguments(wishes: Wishes, corpus: Path | None) -> dict[str, Any]:
    """The options that the run's header keeps; paths are absolute, because the run may be continued from another folder."""
    values = {name: getattr(wishes, name) for name in KEPT} | {"corpus": corpus}
    return {name: _kept(value) if isinstance(value, Path) else value for name, value in values.items()}


def _kept(path: Path) -> str:
    return str(Remote.at(path)) if is_url(path) else str(path.absolute())


def with_kept(wishes: Wishes) -> Wishes:
    """The options of a command that continues a run: options that are not given are as at the run's start."""
    folder = wishes.runs / wishes.name
    header = read_header(folder)
    kept = _checked(header, folder)
    missing: dict[str, Any] = {name: kept[name] for name in KEPT if name in kept and name not in wishes.given}
    for name in PATHS:
        if missing.get(name) is not None:
            missing[name] = Path(missing[name])
    return replace(wishes, **missing)


def _checked(header: RunHeader, folder: Path) -> dict[str, Any]:
    kept = {"seed": header.seed, **header.arguments}
    for name, kinds in KEPT.items():
        if name in kept and (not isinstance(kept[name], kinds) or (isinstance(kept[name], bool) and bool not in kinds)):
            raise InputError(
                f"the run's header is damaged: its argument {name} is {kept[name]!r:.40}", where=str(folder / "run.json"), fix="restore it"
            )
    return kept


def newest_run(runs: Path) -> str:
    """The name of the trained run in `runs` that was written last."""
    for folder in list_runs(runs) if runs.is_dir() else ():
        try:
            header = read_header(folder)
        except InputError:
            continue
        if header.kind == "trained":
            return header.name
    raise InputError(
        "there is no run to continue", where=str(runs), fix="start one: meshwright train, or name the folder of runs: --runs DIR"
    )

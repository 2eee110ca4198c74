"""Checkpoints of a run: when to save, what goes in beside tensors, and how a run finds its way back."""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from meshwright.errors import InputError
from meshwright.plan.plan import read_plan
from meshwright.train.checkpoint import (
    AsyncSaver,
    Found,
    Keep,
    Manifest,
    SaveReport,
    check_same,
    load,
    newest,
    newest_loadable,
    read_manifest,
    shared_token,
)
from meshwright.train.checkpoint.clock import SaveClock
from meshwright.train.checkpoint.durable import JSON
from meshwright.train.checkpoint.folder import step_folders
from meshwright.train.checkpoint.manifest import MANIFEST
from meshwright.train.checkpoint.notices import StoreNotices
from meshwright.train.job import TrainingJob, differences
from meshwright.train.replica import Replica


class Counts(Protocol):
    """How far a run is."""

    step: int
    samples: int


class Saves:
    """The checkpoints of one run, seen from one rank."""

    def __init__(
        self,
        job: TrainingJob,
        replica: Replica,
        digests: dict[str, str],
        resumed_step: int | None = None,
        *,
        store: dist.Store | None = None,
        is_hurried: Callable[[], bool] = lambda: False,
    ) -> None:
        self.job, self.replica, self.digests, self.is_hurried = job, replica, digests, is_hurried
        self._saver = AsyncSaver(
            folder_of(job),
            rank=dist.get_rank(),
            num_ranks=dist.get_world_size(),
            token=shared_token(),
            keep=Keep(last=job.keep_last, every_steps=job.keep_every),
            notices=StoreNotices(store) if store is not None else None,
        )
        self._clock = SaveClock(dist.get_world_size()) if job.saves_by_clock and dist.get_rank() == 0 else None
        self.last_step = resumed_step  # the newest that is saved, or on its way

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is to be saved after this step, by its number."""
        return self.job.checkpoint_steps > 0 and step % self.job.checkpoint_steps == 0

    def wants_save(self) -> bool:
        """Whether a checkpoint is due by the clock, of which rank 0 alone decides."""
        return self._clock is not None and self._clock.is_due()

    def save(self, progress: Counts) -> float:
        """Copy the state and write it behind the training; seconds that this stood still."""
        self.replica.ready()
        self.last_step = progress.step
        if self._clock:
            self._clock.saved()
        return self._saver.save(progress.step, self.replica.owned_state(), self._scalars(progress), is_hurried=self.is_hurried)

    def save_now(self, progress: Counts, timeout_s: float) -> SaveReport | None:
        """Save and wait until it counts; None where this step is saved already: a run that went on from it and had nothing to do."""
        if self.last_step == progress.step:
            return None
        self.replica.ready()
        self.last_step = progress.step
        return self._saver.save_now(progress.step, self.replica.owned_state(), self._scalars(progress), timeout_s=timeout_s)

    def finished(self) -> list[SaveReport]:
        """Reports of saves that ended since the last call."""
        reports = self._saver.finished()
        for report in reports:
            if self._clock:
                self._clock.saw(report)
        return reports

    def close(self, timeout_s: float | None = None) -> list[SaveReport]:
        """Wait for what is under way, `timeout_s` at most."""
        return self._saver.close(timeout_s=timeout_s)

    def _scalars(self, progress: Counts) -> dict[str, JSON]:
        state = torch.random.get_rng_state().numpy().tobytes()
        return {
            "samples": progress.samples,
            "seed": self.job.seed,
            "digests": dict(self.digests),
            "layout": str(self.job.plan.layout),
            "random_state": base64.b64encode(state).decode(),
        }


def folder_of(job: TrainingJob) -> Path:
    """Where a run's checkpoints lie."""
    return job.folder / "checkpoints"


def has_checkpoint(job: TrainingJob) -> bool:
    """Whether the run has ever finished a save; one that is damaged counts, since it must not be passed over in silence."""
    return bool(step_folders(folder_of(job)))


def find(job: TrainingJob) -> Found:
    """The newest checkpoint that is whole and readable; an error where there is none."""
    found = newest_loadable(folder_of(job))
    if found.path is None:
        skipped = "; ".join(f"{path.name}: {why}" for path, why in found.skipped) or "there is none"
        fix = "start the run again under another name" if found.skipped else f"start it over: --name {job.name} --resume-if-exists"
        raise InputError(f"no checkpoint to continue from: {skipped}", where=str(folder_of(job)), fix=fix)
    return found


def check_steps(job: TrainingJob) -> None:
    """Pass where a run that goes on has not passed the step it is to end at."""
    if not job.resume or job.num_steps is None:
        return
    newest_step = newest(folder_of(job)).step  # by name and size; the hashes, which take a while, only where they decide
    if newest_step is None or newest_step <= job.num_steps:
        return
    found = newest_loadable(folder_of(job)).step
    if found is not None and found > job.num_steps:
        raise InputError(
            f"the run has passed step {job.num_steps}: its newest checkpoint is of step {found}",
            where=f"--steps {job.num_steps}",
            fix=f"give a later step than {found}: --steps {found + job.num_steps}",
        )


def check_resumable(job: TrainingJob, path: Path, digests: dict[str, str]) -> Manifest:
    """The manifest of a checkpoint that this run may go on from."""
    manifest = read_manifest(path)
    _check_scalars(manifest, path)
    saved = manifest.scalars["digests"]
    check_same(saved, digests, allowed=job.allow_changed, changes=_changes(job, manifest))
    return manifest


def _check_scalars(manifest: Manifest, path: Path) -> None:
    """Pass where a run can go on from what a manifest says beside its tensors: a hash vouches for bytes, not for sense."""
    scalars = manifest.scalars
    samples, marks = scalars.get("samples"), scalars.get("digests")
    wrong = ""
    if type(samples) is not int or not 0 <= samples < 2**63:
        wrong = f"samples is {samples!r:.40}"
    elif not isinstance(marks, dict) or not all(isinstance(value, str) for value in marks.values()):
        wrong = f"digests are {marks!r:.40}"
    elif len(_random_state(scalars)) != torch.random.get_rng_state().numel():
        wrong = f"random_state is {scalars.get('random_state')!r:.40}"
    if wrong:
        raise InputError(
            f"the checkpoint lacks what a run needs to continue: {wrong}",
            where=str(path / MANIFEST),
            fix="remove this checkpoint's folder to continue from the one before",
        )


def _random_state(scalars: Mapping[str, Any]) -> bytes:
    """The random state that a manifest holds; nothing where it holds none."""
    try:
        return base64.b64decode(scalars["random_state"], validate=True)
    except (KeyError, TypeError, ValueError):
        return b""


def _changes(job: TrainingJob, manifest: Manifest) -> dict[str, str]:
    """What of the plan has changed since the checkpoint, in words, as far as the run's own files show."""
    found = []
    seed = manifest.scalars.get("seed")
    if seed != job.seed:
        found.append(f"the seed is {seed} in the checkpoint and {job.seed} now (--seed)")
    with suppress(InputError):
        found += differences(read_plan(job.folder / "plan.json"), job.plan)
    return {"plan": "; ".join(found)} if found else {}


def restore(replica: Replica, path: Path, names: Collection[str]) -> Manifest:
    """Fill weights and moments from a checkpoint of any layout."""
    with torch.no_grad():
        manifest = load(path, replica.state(), names=names)
    replica.set_num_updates(manifest.step)
    replica.publish()
    torch.random.set_rng_state(torch.frombuffer(bytearray(_random_state(manifest.scalars)), dtype=torch.uint8))
    return manifest


def tensor_names(replica: Replica) -> set[str]:
    """Names of all tensors of the run, over all ranks: known from the model alone."""
    from meshwright.train.model.transformer import Transformer

    with torch.device("meta"):
        whole = Transformer(replica.model)
    kinds = ("weights", "adam_mean", "adam_square")
    return {f"{kind}/{name}" for kind in kinds for name, _ in whole.named_tensors()}

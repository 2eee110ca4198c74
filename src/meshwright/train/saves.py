"""The checkpoints of a run: when to save, what is saved besides tensors, and how a run is resumed."""

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
from meshwright.train.interop.trained import trained_shapes
from meshwright.train.job import TrainingJob, differences
from meshwright.train.parallel.balance import is_untrained, state_names
from meshwright.train.replica import Replica
from meshwright.train.sealed import SealedStore


class Counts(Protocol):
    """How far a run has come."""

    step: int
    samples: int


class Saves:
    """The checkpoints of one run, as one rank sees them."""

    def __init__(
        self,
        job: TrainingJob,
        replica: Replica,
        digests: dict[str, str],
        resumed_step: int | None = None,
        *,
        store: SealedStore | None = None,
        is_hurried: Callable[[], bool] = lambda: False,
        is_cut: Callable[[], bool] = bool,
    ) -> None:
        self.job, self.replica, self.digests, self.is_hurried = job, replica, digests, is_hurried
        self._saver = AsyncSaver(
            folder_of(job),
            rank=dist.get_rank(),
            num_ranks=dist.get_world_size(),
            token=shared_token(),
            keep=Keep(last=job.keep_last, every_steps=job.keep_every),
            notices=StoreNotices(store) if store is not None else None,
            is_cut=is_cut,
        )
        self._clock = SaveClock(dist.get_world_size()) if job.saves_by_clock and dist.get_rank() == 0 else None
        self.last_step = resumed_step  # the newest that is saved or is being saved

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is due after this step, by the number of the step."""
        return self.job.checkpoint_steps > 0 and step % self.job.checkpoint_steps == 0

    def wants_save(self) -> bool:
        """Whether a checkpoint is due by the clock; only rank 0 decides this."""
        return self._clock is not None and self._clock.is_due()

    def save(self, progress: Counts) -> float:
        """Copy the state and write it in the background; return the seconds for which training stood still."""
        self.replica.ready()
        self.last_step = progress.step
        if self._clock:
            self._clock.saved()
        return self._saver.save(progress.step, self.replica.owned_state(), self._scalars(progress), is_hurried=self.is_hurried)

    def save_now(self, progress: Counts, timeout_s: float) -> SaveReport | None:
        """Save, and wait until the checkpoint is complete.

        Return None if this step is already saved (a resumed run that had nothing to do).
        """
        if self.last_step == progress.step:
            return None
        self.replica.ready()
        self.last_step = progress.step
        return self._saver.save_now(progress.step, self.replica.owned_state(), self._scalars(progress), timeout_s=timeout_s)

    def finished(self) -> list[SaveReport]:
        """Reports of the checkpoints that were completed, or failed, since the last call."""
        reports = self._saver.finished()
        for report in reports:
            if self._clock:
                self._clock.saw(report)
        return reports

    def close(self, timeout_s: float | None = None) -> list[SaveReport]:
        """Wait for checkpoints that are being written, at most `timeout_s`."""
        return self._saver.close(timeout_s=timeout_s)

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._saver.is_busy

    def abandon(self, why: str) -> None:
        """Let the save that is being written fail on all ranks at once: a rank that takes part in it has gone."""
        self._saver.abandon(why)

    def _scalars(self, progress: Counts) -> dict[str, JSON]:
        state = torch.random.get_rng_state().numpy().tobytes()
        return {
            "samples": progress.samples,
            "seed": self.job.seed,
            "digests": dict(self.digests),
            "layout": str(self.job.layout),
            "random_state": base64.b64encode(state).decode(),
        }


def folder_of(job: TrainingJob) -> Path:
    """The folder of a run's checkpoints."""
    return job.folder / "checkpoints"


def has_checkpoint(job: TrainingJob) -> bool:
    """Whether the run has ever completed a checkpoint. A damaged one counts too, because it must not be ignored silently."""
    return bool(step_folders(folder_of(job)))


def set_aside(job: TrainingJob, sound_step: int) -> None:
    """Rename the checkpoints after a step, so that a run does not continue from them: they may hold a damaged state."""
    for found in step_folders(folder_of(job)):
        if found.step > sound_step:
            found.path.rename(found.path.with_name(f"unsound-{found.path.name}"))


def find(job: TrainingJob) -> Found:
    """The newest checkpoint that is complete and readable; an error if there is none."""
    found = newest_loadable(folder_of(job))
    if found.path is None:
        skipped = "; ".join(f"{path.name}: {why}" for path, why in found.skipped) or "there is none"
        fix = "start the run again under another name" if found.skipped else f"start it over: --name {job.name} --resume-if-exists"
        raise InputError(f"no checkpoint to continue from: {skipped}", where=str(folder_of(job)), fix=fix)
    return found


def check_steps(job: TrainingJob) -> None:
    """Raise an error if a run that is resumed has already passed the step at which it should end."""
    if not job.resume or job.num_steps is None:
        return
    newest_step = newest(folder_of(job)).step  # by name and size; hashes, which take longer, only if they decide
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
    """The manifest of a checkpoint from which this run may be resumed."""
    manifest = read_manifest(path)
    _check_scalars(manifest, path)
    saved = manifest.scalars["digests"]
    check_same(saved, digests, allowed=job.allow_changed, changes=_changes(job, manifest))
    return manifest


def _check_scalars(manifest: Manifest, path: Path) -> None:
    """Raise an error if a manifest does not contain valid values besides its tensors. A hash only shows that the bytes are unchanged."""
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
    """The random state in a manifest; None if there is none."""
    try:
        return base64.b64decode(scalars["random_state"], validate=True)
    except (KeyError, TypeError, ValueError):
        return b""


def _changes(job: TrainingJob, manifest: Manifest) -> dict[str, str]:
    """What has changed in the plan since the checkpoint, in words, as far as the files of the run show."""
    found = []
    seed = manifest.scalars.get("seed")
    if seed != job.seed:
        found.append(f"the seed is {seed} in the checkpoint and {job.seed} now (--seed)")
    with suppress(InputError):
        found += differences(read_plan(job.folder / "plan.json"), job.plan)
    return {"plan": "; ".join(found)} if found else {}


def restore(replica: Replica, path: Path, names: Collection[str]) -> Manifest:
    """Load weights and moments from a checkpoint of any layout."""
    with torch.no_grad():
        manifest = load(path, replica.state(), names=names)
    replica.set_num_updates(manifest.step)
    replica.publish()
    torch.random.set_rng_state(torch.frombuffer(bytearray(_random_state(manifest.scalars)), dtype=torch.uint8))
    return manifest


def tensor_names(replica: Replica) -> set[str]:
    """Names of all tensors of the run, over all ranks; they follow from the model."""
    trained = trained_shapes(replica.model, replica.workload.adapters)
    untrained = {name for name in trained if is_untrained(name)}
    names = {f"{kind}/{name}" for kind in ("adam_mean", "adam_square") for name in trained.keys() - untrained}
    return names | {f"weights/{name}" for name in trained} | state_names(replica.model, replica.training.balance)

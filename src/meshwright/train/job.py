"""The options of a training run, and digests of plan, corpus and code that must be the same when the run is resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.describe.products import adapted_matrices
from meshwright.describe.workload import Training
from meshwright.errors import InputError
from meshwright.layout import Layout
from meshwright.ledger import Budget, Rate
from meshwright.plan.plan import Plan
from meshwright.storage import Location, Remote
from meshwright.train.benchmark.settings import OFFICIAL, OWN, LogSettings
from meshwright.train.folders import CHECKPOINTS
from meshwright.train.incidents import Incident
from meshwright.train.membership import Dealt, Membership, layout_with
from meshwright.train.tuning.dataset import DataSet

READ_BYTES = 1 << 20  # of each end of a file


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """One run of a plan."""

    plan: Plan
    runs: Path  # the folder that holds runs
    remote: Remote | None = None  # where checkpoints and a copy of the records are kept; None: in the run's folder alone
    name: str
    corpus: Path
    seed: int = 0
    num_steps: int | None = None  # stop after so many; None: at the target, or at the end of the workload
    resume: bool = False
    benchmark: str = OWN  # the name in the MLPerf log
    checkpoint_steps: int = 0  # between two checkpoints; 0: only at the end, or by the clock
    saves_by_clock: bool = False  # every few minutes
    saves_at_end: bool = True
    keep_last: int = 3
    keep_every: int = 0
    stall_timeout_s: float = 10.0  # a rank without progress for this time, and for five of its slow steps, is reported, and the run ends
    grace_s: float = 30.0  # time to save after SIGTERM
    allow_changed: tuple[str, ...] = ()
    start_from: Path | None = None  # a Hugging Face folder, or a run, with the first weights
    data: DataSet | None = None  # for fine-tuning, instead of a corpus: the content of `corpus` in tokens
    adapter: Path | None = None  # a folder with the first adapters
    plan_text: bytes = b""
    arguments: Mapping[str, Any] = field(default_factory=dict)  # as the run's header keeps them
    may_start_over: bool = False  # if there is no checkpoint to resume from
    prints_json: bool = False  # standard output is used only for the result
    rate: Rate | None = None  # price of an accelerator-hour today; None: not known
    budget: Budget | None = None  # what the run may cost
    trace_from: int = 0  # the first of a few steps that are profiled; 0: none
    after: Incident | None = None  # the fault after which the run goes on by itself
    skip_batches: int = 3  # most batches to leave out in 1,000 steps, because their loss is not finite or far too high
    spike_deviations: float = 20.0  # a loss so many standard deviations above the last ones is not applied; 0: any finite one is
    rebalances: bool = False  # whether slow replicas get fewer micro-batches
    bad_nodes: Path | None = None  # the list for nodes whose hardware is suspect; None: bad-nodes.json beside the run
    dp: int | None = None  # replicas now, if they are not as many as in the plan
    memberships: tuple[Membership, ...] = ()  # from which step on the run has how many replicas; empty: as in the plan
    deals: tuple[Dealt, ...] = ()  # how micro-batches are dealt after which step, where a list of memberships says so
    memory_steps: int = 1  # between two checkpoints in memory, where replicas divide a state among them; 0: none
    ranks_per_gpu: int = 1  # more than one: to try a layout of many GPUs on few

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.runs / self.name

    @property
    def checkpoints(self) -> Location:
        """The folder of the run's checkpoints."""
        return (self.remote / self.name if self.remote else self.folder) / CHECKPOINTS

    @property
    def layout(self) -> Layout:
        """The layout of the replicas that the run has now."""
        return self.plan.layout if self.dp in (None, self.plan.layout.dp) else layout_with(self.plan.layout, self.dp or 1)

    @property
    def training(self) -> Training:
        """The training settings of the workload; an error if it has none."""
        training = self.plan.workload.training
        if training is None:
            raise InputError(
                f"the workload {self.plan.workload.name} does not say how to train: it has no [training]",
                where="workload.training",
                fix="add learning_rate and the rest to the workload's TOML, and plan again",
            )
        return training

    @property
    def last_step(self) -> int:
        """The step after which the run ends, even if the target is not reached."""
        workload, training = self.plan.workload, self.training
        samples = training.most_samples or workload.num_steps() * workload.global_batch
        limit = -(-int(samples) // workload.global_batch)
        if self.num_steps is not None:
            limit = min(limit, self.num_steps) if limit else self.num_steps
        if not limit:
            raise InputError(
                "nothing says when the run ends: no target samples, no number of tokens",
                where="workload.training.most_samples",
                fix="give --steps, or most_samples in the workload",
            )
        return limit

    @property
    def expected_steps(self) -> int:
        """Number of steps that the run is expected to need: to the target, as the workload states it, or to the last step."""
        to_target = self.plan.workload.num_steps() if self.training.target_loss else 0
        return min(to_target, self.last_step) if to_target else self.last_step


def digests(job: TrainingJob, corpus_digest: str) -> dict[str, str]:
    """What must be the same in a checkpoint and in the run that resumes from it.

    The layout may change; model, workload and corpus may not.
    """
    model, workload = (_without_sources(asdict(part)) for part in (job.plan.model, job.plan.workload))
    facts = {"model": model, "workload": workload, "seed": job.seed}
    base = {"base": files_digest(job.start_from)} if job.start_from and job.plan.workload.adapters else {}
    return {"plan": _digest(facts), "corpus": corpus_digest, "code": code_digest(), **base}


def differences(one: Plan, other: Plan, most: int = 5) -> list[str]:
    """The differences between two plans in words: the fields of model and workload that must match a checkpoint."""
    found = []
    for name in ("model", "workload"):
        before, now = (dict(_fields(_without_sources(asdict(getattr(plan, name))), name)) for plan in (one, other))
        found += [
            f"{key} is {before.get(key)!r} in the run's plan and {now.get(key)!r} now"
            for key in sorted({*before, *now})
            if before.get(key) != now.get(key)
        ]
    return found[:most] + ([f"and {len(found) - most} more"] if len(found) > most else [])


def _fields(entry: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in entry.items():
        if isinstance(value, Mapping):
            yield from _fields(value, f"{prefix}.{key}")
        else:
            yield f"{prefix}.{key}", value


def _without_sources(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in ("sources", "evaluation", "convergence", "target")}


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def files_digest(folder: Path) -> str:
    """A digest of a model's folder by the sizes, beginnings and ends of its files: whole files may have a hundred gigabytes."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")) or [folder / "plan.json"]:
        size = path.stat().st_size
        with open(path, "rb") as file:
            begin = file.read(READ_BYTES)
            file.seek(max(size - READ_BYTES, 0))
            digest.update(f"{path.name} {size}".encode() + begin + file.read(READ_BYTES))
    return digest.hexdigest()[:16]


@cache
def code_digest() -> str:
    """A digest of the source files that decide what a step computes."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def log_settings(job: TrainingJob, num_train_samples: int, machine: str) -> LogSettings:
    """What is written to the MLPerf log before the run starts."""
    workload, layout, training = job.plan.workload, job.plan.layout, job.training
    batch = workload.global_batch
    evaluation, adapters = workload.evaluation, workload.adapters
    decay_steps = int(max(training.decay_samples - training.warmup_samples, 0) // batch)
    return LogSettings(
        model=job.plan.model,
        dataset=job.corpus.name,
        platform=machine,
        organisation="meshwright",
        seed=job.seed,
        global_batch=batch,
        gradient_accumulation_steps=layout.num_micro_batches(batch),
        sequence_length=workload.seq_len,
        train_samples=num_train_samples,
        eval_samples=evaluation.num_samples if evaluation else 0,
        target=training.target_loss,
        max_steps=_max_steps(job),
        base_learning_rate=training.learning_rate,
        end_learning_rate=training.min_learning_rate,
        warmup_steps=int(training.warmup_samples // batch),
        decay_steps=decay_steps,
        beta_1=training.beta1,
        beta_2=training.beta2,
        epsilon=training.epsilon,
        weight_decay=training.weight_decay,
        clip_norm=training.clip_norm,
        micro_batch=layout.micro_batch,
        tp=layout.tp,
        pp=layout.pp,
        cp=layout.cp,
        precision=workload.precision,
        lora_rank=adapters.rank if adapters else 0,
        lora_alpha=adapters.alpha if adapters else 0.0,
        lora_dropout=adapters.dropout if adapters else 0.0,
        lora_matrices=adapted_matrices(job.plan.model, adapters) if adapters else (),
    )


def _max_steps(job: TrainingJob) -> int:
    """The steps after which a run ends at the latest: of an official benchmark, those of its rules."""
    if official := OFFICIAL.get(job.benchmark):
        stated = official.fixed["max_steps"]
        assert isinstance(stated, int), "steps are counted"
        return stated
    return max(int(job.training.decay_samples // job.plan.workload.global_batch), job.last_step)

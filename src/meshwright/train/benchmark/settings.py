"""The benchmarks that a run may be logged as, and the settings that such a log states.

Two kinds: meshwright's own small benchmark (`OWN`), whose rules are a file beside this one, and MLPerf's closed-division benchmarks in
`OFFICIAL`. A run is logged under an official name only where its settings are that benchmark's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from meshwright.describe.load import load_model
from meshwright.describe.model import Model
from meshwright.errors import InputError

OWN = "meshwright_stdlib_llama"
OWN_RULES = Path(__file__).parent / f"{OWN}.yaml"
NOT_SHAPES = ("name", "sources")  # of a Model


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What a log says before the run starts: who, what, and every setting that decides how fast it learns."""

    model: Model
    dataset: str  # in words; "c4" for the benchmarks that train on it
    platform: str
    organisation: str
    seed: int
    global_batch: int
    gradient_accumulation_steps: int
    sequence_length: int
    train_samples: int  # sequences in the training set
    eval_samples: int
    target: float  # evaluation loss
    max_steps: int
    base_learning_rate: float
    end_learning_rate: float
    warmup_steps: int
    decay_steps: int
    beta_1: float
    beta_2: float
    epsilon: float
    weight_decay: float
    clip_norm: float
    micro_batch: int
    tp: int
    pp: int
    cp: int
    precision: str = "fp32"
    lora_rank: int = 0  # 0: the whole model is trained
    lora_alpha: float = 0.0
    lora_dropout: float = 0.0
    lora_matrices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Official:
    """What a benchmark of MLPerf's fixes; the rest is the submitter's choice."""

    model: str  # its catalogue name
    dataset: str
    fixed: Mapping[str, float | tuple[str, ...]]  # by field of LogSettings
    num_schedule_steps: int  # warm-up and decay together


OFFICIAL = {
    "llama31_8b": Official(  # mlperf_logging/compliance_checker/training_6.0.0/closed_llama31_8b.yaml
        model="llama-3.1-8b",
        dataset="c4",
        fixed={
            "sequence_length": 8192,
            "eval_samples": 1024,
            "target": 3.3,
            "max_steps": 1_200_000,
            "beta_1": 0.9,
            "beta_2": 0.95,
            "epsilon": 1e-5,
            "weight_decay": 0.1,
            "clip_norm": 1.0,
        },
        num_schedule_steps=1_200_000,
    ),
    "llama2_70b_lora": Official(  # closed_llama2_70b_lora.yaml of the same, which checks rank and loss; the rest by MLPerf's training rules
        model="llama-2-70b",
        dataset="scrolls_gov_report_8k",
        fixed={
            "sequence_length": 8192,
            "eval_samples": 173,
            "target": 0.925,
            "max_steps": 1024,
            "weight_decay": 1e-4,
            "clip_norm": 0.3,
            "lora_rank": 16,
            "lora_alpha": 32.0,
            "lora_dropout": 0.1,
            "lora_matrices": ("q", "k", "v", "o"),
        },
        num_schedule_steps=1024,
    ),
}


def check_settings(benchmark: str, settings: LogSettings) -> None:
    """Raise unless a run with `settings` may be logged under the name `benchmark`."""
    if benchmark == OWN:
        return
    if benchmark not in OFFICIAL:
        raise InputError(f"no benchmark named {benchmark!r}", fix=f"use one of {', '.join((OWN, *OFFICIAL))}")
    if different := list(_differences(OFFICIAL[benchmark], settings)):
        raise InputError(
            f"the run is not MLPerf's {benchmark}: {'; '.join(different)}",
            where="the name of the log's benchmark",
            fix=f"train with the benchmark's settings, or log under {OWN}",
        )


def _differences(official: Official, settings: LogSettings) -> Iterator[str]:
    wanted = load_model(official.model)
    for name in (spec.name for spec in fields(Model) if spec.name not in NOT_SHAPES):
        if getattr(settings.model, name) != getattr(wanted, name):
            yield f"model.{name} is {getattr(settings.model, name)}, not {getattr(wanted, name)}"
    for name, value in official.fixed.items():
        if getattr(settings, name) != value:
            yield f"{name} is {getattr(settings, name)}, not {value}"
    if settings.warmup_steps + settings.decay_steps != official.num_schedule_steps:
        yield f"warm-up and decay take {settings.warmup_steps + settings.decay_steps} steps, not {official.num_schedule_steps}"

"""Whole pre-training campaigns: the accelerator-hours in public model cards, compared with the planner's forecast.

A card names the model, the accelerator and the tokens, but neither layout nor software. The following is assumed, and listed: the vendor's
reference network; as many accelerators as need about a month (a power of two); sequences of 4,096 tokens and batches of 4 million if the
file does not say; bf16; the layout that the planner finds; and the default software.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from meshwright.describe.workload import Workload
from meshwright.evidence.machine import machine
from meshwright.evidence.published import catalogue_model
from meshwright.evidence.table import Row, read_table
from meshwright.job import Job
from meshwright.predict.forecast import Forecast
from meshwright.units import HOUR

CAMPAIGNS_CSV = Path(__file__).with_name("campaigns.csv")
MONTH_H = 30 * 24.0
SEQ_LEN = 4096
BATCH_TOKENS = 4 * 2**20
PER_NODE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """One campaign: what its card states, and the forecast of the best layout."""

    model: str
    accelerator: str
    stated_h: float  # accelerator-hours
    forecast: Forecast
    source: str
    assumptions: tuple[str, ...]

    @property
    def predicted_h(self) -> float:
        """Accelerator-hours that are predicted."""
        return self._hours(self.forecast.time_to_train.value if self.forecast.time_to_train else math.nan)

    @property
    def interval_h(self) -> tuple[float, float]:
        """The 80 % interval of the predicted accelerator-hours."""
        time_s = self.forecast.time_to_train
        return (self._hours(time_s.low), self._hours(time_s.high)) if time_s else (math.nan, math.nan)

    @property
    def error_pct(self) -> float:
        """Predicted relative to stated hours; positive if too many were predicted."""
        return 100 * (self.predicted_h / self.stated_h - 1)

    @property
    def is_covered(self) -> bool:
        """Whether the stated hours lie in the interval."""
        low, high = self.interval_h
        return low <= self.stated_h <= high

    def _hours(self, time_s: float) -> float:
        return time_s / HOUR * self.forecast.job.num_accelerators


def campaigns(path: Path = CAMPAIGNS_CSV) -> list[Campaign]:
    """The campaigns in a file, planned; a second or two each."""
    return [_campaign(row) for row in read_table(path).rows]


def _campaign(row: Row) -> Campaign:
    stated_h, accelerator = row.positive("gpu_hours"), row.filled("accelerator")
    count = row.count_or("num_accelerators", 2 ** round(math.log2(stated_h / MONTH_H)))
    seq_len = row.count_or("seq_len", SEQ_LEN)
    batch_tokens = row.count_or("batch_tokens", BATCH_TOKENS)
    model = catalogue_model(row.filled("model"))
    built = machine(f"{count} x {accelerator}", accelerator, count, PER_NODE)
    workload = Workload(
        name=f"pre-training of {model.name}",
        model=model.name,
        seq_len=seq_len,
        global_batch=max(batch_tokens // seq_len, 1),
        num_tokens=row.positive("tokens"),
    )
    best = Job(model, built.cluster, workload).search(keep=1)[0]
    return Campaign(
        model=model.name,
        accelerator=built.cluster.accelerator.name,
        stated_h=stated_h,
        forecast=best,
        source=row.text("source"),
        assumptions=(
            *built.assumptions,
            f"{count:,} accelerators",
            f"{workload.global_batch:,} sequences of {seq_len:,} tokens per step",
            f"layout {best.layout.degrees}",
        ),
    )

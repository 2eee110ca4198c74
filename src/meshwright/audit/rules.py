"""The MLPerf rules that an audit needs: rounds, benchmarks, runs of a submission, reference convergence. Data: rules.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path

from meshwright.describe.load import plain, read_toml
from meshwright.describe.workload import Convergence
from meshwright.errors import InputError, nearest
from meshwright.evidence.mlperf import BENCHMARKS

RULES = Path(__file__).parent / "rules.toml"
FIRST_DAY = date(2023, 1, 1)  # of v3.0
NUM_DROPPED = 2  # of a submission's runs: the fastest and the slowest

_ROUND = re.compile(r"(?:mlperf\s*)?(?:training\s*)?v?\s*(\d{1,2})\.(\d{1,2})(?:\.0)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """The rules of one benchmark."""

    name: str
    num_runs: int
    rounds: tuple[str, ...]
    reference: Mapping[int, float] = field(default_factory=dict)  # samples by global batch
    target: float | None = None  # what the evaluation must come down to

    def reference_samples(self, global_batch: int) -> float:
        """Samples that the reference needs at a batch, on a straight line in log-log between its points; the fewest of all for batch 0."""
        if not global_batch:
            return min(self.reference.values())
        return Convergence(samples_by_batch=self.reference).samples(global_batch)


@cache
def benchmarks() -> Mapping[str, Benchmark]:
    """All benchmarks of language models, by MLPerf's name."""
    return {name: _benchmark(name, table) for name, table in read_toml(RULES)["benchmarks"].items()}


def _benchmark(name: str, table: Mapping[str, object]) -> Benchmark:
    reference = table["reference"]
    assert isinstance(reference, dict)
    points = {int(batch): float(samples) for batch, samples in reference.items()}
    rest = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items() if key != "reference"}
    return Benchmark(name=name, reference=points, **rest)  # type: ignore[arg-type]


def benchmark_named(text: str) -> str:
    """MLPerf's name of the benchmark that `text` means: gpt3, GPT-3 175B, mlperf-gpt3, ..."""
    wanted = _letters(text)
    spellings = {_letters(name): name for name in benchmarks()}
    for name, (model, workload) in BENCHMARKS.items():
        spellings |= {_letters(model): name, _letters(workload): name, _letters(workload.removeprefix("mlperf-")): name}
    if wanted not in spellings:
        raise InputError(f"no benchmark named {text!r}", where="benchmark", fix=f"{nearest(text, benchmarks())} (known: {_known()})")
    return spellings[wanted]


def _known() -> str:
    return ", ".join(benchmarks())


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", plain(text))


def round_named(text: str) -> str:
    """A round as MLPerf writes it, v4.1, from 4.1, V4.1 or MLPerf Training v4.1."""
    found = _ROUND.fullmatch(text.strip())
    if not found:
        raise InputError(f"{text!r} is not a round of MLPerf Training", where="round", fix='write it as "v4.1"')
    return f"v{int(found[1])}.{int(found[2])}"


def round_order(name: str) -> tuple[int, int]:
    """What rounds are sorted by."""
    major, _, minor = name.removeprefix("v").partition(".")
    return int(major), int(minor)


def round_of_date(time_ms: float, benchmark: str = "") -> str:
    """The round whose logs were written at that time; empty if there was none, or none with the benchmark."""
    try:
        day = datetime.fromtimestamp(time_ms / 1e3, UTC).date()
    except (ValueError, OverflowError, OSError):
        return ""
    if day < FIRST_DAY:
        return ""
    found = next((name for name, last in _last_days().items() if day <= last), "")
    rules = benchmarks().get(benchmark)
    return found if rules is None or found in rules.rounds else ""


@cache
def most_published(number_format: str) -> tuple[float, str] | None:
    """The highest published share of a GPU's peak in a number format, and its source; None if we know none."""
    found = read_toml(RULES)["most_published"].get(number_format)
    return (float(found["share"]), str(found["where"])) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine that was submitted before a round and is not in our table."""

    accelerator: str
    gpus: int
    before: str
    source: str


@cache
def other_machines() -> tuple[Machine, ...]:
    """Machines that our table does not have, the largest first."""
    return tuple(sorted((Machine(**row) for row in read_toml(RULES)["machines"]), key=lambda one: -one.gpus))


@cache
def _last_days() -> Mapping[str, date]:
    days: Mapping[str, date] = read_toml(RULES)["last_day"]
    return days

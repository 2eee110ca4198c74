"""Logs of one submission -> its score by MLPerf's rule, the differences between its runs, and its row in our table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from meshwright.audit.compliance import Compliance
from meshwright.audit.compliance import check as check_compliance
from meshwright.audit.rules import NUM_DROPPED, Benchmark, benchmarks, round_of_date
from meshwright.audit.runs import WHOLE, LoggedRun, read_runs
from meshwright.audit.submissions import Submission, find
from meshwright.errors import InputError
from meshwright.files import read_text
from meshwright.units import MINUTE

SCALING = "scaling.json"  # next to the logs of a submission that converged sooner than the reference
PER_RUN = ("seed", "submission_entry", "data_seed")  # settings that may differ between the runs of a submission
PACKED_ENDINGS = (".gz", ".bz2", ".xz")
ON_RECORD = 0.03  # a row of our table is this submission if their times differ by less


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score of a submission in minutes, or the reason why there is none."""

    minutes: float | None
    rule: str
    dropped: tuple[str, ...] = ()  # logs that the rule drops
    scaling: float = 1.0  # MLPerf's factor for converging sooner than the reference


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoggedSubmission:
    """The logs of one submission."""

    folder: str
    benchmark: str  # empty if no log can be read
    round: str  # empty if it is not known
    is_round_inferred: bool
    runs: tuple[LoggedRun, ...]
    compliance: tuple[Compliance | None, ...]  # by run; None if the log cannot be read or the checker was not asked for
    score: Score

    @property
    def readable(self) -> list[LoggedRun]:
        """The runs whose steps are known."""
        return [run for run in self.runs if run.steps is not None]

    @property
    def run_spread(self) -> float | None:
        """Largest median step of a run divided by the smallest, minus 1; None for a single run."""
        medians = [run.steps.median_s for run in self.readable if run.steps]
        return max(medians) / min(medians) - 1 if len(medians) > 1 else None

    @property
    def differing_settings(self) -> dict[str, list[object]]:
        """Settings that differ between runs, and their values: only the seed may differ within a submission."""
        settings = [(run.settings, run.log) for run in self.runs if run.log]
        keys = dict.fromkeys(key for one, _ in settings for key in one if key not in PER_RUN)
        # In a log with unreadable lines, the same entry may have been on such a line.
        values = {key: [one.get(key) for one, log in settings if key in one or not log.damaged] for key in keys}
        return {key: found for key, found in values.items() if any(value != found[0] for value in found)}

    @property
    def on_record(self) -> Submission | None:
        """The row of our table that is this submission, by round, benchmark, batch and time."""
        times = [run.time_to_train_s / MINUTE for run in self.runs if run.time_to_train_s]
        batches = {run.log.global_batch_size for run in self.readable if run.log}
        if not (times and self.round and self.benchmark and len(batches) == 1):
            return None
        mean = float(np.mean(middle(times)))
        rows = find(round=self.round, benchmark=self.benchmark, global_batch=batches.pop())
        near = [row for row in rows if row.minutes > 0 and abs(row.minutes / mean - 1) < ON_RECORD]
        return min(near, key=lambda row: abs(row.minutes / mean - 1), default=None)


def log_files(paths: Iterable[str | Path]) -> list[Path]:
    """The logs that the user means: files as given, and the result files of folders."""
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(_with_packed(path, "result_*.txt"), key=_number) or sorted(_with_packed(path, "*.txt", "*.log"))
        if not inside:
            raise InputError("no log in the folder", where=str(path), fix="give a folder with result_*.txt, or the logs themselves")
        found += inside
    return list(dict.fromkeys(found))


def _with_packed(folder: Path, *patterns: str) -> list[Path]:
    """The files with these names, and with these names plus the ending of a packer."""
    return [path for pattern in patterns for ending in ("", *PACKED_ENDINGS) for path in folder.glob(pattern + ending)]


def _number(path: Path) -> tuple[int, str]:
    """result_10 comes after result_9."""
    digits = "".join(character for character in path.stem if character.isdigit())
    return int(digits[:9] or 0), path.name


def read_submissions(paths: Iterable[str | Path], round: str = "", *, with_compliance: bool = True) -> list[LoggedSubmission]:
    """The logs as submissions: the logs of one folder and one benchmark are one submission."""
    groups: dict[tuple[str, str], list[LoggedRun]] = {}
    unread: dict[str, list[LoggedRun]] = {}
    for path, run in [(file, run) for file in log_files(paths) for run in read_runs(file)]:
        name = run.log.first("submission_benchmark") if run.log else None
        if name is None:
            unread.setdefault(str(path.parent), []).append(run)
        else:
            groups.setdefault((str(path.parent), str(name.value)), []).append(run)
    for folder, runs in unread.items():  # a log without a benchmark name belongs to the other logs of its folder
        beside = [key for key in groups if key[0] == folder]
        groups.setdefault(beside[0] if beside else (folder, ""), []).extend(runs)
    return [_submission(folder, benchmark, runs, round, with_compliance) for (folder, benchmark), runs in groups.items()]


def _submission(folder: str, benchmark: str, runs: list[LoggedRun], round: str, with_compliance: bool) -> LoggedSubmission:
    logs = [run.log for run in runs if run.log]
    of_round = round or next((found for log in logs if (found := round_of_date(log.events[-1].time_ms, benchmark))), "")
    runs = sorted(runs, key=lambda run: _number(Path(run.path)))
    checked = tuple(check_compliance(run.log, of_round) if with_compliance and run.log and run.is_whole else None for run in runs)
    return LoggedSubmission(
        folder=folder,
        benchmark=benchmark,
        round=of_round,
        is_round_inferred=not round,
        runs=tuple(runs),
        compliance=checked,
        score=score(runs, benchmarks().get(benchmark), Path(folder)),
    )


def score(runs: Sequence[LoggedRun], rules: Benchmark | None, folder: Path) -> Score:
    """The olympic mean of the runs, by MLPerf's rules: the fastest and the slowest are dropped, the rest are averaged.

    One run that did not reach its target may count as the slowest. A log that is there twice counts as one run.
    """
    if rules is None:
        return Score(minutes=None, rule="no rule is known for this benchmark: runs are not scored")
    rule = f"{rules.num_runs} runs; the fastest and the slowest are dropped, the other {rules.num_runs - NUM_DROPPED} averaged"
    if len(runs) != rules.num_runs:
        return Score(minutes=None, rule=f"{rule}. {len(runs)} {'log is' if len(runs) == 1 else 'logs are'} here: no score")
    twice = _twice(runs)
    if twice:
        return Score(minutes=None, rule=f"{rule}. {' and '.join(twice)} are the same log: no score")
    ended = [run for run in runs if run.state == WHOLE and run.reached is not False]
    timed = sorted((run for run in ended if run.time_to_train_s), key=lambda run: run.time_to_train_s or math.inf)
    failed = [run for run in runs if run not in timed]
    if len(failed) > 1:
        return Score(minutes=None, rule=f"{rule}. {len(failed)} runs did not reach the target, and one may: no score")
    kept = timed[1:] if failed else timed[1:-1]
    dropped = [timed[0], failed[0] if failed else timed[-1]]
    scaling = _scaling(folder)
    minutes = float(np.mean([run.time_to_train_s for run in kept])) / MINUTE * scaling
    return Score(minutes=minutes, rule=rule, dropped=tuple(run.path for run in dropped), scaling=scaling)


def _twice(runs: Sequence[LoggedRun]) -> list[str]:
    """Two logs with the same MLPerf lines, if there are such."""
    seen: dict[tuple[object, ...], str] = {}
    for run in runs:
        if run.log:
            lines = tuple((event.key, event.time_ms, str(event.value)) for event in run.log.events)
            if lines in seen:
                return [Path(seen[lines]).name, Path(run.path).name]
            seen[lines] = run.path
    return []


def _scaling(folder: Path) -> float:
    """MLPerf's factor on the score of a submission that converged sooner than the reference; 1 if there is none."""
    path = folder / SCALING
    if not path.is_file():
        return 1.0
    try:
        factor = json.loads(read_text(path))["scaling_factor"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise InputError(
            f"no scaling_factor can be read: {error}", where=str(path), fix="use the file as MLPerf's checker wrote it"
        ) from None
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < math.inf:
        raise InputError(
            f"scaling_factor is {factor!r}, not a positive number", where=str(path), fix="use the file as MLPerf's checker wrote it"
        )
    return float(factor)


def middle(times: Sequence[float]) -> list[float]:
    """The times without the fastest and the slowest; all of them if none would be left."""
    return sorted(times)[1:-1] or list(times)

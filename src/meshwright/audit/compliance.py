"""Runs MLPerf's own compliance checker on a log, if it is installed and has the rules of the log's round and benchmark."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from meshwright.record.mllog import Log, complaints
from meshwright.record.mllog_lines import UNPACK, WIDE

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
OWN_RULES = Path(__file__).parents[1] / "train" / "benchmark"  # of meshwright's own benchmark, by its name
OWN_RULESET = "6.0.0"
TIMEOUT_S = 120

_WORD = re.compile(r"[a-z0-9_]+")


@dataclass(frozen=True, slots=True)
class Compliance:
    """The result of the checker, or why it was not run."""

    state: str  # PASSED, FAILED or NOT_RUN
    rules: str  # the rules that were used; empty if it was not run
    complaints: tuple[str, ...] = ()
    why: str = ""


def check(log: Log, round: str) -> Compliance:
    """Check a log against MLPerf's rules of a round, in a separate process."""
    refused = _refusal(log)
    if refused:
        return Compliance(NOT_RUN, "", why=refused)
    own = OWN_RULES / f"{log.benchmark}.yaml"
    if own.is_file():
        return _run(Path(log.path), OWN_RULESET, f"common rules of ruleset {OWN_RULESET} and meshwright's own benchmark", own)
    if not round:
        return Compliance(NOT_RUN, "", why="the round is not known: give --round")
    ruleset = f"{round.removeprefix('v')}.0"
    missing = _missing_rules(ruleset, f"{_word(log, 'submission_division')}_{log.benchmark}.yaml")
    if missing:
        return Compliance(NOT_RUN, "", why=missing)
    return _run(Path(log.path), ruleset, f"ruleset {ruleset}, {log.benchmark}", None)


def _refusal(log: Log) -> str:
    """Why the checker must not read this log: it opens rule files by names from the log, so these must be plain words."""
    if find_spec("mlperf_logging") is None:
        return 'the package mlperf-logging is not installed: pip install "meshwright[train]"'
    if not _is_plain(Path(log.path)):
        return "the checker reads one run from a plain file: unpack or split this one"
    for key in ("submission_benchmark", "submission_division"):
        values = [event.value for event in log.events if event.key == key]
        if not values:
            return f"the log does not say its {key}"
        if not all(isinstance(value, str) and _WORD.fullmatch(value) for value in values):
            return f"{key} is not a plain word"
    return ""


def _is_plain(path: Path) -> bool:
    """Whether a log is an unpacked file with one run."""
    if not path.is_file():  # a run of several in a file
        return False
    with path.open("rb") as file:
        return not file.read(8).startswith((*UNPACK, *WIDE))


def _word(log: Log, key: str) -> str:
    return str(log.required(key).value)


def _missing_rules(ruleset: str, name: str) -> str:
    spec = find_spec("mlperf_logging")
    assert spec is not None and spec.submodule_search_locations is not None
    folder = Path(next(iter(spec.submodule_search_locations))) / "compliance_checker" / f"training_{ruleset}"
    if not folder.is_dir():
        return f"the checker has no ruleset {ruleset}"
    return "" if (folder / name).is_file() else f"ruleset {ruleset} has no {name.removesuffix('.yaml')}"


def _run(path: Path, ruleset: str, rules: str, config: Path | None) -> Compliance:
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report"
        command = [sys.executable, "-m", "mlperf_logging.compliance_checker", "--usage", "training", "--ruleset", ruleset, "--quiet"]
        command += ["--config", str(config)] if config else []
        command += ["--log_output", str(report), str(path.resolve())]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return Compliance(NOT_RUN, "", why=f"the checker took more than {TIMEOUT_S} s")
        text = report.read_text(encoding="utf-8", errors="replace") if report.exists() else ""
    if done.returncode == 0:
        return Compliance(PASSED, rules)
    return Compliance(FAILED, rules, complaints(text, done.stderr))

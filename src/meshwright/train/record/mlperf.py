"""MLPerf's log of a run, written with `mlperf-logging` and checked with its own compliance checker.

Under which benchmark's name, and with which settings, a run is logged is in `benchmark.settings`.
"""

from __future__ import annotations

import logging
import math
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from meshwright.describe.recipe import recipe
from meshwright.errors import InputError
from meshwright.files import replace_file
from meshwright.record.mllog import complaints, parse_log, read_log
from meshwright.train.benchmark.settings import OFFICIAL, OWN, OWN_RULES, LogSettings, check_settings

RULESET = "6.0.0"
SCHEDULE = "cosine with linear warmup"
ONCE = ("init_start", "init_stop", "run_start")  # in a resumed run, only the first start writes them


class MlperfLog:
    """The log of one run, written by rank 0. Without a path (other ranks), or without mlperf-logging, every call does nothing.

    `missing` is called once, with a sentence, if the package is not installed. An existing log is continued, because the run was resumed.
    """

    def __init__(self, path: Path | None, benchmark: str, settings: LogSettings, missing: Callable[[str], None] | None = None) -> None:
        check_settings(benchmark, settings)
        self.path, self.benchmark, self.settings = path, benchmark, settings
        self.best: float | None = None
        self._block: tuple[int, float] | None = None  # samples and time at the start of the block
        self._clock_offset_s = time.time() - time.monotonic()
        self._last_ms = 0
        self._written: set[str] = set()
        self._handler: logging.FileHandler | None = None
        self._logger = _mllogger() if path else None
        if path and self._logger:
            self._go_on(path)
            self._handler = logging.FileHandler(path, encoding="utf-8")
            self._logger.logger.addHandler(self._handler)
        elif path and missing:
            missing("no MLPerf log: the package mlperf-logging is not installed")

    @property
    def target_reached(self) -> bool:
        """Whether an evaluation has reached the target."""
        return self.best is not None and self.best <= self.settings.target

    def init_start(self) -> None:
        """Write that the process has begun (caches are clear, no data was read), and the settings of the run."""
        if "run_start" in self._written:
            self._point("resumed", True)
            return
        self._point("cache_clear", True)
        self._mark("start", "init_start")
        for key, value in _setting_lines(self.benchmark, self.settings):
            self._point(key, value)

    def init_stop(self) -> None:
        """Write that everything is ready except the data, which may be read from now on."""
        self._mark("end", "init_stop")

    def run_start(self) -> None:
        """Write the start of the time that is scored."""
        self._mark("start", "run_start")

    def block_start(self, samples: int, step: int) -> None:
        """Training continues after `samples`, until the next evaluation."""
        self._block = samples, time.monotonic()
        self._mark("start", "block_start", samples_count=samples, step=step)

    def block_stop(self, samples: int, step: int) -> None:
        """Write that training pauses for an evaluation, or ends, with the samples per second of the block."""
        if self._block is not None and samples > self._block[0]:
            seconds = time.monotonic() - self._block[1]
            self._point("tracked_stats", {"throughput": (samples - self._block[0]) / seconds}, samples_count=samples, step=step)
        self._block = None
        self._mark("end", "block_stop", samples_count=samples, step=step)

    def step(self, step: int, samples: int, loss: float | None, step_s: float, lr: float) -> None:
        """Write one step; `samples` counts from the start of the run."""
        stats = {"train_step_time": step_s, "reduced_train_loss": loss, "learning_rate": lr}
        self._point("tracked_stats", stats, step=step, samples_count=samples)

    def evaluation_start(self, samples: int, step: int) -> None:
        """An evaluation begins after `samples`."""
        self._mark("start", "eval_start", samples_count=samples, step=step)

    def evaluation(self, samples: int, step: int, loss: float) -> None:
        """The evaluation is over, with this loss."""
        if math.isfinite(loss):
            self.best = loss if self.best is None else min(self.best, loss)
        self._point("eval_accuracy", loss, samples_count=samples, step=step)
        self._mark("end", "eval_stop", samples_count=samples, step=step)

    def run_stop(self, samples: int, step: int) -> str:
        """Write the end of the run, and return the status that was written.

        It is "success" if an evaluation reached the target, and under an official name only with that benchmark's own data.
        """
        official = OFFICIAL.get(self.benchmark)
        own_data = official is None or self.settings.dataset == official.dataset
        status = "success" if self.target_reached and own_data else "aborted"
        self._mark("end", "run_stop", samples_count=samples, step=step, status=status)
        return status

    def close(self) -> None:
        """Close the file."""
        if self._logger and self._handler:
            self._logger.logger.removeHandler(self._handler)
            self._handler.close()
            self._handler = None

    def _go_on(self, path: Path) -> None:
        """Continue the log of an earlier start, without an incomplete last line and without its end lines."""
        content = path.read_bytes() if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        kept = b"".join(line for line in whole.splitlines(keepends=True) if b'"key": "run_stop"' not in line)
        if kept != content:
            replace_file(path, kept)
        if not kept:
            return
        log = parse_log(whole.decode(errors="replace"), str(path))  # including its end: no later line may have an earlier time
        self._written = {event.key for event in log.events}
        self._last_ms = int(max(event.time_ms for event in log.events))
        losses = [one.quality for one in log.evaluations if one.quality is not None]
        self.best = min(losses, default=None)

    def _time_ms(self) -> int:
        """Milliseconds since 1970, never less than in the line before: the wall clock may be set back, the monotonic clock is not."""
        self._last_ms = max(self._last_ms, int(1e3 * (self._clock_offset_s + time.monotonic())))
        return self._last_ms

    def _point(self, key: str, value: Any, **metadata: Any) -> None:
        if self._logger:
            self._logger.event(key, value, metadata=metadata, time_ms=self._time_ms())

    def _mark(self, edge: str, key: str, **metadata: Any) -> None:
        """Write the start or end of an interval; in a resumed run, not those that may occur only once."""
        if self._logger and not (key in ONCE and key in self._written):
            getattr(self._logger, edge)(key, metadata=metadata, time_ms=self._time_ms())


def _mllogger() -> Any:
    """A logger of mlperf-logging that does not write yet; None if the package is not installed."""
    try:
        from mlperf_logging.mllog.mllog import MLLogger
    except ImportError:
        return None
    logger = logging.Logger("meshwright.mlperf", logging.INFO)  # a separate logger: it shares no handler and no level with others
    package = Path(__file__).parents[2]
    return MLLogger(logger=logger, root_dir=re.escape(str(package.parent)), default_stack_offset=2)


def _setting_lines(benchmark: str, settings: LogSettings) -> Iterator[tuple[str, Any]]:
    """The keys and values that are written before the run, in MLPerf's words."""
    yield "submission_benchmark", benchmark
    yield "submission_division", "closed" if benchmark in OFFICIAL else "open"
    yield "submission_org", settings.organisation
    yield "submission_platform", settings.platform
    yield "submission_status", "research"
    yield "seed", settings.seed
    yield "global_batch_size", settings.global_batch
    yield "gradient_accumulation_steps", settings.gradient_accumulation_steps
    yield "micro_batch_size", settings.micro_batch
    yield "max_sequence_length", settings.sequence_length
    yield "train_samples", settings.train_samples
    yield "eval_samples", settings.eval_samples
    yield "train_dataset", settings.dataset
    yield "init_checkpoint_step", 0
    yield "max_steps", settings.max_steps
    yield "target_accuracy", settings.target
    yield "opt_name", "adamw"
    yield "opt_base_learning_rate", settings.base_learning_rate
    yield "opt_end_learning_rate", settings.end_learning_rate
    yield "opt_learning_rate_warmup_steps", settings.warmup_steps
    yield "opt_learning_rate_decay_steps", settings.decay_steps
    yield "opt_learning_rate_decay_schedule", SCHEDULE
    yield "opt_adamw_beta_1", settings.beta_1
    yield "opt_adamw_beta_2", settings.beta_2
    yield "opt_adamw_epsilon", settings.epsilon
    yield "opt_adamw_weight_decay", settings.weight_decay
    yield "opt_gradient_clip_norm", settings.clip_norm
    if settings.lora_rank:
        yield "lora_rank", settings.lora_rank
        yield "lora_alpha", settings.lora_alpha
        yield "opt_learning_rate_training_steps", settings.max_steps
    yield "tensor_parallelism", settings.tp
    yield "pipeline_parallelism", settings.pp
    yield "context_parallelism", settings.cp
    if named := recipe(settings.precision).mlperf_name:
        yield "lowest_numerical_precision_in_linear", named


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of MLPerf's compliance checker for a log."""

    passed: bool
    complaints: tuple[str, ...]
    rules: str  # the rules that were used, in words

    def __str__(self) -> str:
        verdict = "passed" if self.passed else f"{len(self.complaints)} complaint{'s' if len(self.complaints) > 1 else ''}"
        return "\n".join((f"MLPerf compliance checker, {self.rules}: {verdict}", *(f"  {text}" for text in self.complaints)))


def check_log(path: str | Path) -> CheckResult:
    """Check a log with the official checker and the rules of its benchmark, in a separate process; no network is needed."""
    path = Path(path)
    own = read_log(path).benchmark == OWN
    rules = f"official common rules of ruleset {RULESET} + " + ("meshwright's own benchmark file" if own else "the official benchmark file")
    checker = [sys.executable, "-m", "mlperf_logging.compliance_checker", "--usage", "training", "--ruleset", RULESET, "--quiet"]
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report"
        config = ["--config", str(OWN_RULES)] if own else []
        command = [*checker, *config, "--log_output", str(report), str(path.resolve())]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        text = report.read_text(encoding="utf-8") if report.exists() else ""
    if re.search("No module named .?mlperf_logging", done.stderr):
        raise InputError("the package mlperf-logging is not installed", fix='pip install "meshwright[train]"')
    return CheckResult(done.returncode == 0, complaints(text, done.stderr) if done.returncode else (), rules)

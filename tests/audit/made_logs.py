"""Small MLPerf logs for the tests of this folder."""

from __future__ import annotations

import json
from pathlib import Path

START_MS = 1_759_832_646_940  # in October 2025: round v5.1


def line(time_ms: float, key: str, value: object = None, **metadata: object) -> str:
    return ":::MLLOG " + json.dumps({"time_ms": int(time_ms), "key": key, "value": value, "metadata": metadata})


def lines(
    *,
    step_s: float = 2.0,
    num_steps: int = 8,
    quality: float = 5.5,
    status: str = "success",
    benchmark: str = "llama31_405b",
    seed: int = 1,
    learning_rate: float = 8e-5,
) -> list[str]:
    """A run of two blocks with an evaluation of 3 s after each; 30 s of initialisation before the clock."""
    clock = float(START_MS)
    out = [line(clock, "cache_clear", True)] * 3 + [line(clock, "init_start")]
    settings = {
        "submission_benchmark": benchmark,
        "submission_org": "Example Labs",
        "submission_platform": "2xEXAMPLE",
        "submission_division": "closed",
        "seed": seed,
        "global_batch_size": 64,
        "max_sequence_length": 8192,
        "opt_base_learning_rate": learning_rate,
        "target_accuracy": 5.6,
    }
    out += [line(clock, key, value) for key, value in settings.items()]
    clock += 30_000
    out += [line(clock, "init_stop"), line(clock, "run_start")]
    for block in range(2):
        out.append(line(clock, "block_start", samples_count=block * num_steps // 2 * 64))
        for step in range(block * num_steps // 2 + 1, (block + 1) * num_steps // 2 + 1):
            clock += 1e3 * step_s
            out.append(line(clock, "tracked_stats", {"train_step_time": step_s, "reduced_train_loss": 6.0}, step=step * 64))
        done = (block + 1) * num_steps // 2 * 64
        out += [line(clock, "block_stop", samples_count=done), line(clock, "eval_start", samples_count=done)]
        clock += 3_000
        out += [line(clock, "eval_accuracy", quality + 0.4 * (1 - block), samples_count=done), line(clock, "eval_stop", samples_count=done)]
    return [*out, line(clock, "run_stop", samples_count=num_steps * 64, status=status)]


def write(path: Path, text: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(text) + "\n")
    return path


def submission(folder: Path, steps_s: tuple[float, ...] = (2.0, 2.2, 2.1), **settings: object) -> Path:
    """A folder of logs, one for each step time."""
    for number, step_s in enumerate(steps_s):
        write(folder / f"result_{number}.txt", lines(step_s=step_s, seed=number, **settings))  # type: ignore[arg-type]
    return folder

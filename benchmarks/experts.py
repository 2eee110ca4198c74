"""Mixtures of experts on one GPU: every kernel checked, then our trainer beside torchtitan's own, the card's floor, and shares of the step.

    python benchmarks/experts.py [--part NAME]... [--case NAME]... [--titan DIR] [--folder DIR] [--steps N] [--warmup N] [--dry-run]

A call takes nine minutes at most. Parts run one after another, and a part that fails does not end the others; each can be asked for alone:

    correct    every kernel against float64, a layer twice bit by bit, waits of the host, and rates of grouped products
    predict    a hardware profile of the cases' models, as `meshwright measure` makes it, and the forecasts of our steps from it
    speed      the four cases by both trainers, the floor with the group sizes that our trainer had, and shares of the step by kind

The cases are Qwen3-30B-A3B with 16 of its 48 layers and a DeepSeek-style model of 16 billion parameters, with 8,192 and 4,096 tokens, bf16
states. What is computed again is each trainer's own choice: the fastest setting that fits (`h200_parts/cases.py: SETTINGS`). `--folder`
gets JSON files of the parts as they come, the profile, and `experts.md` with all tables; if both `predict` and `speed` ran, the last one
compares forecasts with steps. What `h200.py` says about its calls holds here too.

To bring along to a machine without a network (Python 3.12, torch 2.11 and triton 3.6 are there):

    pip download --no-deps --python-version 3.12 --only-binary=:all: --platform manylinux_2_28_x86_64 -d wheels \
        torchtitan==0.2.2 torchao==0.17.0 torchdata==0.11.0 tyro==1.0.16 einops==0.8.2 docstring_parser==0.18.0 typeguard==4.6.0
    mkdir -p titan/site && for wheel in wheels/*.whl; do unzip -qo $wheel -d titan/site; done

Everything takes two calls, each into a folder of its own, because the second would replace the files of the first. A case is measured with
both trainers and its floor in one call:

    python benchmarks/experts.py --case qwen3-moe-8192 --case deepseek-16b-8192 --titan titan --folder first
    python benchmarks/experts.py --part predict --part speed --case qwen3-moe-4096 --case deepseek-16b-4096 --titan titan --folder second
"""

from __future__ import annotations

import argparse
import io
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).parent))

import h200
from h200_parts import tables
from h200_parts.cases import EXPERTS
from h200_parts.child import say

LIMIT_S = 535.0  # of all parts together
CORRECT_LIMIT_S = 150.0  # most of it Triton's: every kernel is compiled for every kind of shape that is checked
CUT_OFF = 128 + signal.SIGTERM  # exit status of a call that is ended from outside
DRY_LIMIT_S = 3600.0  # a processor may be slow, and has no lease
STEPS, WARMUP = 12, 8  # cases by two trainers with their floors share a call


def main(words: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(words)
    if given.folder:
        return _measured(given)
    with tempfile.TemporaryDirectory(prefix="experts-") as folder:
        given.folder = Path(folder)
        return _measured(given)


def _measured(given: argparse.Namespace) -> int:
    started_s = time.monotonic()
    failed, shown = [], []
    for part in given.part or PARTS:
        left_s = (DRY_LIMIT_S if given.dry_run else LIMIT_S) - (time.monotonic() - started_s)
        printed = Copied(sys.stdout)
        try:
            with redirect_stdout(printed):
                status = h200.main(PARTS[part](given, left_s))
        except (Exception, SystemExit) as error:  # what breaks one part must not keep the others from running
            if isinstance(error, SystemExit) and error.code == CUT_OFF:
                raise
            status = 1
            say(f"{part} broke off: {type(error).__name__}: {error}")
        failed += [part] if status else []
        shown.append(f"## {part}\n\n" + printed.tables())
    if compared := _compared(given.folder):
        say(f"\nForecast and step\n\n{compared}")
        shown.append(f"## Forecast and step\n\n{compared}")
    (given.folder / "experts.md").write_text("# Mixtures of experts on one GPU\n\n" + "\n\n".join(shown) + "\n")
    if failed:
        say(f"not everything gave a result in: {', '.join(failed)}")
    return 1 if failed else 0


def _compared(folder: Path) -> str:
    """The table of forecasts beside the steps of our trainer, each with what it computed again; nothing unless both were made."""
    predicted, ran = (_rows(folder / f"{part}.json", kind) for part, kind in (("predict", "predicted"), ("speed", "speed")))
    measured = [row for row in ran if row["who"] == "ours" and "mean_s" in row]
    said = [row for row in predicted if row["case"] in {one["case"] for one in measured}]
    return tables.predict_table({"predicted": said, "measured": measured}) if said else ""


def _rows(path: Path, kind: str) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text()).get(kind, ())) if path.exists() else []


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", default=[], choices=PARTS, help="one or more; without it, all")
    parser.add_argument("--case", action="append", default=[], choices=[case.name for case in EXPERTS])
    parser.add_argument("--titan", type=Path, metavar="DIR", help="folder with site/, where torchtitan 0.2.2 lies unpacked")
    parser.add_argument("--folder", type=_folder, metavar="DIR", help="for JSON and Markdown")
    parser.add_argument("--steps", type=int, default=STEPS, help="timed steps (default %(default)s)")
    parser.add_argument("--warmup", type=int, default=WARMUP, help="steps before them (default %(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="tiny models on the processor: the figures mean nothing")
    return parser


def _folder(text: str) -> Path:
    path = Path(text)
    path.mkdir(parents=True, exist_ok=True)
    return path


def _correct(given: argparse.Namespace, left_s: float) -> list[str]:
    return [
        "correct",
        "--part",
        "experts",
        "--limit-s",
        f"{left_s if given.dry_run else min(left_s, CORRECT_LIMIT_S):.0f}",
        *_shared("correct", given),
    ]


def _speed(given: argparse.Namespace, left_s: float) -> list[str]:
    peer = ["--titan", str(given.titan)] if given.titan else ["--no-peer"]
    cases = [word for name in given.case or [case.name for case in EXPERTS] for word in ("--case", name)]
    steps = ["--steps", str(given.steps), "--warmup", str(given.warmup)]
    return ["speed", "--floor", "--shares", "--limit-s", f"{left_s:.0f}", *peer, *steps, *cases, *_shared("speed", given)]


def _predict(given: argparse.Namespace, left_s: float) -> list[str]:
    cases = [word for name in given.case or [case.name for case in EXPERTS] for word in ("--case", name)]
    return ["forecast", "--profile", str(given.folder / "profile.json"), "--limit-s", f"{left_s:.0f}", *cases, *_shared("predict", given)]


def _shared(part: str, given: argparse.Namespace) -> list[str]:
    return ["--out", str(given.folder / f"{part}.json"), *(["--dry-run"] if given.dry_run else [])]


PARTS: dict[str, Callable[[argparse.Namespace, float], list[str]]] = {"correct": _correct, "predict": _predict, "speed": _speed}


class Copied(io.StringIO):
    """What is printed, passed on at once and kept: tables and their titles are shown again in the Markdown file."""

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self.out = out

    def write(self, text: str) -> int:
        self.out.write(text)
        self.out.flush()
        return super().write(text)

    def tables(self) -> str:
        """The text from the first table's title on: tables are printed last."""
        lines = self.getvalue().splitlines()
        first = next((number for number, line in enumerate(lines) if line.startswith("|")), len(lines))
        return "\n".join(lines[max(first - 2, 0) :])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(CUT_OFF))  # so that no child outlives a call that is cut off
    sys.exit(main())

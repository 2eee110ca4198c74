"""Audits on a terminal: a claim as a memo, logs as tables with a strip of their step times."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.padding import Padding
from rich.text import Text

from meshwright.audit.printable import printable
from meshwright.audit.verdict import CONSISTENT, IMPLAUSIBLE, IMPOSSIBLE, MISLEADING, UNKNOWN, UNSUPPORTED
from meshwright.cli.show import console, show_table, show_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meshwright.audit.judge import Judgement
    from meshwright.audit.score import LoggedSubmission
    from meshwright.record.mllog import StepTimes

COLOURS = {
    CONSISTENT: "green",
    UNKNOWN: "cyan",
    UNSUPPORTED: "yellow",
    MISLEADING: "dark_orange",
    IMPLAUSIBLE: "red",
    IMPOSSIBLE: "bold red",
}


def show_judgement(judgement: Judgement) -> None:
    """Print a judgement: the claim, the verdict, and every statement with its reason and its arithmetic."""
    claim = judgement.claim
    _print(Text(printable(claim.text) or "the claim", style="bold"))
    _print(Text.assemble((judgement.verdict, COLOURS[judgement.verdict]), f": {judgement.why}"))
    for name, value in (("source", claim.source), ("file", claim.where), ("expected", _expected(judgement))):
        if value:
            _print(Text(f"{name}: {printable(value)}", style="dim"))
    for statement in judgement.statements:
        print()
        why = f": {printable(statement.why)}"
        _print(Text.assemble((statement.verdict, COLOURS[statement.verdict]), "  ", (statement.about, "bold"), why), indent=2)
        for line in statement.arithmetic:
            _print(Text(printable(line), style="dim"), indent=6)
    print()


def _print(text: Text, indent: int = 0) -> None:
    """Print wrapped text, all of its lines indented, without the spaces that would fill them."""
    out = console()
    with out.capture() as captured:
        out.print(Padding(text, (0, 0, 0, indent)))
    for line in captured.get().rstrip("\n").split("\n"):
        print(line.rstrip())


def _expected(judgement: Judgement) -> str:
    expected = judgement.claim.expected
    return f"{expected} ({'as found' if expected == judgement.verdict else 'not as found'})" if expected else ""


# -- logs -----------------------------------------------------------------------------------------------

BLOCKS, PLAIN_BLOCKS = "▁▂▃▄▅▆▇█", ".:-=+*#%"  # the second where the output cannot show the first
STRIP_WIDTH = 60
FLAT = 1e-3  # stretches that differ by less are drawn alike: a strip is no place for noise


def show_logs(one: LoggedSubmission) -> None:
    """Print the logs of a submission: the runs, their steps with a strip of each, and what is to be said of them."""
    from meshwright.audit import log_memo

    show_table(log_memo.title(one), log_memo.RUN_COLUMNS, log_memo.run_rows(one))
    steps = log_memo.step_rows(one)
    if steps:
        show_table("step times", log_memo.STEP_COLUMNS, steps)
        drawn = [(Path(run.path).name, strip(run.steps.seconds), _scale(run.steps)) for run in one.runs if run.steps is not None]
        show_table("step times from the first to the last", ("log", "median of each stretch", "from lowest to highest"), drawn)
    for finding in log_memo.findings(one):
        show_text(finding)
    print()


def strip(seconds: NDArray[np.float64], width: int = STRIP_WIDTH, blocks: str = "") -> str:
    """A line of blocks, each as high as the median of its stretch of steps, from the lowest to the highest stretch."""
    blocks = blocks or (BLOCKS if _shows(BLOCKS) else PLAIN_BLOCKS)
    medians = np.array([np.median(part) for part in np.array_split(seconds, min(width, len(seconds)))])
    low, high = float(medians.min()), float(medians.max())
    if high - low <= FLAT * high:
        return blocks[0] * len(medians)
    levels = np.rint((medians - low) / (high - low) * (len(blocks) - 1)).astype(int)
    return "".join(blocks[level] for level in levels)


def _scale(steps: StepTimes) -> str:
    medians = [float(np.median(part)) for part in np.array_split(steps.seconds, min(STRIP_WIDTH, len(steps.seconds)))]
    return f"{min(medians):.4g} to {max(medians):.4g} s"


def _shows(text: str) -> bool:
    """Whether the output's encoding has these characters."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True

"""Recompute MLPerf logs: time to train, score, steps, evaluations; whether the log is complete and keeps the rules."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.options import AsJson, AsMarkdown

if TYPE_CHECKING:
    from meshwright.audit.score import LoggedSubmission


def log(
    files: Annotated[list[Path], typer.Argument(metavar="LOG", help="MLPerf logs, or folders of result_*.txt. A folder is a submission.")],
    round_name: Annotated[
        str | None,
        typer.Option("--round", metavar="ROUND", help="Round of MLPerf Training (v5.1); default: by the log's date.", show_default=False),
    ] = None,
    compliance: Annotated[bool, typer.Option("--compliance/--no-compliance", help="Whether to run MLPerf's compliance checker.")] = True,
    as_markdown: AsMarkdown = False,
    as_json: AsJson = False,
) -> None:
    """Recompute the results of MLPerf logs (v3.0 and later), and compare the runs of a submission.

    The exit status is 1 if a log is truncated or damaged.

    Examples:

      meshwright audit log result_0.txt result_1.txt

      meshwright audit log results/gb200/llama31_405b --round v5.1 --json
    """
    from meshwright.audit import log_memo
    from meshwright.audit.compare import comparisons
    from meshwright.audit.printable import escaped
    from meshwright.audit.rules import round_named
    from meshwright.audit.score import read_submissions
    from meshwright.cli.audit_show import show_logs
    from meshwright.cli.show import show_json, show_text

    found = read_submissions(files, round_named(round_name) if round_name else "", with_compliance=compliance)
    against_first = [(one.folder, comparison) for one, comparison in comparisons(found)]
    lines = [f"{folder} against {found[0].folder}: {comparison.sentence}" for folder, comparison in against_first]
    if as_json:
        compared = [{"folder": folder, "base": found[0].folder, **asdict(one), "why": one.sentence} for folder, one in against_first]
        show_json({"submissions": [log_memo.as_json(one) for one in found], "comparisons": compared})
    elif as_markdown:
        print("\n".join([*(log_memo.as_markdown(one) for one in found), *(f"- {escaped(line)}\n" for line in lines)]), end="")
    else:
        for one in found:
            show_logs(one)
        for line in lines:
            show_text(line)
    if not _are_whole(found):
        raise typer.Exit(1)


def _are_whole(found: list[LoggedSubmission]) -> bool:
    return all(run.is_whole for one in found for run in one.runs)

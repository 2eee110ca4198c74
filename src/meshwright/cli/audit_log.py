"""Recompute MLPerf logs: time to train, score, steps, evaluations; whether the log is complete and follows the rules."""

from __future__ import annotations

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
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a memo as a page that can be forwarded.", show_default=False)
    ] = None,
    as_markdown: AsMarkdown = False,
    as_json: AsJson = False,
) -> None:
    """Recompute the results of MLPerf logs (v3.0 and later), and compare the runs of a submission.

    The exit status is 1 if a log is truncated or damaged.

    Examples:

      meshwright audit log result_0.txt result_1.txt --html memo.html

      meshwright audit log results/gb200/llama31_405b --round v5.1 --json
    """
    from meshwright.audit import log_memo
    from meshwright.audit.log_page import log_memos
    from meshwright.audit.printable import escaped
    from meshwright.audit.rules import round_named
    from meshwright.audit.score import read_submissions
    from meshwright.cli.audit_page import with_page
    from meshwright.cli.show import check_format, show

    check_format(as_json=as_json, as_markdown=as_markdown)
    found = read_submissions(files, round_named(round_name) if round_name else "", with_compliance=compliance)
    document = with_page(log_memo.logs_document(found), html, log_memos(found) if html else ())
    if as_markdown:
        lines = [f"- {escaped(line)}\n" for line in log_memo.comparison_lines(found)]
        print("\n".join([*map(log_memo.as_markdown, found), *lines]), end="")
    else:
        show(document, as_json=as_json)
    if not _are_whole(found):
        raise typer.Exit(1)


def _are_whole(found: list[LoggedSubmission]) -> bool:
    return all(run.is_whole for one in found for run in one.runs)

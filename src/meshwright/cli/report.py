"""Turn runs, or profiles, into a page to show: where time, money and energy went, predicted beside measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli.options import AsJson, AsMarkdown


def report(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, or Chrome traces (.json, .json.gz) of torch.profiler.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Page to write; default: report.html, unless --json or --markdown is given.")
    ] = None,
    as_json: AsJson = False,
    as_markdown: AsMarkdown = False,
) -> None:
    """Make a page about runs or profiles: time, steps, parts, loss, money.

    Examples:

      meshwright report runs/first --out first.html

      meshwright report runs/first runs/second --markdown
    """
    from meshwright.cli.report_show import show_profile, show_runs
    from meshwright.errors import InputError
    from meshwright.report.chrome_trace import is_trace

    if as_json and as_markdown:
        raise InputError("JSON and Markdown at once", where="--json, --markdown", fix="ask for one of them; --out FILE adds the page")
    page = out or (None if as_json or as_markdown else Path("report.html"))
    form = "json" if as_json else "markdown" if as_markdown else "tables"
    traces = [path for path in paths if is_trace(path)]
    if traces and len(traces) < len(paths):
        raise InputError("runs and traces do not go on one page", where=str(traces[0]), fix="make a report of each")
    if traces:
        show_profile(traces, page, form)
    else:
        show_runs(paths, page, form)

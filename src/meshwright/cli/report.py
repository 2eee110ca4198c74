"""Make a page from runs or profiles: where time, money and energy went, predicted next to measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli.options import AsJson, AsMarkdown


def report(
    paths: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run folders (or their URLs), or Chrome traces (.json, .json.gz) of torch.profiler.")
    ],
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
    from meshwright.cli.show import check_format, show
    from meshwright.cli.urls import run_here
    from meshwright.errors import InputError, printable
    from meshwright.files import check_ending
    from meshwright.record.chrome_trace import is_trace
    from meshwright.record.profile import profile_of
    from meshwright.report.documents import profile_document, report_document
    from meshwright.report.facts import facts_of_runs
    from meshwright.report.page.run_page import write_run_page
    from meshwright.report.page.trace_page import write_trace_page
    from meshwright.say.markdown import markdown

    check_format(as_json=as_json, as_markdown=as_markdown)
    check_ending(out, "the page", ".html", ".htm")
    page = out or (None if as_json or as_markdown else Path("report.html"))
    paths = [run_here(path) for path in paths]
    traces = [path for path in paths if is_trace(path)]
    if traces and len(traces) < len(paths):
        raise InputError("runs and traces do not go on one page", where=str(traces[0]), fix="make a report of each")
    if traces:
        profile = profile_of(tuple(traces))
        document = profile_document(profile)
        if page:
            write_trace_page(profile, page)
    else:
        runs = facts_of_runs(paths)
        document = report_document(runs)
        if page:
            write_run_page(runs, page)
    if as_markdown:
        print(printable(markdown(document)), end="")
    else:
        show(document.with_files({"page": page}), as_json=as_json)
    if page and not (as_json or as_markdown):
        print(printable(f"page: {page}"))

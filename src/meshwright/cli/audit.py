"""Check other people's numbers: recompute MLPerf logs, judge claims by arithmetic and measurements."""

from __future__ import annotations

import typer

from meshwright.cli.audit_claim import claim
from meshwright.cli.audit_log import log
from meshwright.cli.help import add, examples

audit = typer.Typer(
    name="audit",
    add_completion=False,
    rich_markup_mode=None,
    help="Check other people's numbers: recompute MLPerf logs, judge claims by arithmetic and measurements.",
    epilog=examples("meshwright audit log result_0.txt result_1.txt", "meshwright audit claim --examples"),
)
add(audit, log)
add(audit, claim)

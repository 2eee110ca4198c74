"""Check other people's numbers: recompute MLPerf logs, judge claims by arithmetic and measurements."""

from __future__ import annotations

import typer

from meshwright.cli.audit_claim import claim
from meshwright.cli.audit_log import log
from meshwright.cli.help import add

audit = typer.Typer(
    name="audit",
    add_completion=False,
    rich_markup_mode=None,
    help="Check other people's numbers: recompute MLPerf logs, judge claims by arithmetic and measurements.",
)
add(audit, log)
add(audit, claim)

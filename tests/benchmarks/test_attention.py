"""The benchmark of attention runs all its cases on a processor too, where they must be right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "attention.py"


def test_every_case_is_right_in_a_dry_run():
    found = subprocess.run([sys.executable, str(SCRIPT), "--dry-run"], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-2000:]
    assert "13 of 13 cases right" in found.stdout

"""Tests of stacks share their jobs (stack_jobs.py)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

"""Tests of evidence share rows of measured runs (`measured_rows`)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

"""A profile by meshwright and by HolisticTraceAnalysis, side by side: `python benchmarks/trace_against_hta.py trace.json.gz`.

Needs `pip install HolisticTraceAnalysis`, best in an environment of its own. Times are compared to the nanosecond: HTA's rounding to whole
microseconds is switched off. It exits with 1 where the two differ by more than rounding.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

from meshwright.record.profile import ProcessTimes, profile_of

US = 1e-6
TOLERANCE = 1e-6  # of the window; HTA gives the overlap to 0.01 %


def by_hta(path: Path) -> dict[str, float]:
    """What HTA says of a trace with one GPU: microseconds, and per cent of the communication."""
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
    from hta.trace_analysis import TraceAnalysis

    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(path, folder)
        analysis = TraceAnalysis(trace_dir=folder, include_last_profiler_step=True)
        times = analysis.get_temporal_breakdown(visualize=False).iloc[0]
        overlap = analysis.get_comm_comp_overlap(visualize=False).iloc[0]
    return {
        "window, us": float(times["kernel_time(us)"]),
        "compute, us": float(times["compute_time(us)"]),
        "not compute, us": float(times["non_compute_time(us)"]),
        "idle, us": float(times["idle_time(us)"]),
        "overlap, %": float(overlap["comp_comm_overlap_pctg"]),
    }


def by_us(process: ProcessTimes) -> dict[str, float]:
    """The same from a profile of ours."""
    return {
        "window, us": process.window_s / US,
        "compute, us": process.compute_s / US,
        "not compute, us": (process.exposed_s + process.memory_s) / US,
        "idle, us": process.idle_s / US,
        "overlap, %": process.overlap_pct if process.overlap_pct is not None else float("nan"),
    }


def main(path: Path) -> int:
    """Print both; whether they differ."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    (process,) = profile_of((path,)).processes
    ours, theirs = by_us(process), by_hta(path)
    differs = False
    exposed = f"exposed {process.exposed_s / US:,.3f} us of {process.window_s / US:,.3f} us"
    print(f"{path.name}: {process.num_events:,} kernels and copies, {exposed}")
    print(f"{'':18}{'meshwright':>16}{'HTA':>16}")
    for name, value in ours.items():
        allowed = 0.0051 if name.endswith("%") else TOLERANCE * ours["window, us"] + 0.01
        far = not abs(value - theirs[name]) <= allowed
        differs |= far
        print(f"{name:18}{value:16,.3f}{theirs[name]:16,.3f}{'   differs' if far else ''}")
    return int(differs)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python benchmarks/trace_against_hta.py trace.json.gz")
    sys.exit(main(Path(sys.argv[1])))

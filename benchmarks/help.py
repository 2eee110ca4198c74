"""How long `meshwright --help` takes, against an interpreter that does nothing: `python benchmarks/help.py`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

ROUNDS = 15


def seconds(*arguments: str) -> float:
    """Wall clock of one interpreter."""
    started_s = time.perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    return time.perf_counter() - started_s


def main() -> None:
    """Take both in turn and print medians and their ratio."""
    help_s, bare_s = [], []
    for _ in range(ROUNDS):
        help_s.append(seconds("-m", "meshwright", "--help"))
        bare_s.append(seconds("-c", "pass"))
    ours_s, theirs_s = statistics.median(help_s), statistics.median(bare_s)
    print(
        f"meshwright --help {ours_s * 1e3:.0f} ms, python alone {theirs_s * 1e3:.0f} ms, ratio {ours_s / theirs_s:.1f} (median of {ROUNDS})"
    )


if __name__ == "__main__":
    main()

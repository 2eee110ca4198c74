"""How long `import meshwright` takes, and what of it: `python benchmarks/importing.py`."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys

ROUNDS = 15
LINE = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \|(\s+)(\S+)")  # own and all microseconds, depth, module
NUM_SHOWN = 5


def import_us(code: str) -> dict[str, tuple[int, int]]:
    """Microseconds that each module took to import, its own and with what it imports, by `-X importtime`."""
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True)
    return {found[4]: (int(found[1]), int(found[2])) for found in LINE.finditer(done.stderr)}


def main() -> None:
    """Print the median of several imports, and the modules of the last that took longest."""
    times = [import_us("import meshwright") for _ in range(ROUNDS)]
    median_us = statistics.median(one["meshwright"][1] for one in times)
    print(f"import meshwright: {median_us / 1e3:.2f} ms (median of {ROUNDS})")
    before = import_us("pass")
    own = {name: took[0] for name, took in times[-1].items() if name not in before}
    for name, own_us in sorted(own.items(), key=lambda item: -item[1])[:NUM_SHOWN]:
        print(f"{own_us / 1e3:8.2f} ms  {name}")


if __name__ == "__main__":
    main()

"""What each way of surviving failures is worth on machines of 1,024, 8,192 and 131,072 accelerators: the share of time that is work.

`python benchmarks/mechanisms.py` prints the table of docs/simulator.md, `--json` the same as JSON. Failures are those of Llama 3 405B
(describe/catalogue/failures.toml, with sources); nodes of 4, replicas of 64 accelerators and a step of 1.25 s are those of the record
machine.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from meshwright.describe.failures import usual_failures
from meshwright.predict.mechanisms import Mechanism, mechanisms

SIZES = (1024, 8192, 131072)
PER_NODE, PER_REPLICA, STEP_S = 4, 64, 1.25


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    found = [one for size in SIZES for one in mechanisms(usual_failures(), size, PER_NODE, PER_REPLICA, STEP_S)]
    if parser.parse_args().json:
        print(json.dumps([asdict(one) for one in found]))
        return
    print(f"| way of surviving failures | {' | '.join(f'{size:,}' for size in SIZES)} |")
    print(f"| --- | {' | '.join('---:' for _ in SIZES)} |")
    for name in dict.fromkeys(one.name for one in found):
        print(f"| {name} | {' | '.join(_cell(one) for one in found if one.name == name)} |")


def _cell(one: Mechanism) -> str:
    return f"{100 * one.goodput:.1f} %" + (f" ({one.num_spares} spare nodes)" if one.num_spares else "")


if __name__ == "__main__":
    main()

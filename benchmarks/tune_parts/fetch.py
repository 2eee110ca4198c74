"""Fetch the peers of `benchmarks/tune.py` into a folder, for a machine without a network.

    python benchmarks/tune_parts/fetch.py DIR

They are wheels of pure Python, about 3 MB. torch, transformers, accelerate and triton are taken from that machine.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEELS = ("trl==1.15.0", "peft==0.21.2", "liger-kernel==0.8.5")


def main() -> None:
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, *WHEELS], check=True)
        for wheel in sorted(Path(folder).glob("*.whl")):
            zipfile.ZipFile(wheel).extractall(target)
            print(f"{wheel.name} -> {target}")


if __name__ == "__main__":
    main()

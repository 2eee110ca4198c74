"""Fetch the peers of `benchmarks/tune.py` as one archive, for a machine without a network.

    python benchmarks/tune_parts/fetch.py peers.tar.xz [--without-unsloth]

torch, transformers, accelerate and triton are taken from that machine, which is x86_64 with Python 3.12. Parts that are not used are left
out: Unsloth's studio and command line, tests, libraries of bitsandbytes for other releases of CUDA, headers of pyarrow, and
what it has for Flight (it was imported without).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

WHEELS = ("trl==1.15.0", "peft==0.21.2", "liger-kernel==0.8.5")
# The last releases whose own requirements fit transformers 5.17 and torch 2.11, with what they import.
UNSLOTH = (
    "unsloth==2026.10.9", "unsloth_zoo==2026.10.9", "bitsandbytes", "torchao==0.17.0", "datasets==4.8.5", "pyarrow", "pandas", "xxhash",
    "dill==0.4.0", "multiprocess==0.70.18", "tyro", "docstring-parser", "typeguard", "shtab", "cut_cross_entropy", "sentencepiece",
    "protobuf", "hf_transfer", "msgspec", "python-dateutil", "pytz", "tzdata", "six", "nest-asyncio",
)  # fmt: skip
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_24_x86_64", "manylinux2014_x86_64", "manylinux_2_17_x86_64")
LEFT_OUT = (
    "studio/",
    "unsloth_cli/",
    "/tests/",
    "pyarrow/include/",
    "pyarrow/src/",
    "pyarrow/tests/",
    ".dist-info/licenses/",
)
SERVICES = (
    "pyarrow/libarrow_flight",
    "pyarrow/libarrow_python_flight",
    "pyarrow/_flight",
    "pyarrow/libarrow_substrait",
    "pyarrow/_substrait",
)
CUDA = "libbitsandbytes_cuda130.so"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--without-unsloth", action="store_true", help="TRL, PEFT and liger-kernel alone: 3 MB")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wheels, site = Path(folder) / "wheels", Path(folder) / "site"
        for wheel in (*WHEELS, *(() if given.without_unsloth else UNSLOTH)):
            download(wheel, wheels)
        for path in sorted(wheels.glob("*.whl")):
            unpack(path, site)
        with tarfile.open(given.archive, "w:xz") as archive:
            archive.add(site, arcname=".")
    print(f"{given.archive}: {given.archive.stat().st_size / 2**20:.1f} MiB")


def download(wheel: str, target: Path) -> None:
    """Fetch one wheel for that machine; a package that there is none of is told and left out."""
    options = [
        "--python-version",
        "3.12",
        "--implementation",
        "cp",
        "--abi",
        "cp312",
        "--abi",
        "abi3",
        "--abi",
        "none",
        "--platform",
        "any",
    ]
    options += [word for platform in PLATFORMS for word in ("--platform", platform)]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        *options,
        "--dest",
        str(target),
        wheel,
    ]
    if subprocess.run(command, check=False).returncode:
        print(f"{wheel}: not fetched", file=sys.stderr)


def unpack(path: Path, site: Path) -> None:
    """Unpack a wheel without what is not used."""
    with zipfile.ZipFile(path) as wheel:
        kept = [name for name in wheel.namelist() if is_used(name)]
        wheel.extractall(site, kept)
    print(f"{path.name}: {len(kept)} files")


def is_used(name: str) -> bool:
    """Whether a file of a wheel is needed to train."""
    if "libbitsandbytes" in name:
        return name.endswith(CUDA)
    if name.startswith(SERVICES):
        return False
    return not any(part in f"/{name}" if part.startswith("/") else name.startswith(part) or f"/{part}" in name for part in LEFT_OUT)


if __name__ == "__main__":
    main()

"""`meshwright doctor` on one GPU: no alarm on a healthy card, every defect that one card can have is found, and how long it takes.

    python benchmarks/doctor.py [--cap-clock MHZ] [--out FILE]

The card is examined three times as it is. Then another process holds 40 GiB of its memory; then another process copies on it without end,
so that both share its bandwidth. Three defects are put in as a sick machine would report them: memory errors in the answer of nvidia-smi,
a disk whose every fsync takes half a second, an NCCL that is older than torch's. `--cap-clock` also locks the card's clock, which needs
the rights of an administrator, and resets it afterwards. A skewed clock and a slow pair need several ranks: tests/doctor/test_gather.py
has them.

Each call is a process of its own, timed from its start to its end. The exit status is 1 where a healthy card gave an alarm, a defect was
not found, or a call took longer than a minute. Without a GPU it says so, claims nothing and exits with 0.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from meshwright.describe.this_machine import gpu_names
from meshwright.doctor.checks import OK

CLEAN = 3
LIMIT_S = 60.0
READY_S = 60.0  # that a process which disturbs the card may take to begin
NOTHING = "nothing was measured, and nothing is claimed"
HOLD = "import torch; held = torch.empty(40 << 30, dtype=torch.uint8, device='cuda'); print('ready', flush=True); input()"
COPY = """
import torch
a, b = (torch.zeros(256 << 20, dtype=torch.uint8, device="cuda") for _ in range(2))
torch.cuda.synchronize()
print("ready", flush=True)
while True:
    for _ in range(200):
        b.copy_(a)
    torch.cuda.synchronize()
"""
CALL = "import sys; from meshwright.cli.main import main; sys.exit(main(['doctor', '--json', '--runs', sys.argv[1]]))"
SLOW_DISK = "import os, time; fsync = os.fsync; os.fsync = lambda fd: (time.sleep(0.5), fsync(fd))[1]; "
OLD_NCCL = (
    "from meshwright.train.measure import card; found = card.card_versions; "
    "card.card_versions = lambda: {**found(), 'nccl': '2.4.8', \"torch's nccl\": found().get(\"torch's nccl\", '2.30.4')}; "
)
SMI = """#!/bin/sh
# The answer of nvidia-smi with three memory errors in it.
"{real}" "$@" | awk -v q="$*" 'BEGIN {{ FS = OFS = ", "; at = 0; if (match(q, /--query-gpu=[^ ]*/)) {{
  n = split(substr(q, RSTART + 12, RLENGTH - 12), names, ",")
  for (i = 1; i <= n; i++) if (names[i] ~ /^ecc.errors.uncorrected/) at = i }} }}
  {{ if (at) $at = "3"; print }}'
"""


@dataclass(frozen=True)
class Called:
    """One call: what it was given, what should be found, what was found, and how long it took."""

    case: str
    wanted: str  # the check that should fail; "": none
    alarms: tuple[str, ...]  # check: what, measured, expected
    failed_checks: tuple[str, ...]
    wall_s: float
    product_flops_per_s: float | None
    copied_bytes_per_s: float | None

    @property
    def is_right(self) -> bool:
        """Whether the defect was found, or nothing where there is none, within a minute."""
        right = self.wanted in self.failed_checks if self.wanted else not self.alarms
        return right and self.wall_s <= LIMIT_S


def called(case: str, wanted: str, patch: str = "", path: str = "") -> Called:
    """Examine the card now, in a process of its own."""
    environment = {**os.environ, **({"PATH": path} if path else {})}
    with tempfile.TemporaryDirectory() as runs:
        started_s = time.monotonic()
        done = subprocess.run([sys.executable, "-c", patch + CALL, runs], capture_output=True, text=True, env=environment, timeout=300)
        wall_s = time.monotonic() - started_s
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{case}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout)
    wrong = [one for one in found["diagnoses"] if one["level"] != OK]
    reading = found["node_readings"][0]
    return Called(
        case=case,
        wanted=wanted,
        alarms=tuple(f"{one['level']} {one['check']}: {one['what']} ({one['measured_value']}; {one['expected_value']})" for one in wrong),
        failed_checks=tuple(one["check"] for one in wrong if one["level"] == "fail"),
        wall_s=wall_s,
        product_flops_per_s=reading["product_flops_per_s"],
        copied_bytes_per_s=reading["copied_bytes_per_s"],
    )


@contextmanager
def beside(program: str) -> Iterator[None]:
    """Another process on the card, once it has said that it is ready; ended afterwards."""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError("the process that should disturb the card did not start")
            yield
        finally:
            process.kill()


@contextmanager
def capped(megahertz: int) -> Iterator[None]:
    """The card with its clock locked."""
    subprocess.run(["nvidia-smi", f"--lock-gpu-clocks=0,{megahertz}"], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["nvidia-smi", "--reset-gpu-clocks"], check=True, capture_output=True)


@contextmanager
def with_errors() -> Iterator[str]:
    """A PATH on which nvidia-smi reports memory errors."""
    real = shutil.which("nvidia-smi")
    with tempfile.TemporaryDirectory() as folder:
        tool = Path(folder) / "nvidia-smi"
        tool.write_text(SMI.format(real=real))
        tool.chmod(0o755)
        yield f"{folder}:{os.environ['PATH']}"


def cases(cap_mhz: int | None) -> Iterator[Callable[[], Called]]:
    """Every call, in order."""

    def run(case: str, wanted: str, around: AbstractContextManager[object] | None = None, patch: str = "") -> Callable[[], Called]:
        def call() -> Called:
            with around or nullcontext() as value:
                return called(case, wanted, patch, value if isinstance(value, str) else "")

        return call

    for number in range(CLEAN):
        yield run(f"as it is, {number + 1}", "")
    yield run("memory already taken", "GPU memory", beside(HOLD))
    yield run("another process copies", "copy", beside(COPY))
    yield run("memory errors reported", "memory errors", with_errors())
    yield run("a slow disk", "disk", patch=SLOW_DISK)
    yield run("an old NCCL", "versions", patch=OLD_NCCL)
    if cap_mhz:
        yield run(f"clock locked at {cap_mhz} MHz", "GPU clock", capped(cap_mhz))
    yield run("as it is, at the end", "")


def main() -> int:
    """Run all cases; 1 where one went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cap-clock", type=int, metavar="MHZ", help="also lock the clock at so many MHz (needs an administrator)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the results as JSON")
    arguments = parser.parse_args()
    names = gpu_names()
    if len(names) != 1:
        print(f"this machine has {len(names)} GPUs that nvidia-smi finds, and this benchmark is for one: {NOTHING}")
        return 0
    print(names[0], flush=True)
    done: list[Called] = []
    for case in cases(arguments.cap_clock):
        one = case()
        done.append(one)
        rates = f"{(one.product_flops_per_s or 0) / 1e12:6.1f} TFLOP/s  {(one.copied_bytes_per_s or 0) / 1e12:5.2f} TB/s"
        print(f"{'right' if one.is_right else 'WRONG'}  {one.wall_s:5.1f} s  {rates}  {one.case}", flush=True)
        for alarm in one.alarms:
            print(f"         {alarm}", flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps({"gpu": names[0], "calls": [asdict(one) for one in done]}, indent=1) + "\n")
    return 0 if all(one.is_right for one in done) else 1


if __name__ == "__main__":
    sys.exit(main())

"""What `nvidia-smi` says about one GPU, and who uses it.

A field that a driver does not know makes it refuse the whole question. Then its fields are asked for one by one, those whose names have
changed under both names.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence

from meshwright.doctor.reading import Gpu
from meshwright.units import MEGA, MIB

ANSWER_S = 7.0  # that nvidia-smi may take: a second or two where the driver is well, more where it has to be loaded first
FIELDS = (
    "index",
    "name",
    "driver_version",
    "memory.total",
    "memory.used",
    "power.limit",
    "ecc.errors.uncorrected.volatile.total",
    "remapped_rows.pending",
    "remapped_rows.failure",
    "clocks.sm",
    "clocks.max.sm",
    "clocks_event_reasons.active",
)
OLDER = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}  # names in drivers before 535
# Why a clock is not higher, by NVML's bits (nvml.h, nvmlClocksEventReason*).
POWER_CAP = 0x4
HARDWARE = {0x8: "hardware slowdown", 0x20: "too hot (software limit)", 0x40: "too hot (hardware limit)", 0x80: "power brake"}

Ask = Callable[[Sequence[str]], str]  # arguments of nvidia-smi -> what it prints; OSError where it fails


class NoAnswerError(OSError):
    """nvidia-smi hangs: asking again would only take as long again."""


def nvidia_smi(arguments: Sequence[str]) -> str:
    """What `nvidia-smi` prints; OSError where there is none, or where it fails or hangs."""
    if shutil.which("nvidia-smi") is None:
        raise OSError("there is no nvidia-smi")
    try:
        return subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=ANSWER_S, check=True).stdout
    except subprocess.CalledProcessError as error:
        lines = (error.stdout or error.stderr or "").strip().splitlines()
        raise OSError(f"nvidia-smi fails: {lines[0] if lines else f'exit code {error.returncode}'}") from None
    except subprocess.TimeoutExpired:
        raise NoAnswerError(f"nvidia-smi did not answer within {ANSWER_S:.0f} s") from None


def gpu(device: str, ask: Ask = nvidia_smi) -> Gpu:
    """One GPU, by its index or UUID."""
    try:
        return gpu_of(_answer(device, FIELDS, ask))
    except NoAnswerError:
        raise
    except OSError:
        found: dict[str, str] = {}
        for field in FIELDS:
            found |= _one(device, field, ask)
        if not (found.get("index", "").isdigit() and "name" in found):
            raise
        return gpu_of(found)


def _one(device: str, field: str, ask: Ask) -> dict[str, str]:
    """One field under the first of its names that the driver knows; nothing where it knows none."""
    for name in (field, OLDER.get(field)):
        if name:
            try:
                return {field: _answer(device, (name,), ask)[name]}
            except NoAnswerError:
                raise
            except OSError:
                continue
    return {}


def _answer(device: str, fields: Sequence[str], ask: Ask) -> dict[str, str]:
    printed = ask([f"--id={device}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"])
    rows = [row for row in csv.reader(printed.splitlines(), skipinitialspace=True) if row]
    if len(rows) != 1 or len(rows[0]) != len(fields):
        raise OSError(f"nvidia-smi answers {printed.strip()[:80]!r}")
    return dict(zip(fields, (cell.strip() for cell in rows[0]), strict=True))


def gpu_of(fields: Mapping[str, str]) -> Gpu:
    """A GPU from the fields of an answer without units."""
    errors, slowdowns = _number(fields, "ecc.errors.uncorrected.volatile.total"), fields.get("clocks_event_reasons.active", "")
    return Gpu(
        index=int(fields["index"]),
        name=fields["name"],
        driver=fields.get("driver_version") or None,
        memory_bytes=_number(fields, "memory.total", MIB),
        used_bytes=_number(fields, "memory.used", MIB),
        power_limit_w=_number(fields, "power.limit"),
        ecc_uncorrected=None if errors is None else int(errors),
        rows_pending=_flag(fields, "remapped_rows.pending"),
        rows_failed=_flag(fields, "remapped_rows.failure"),
        clock_hz=_number(fields, "clocks.sm", MEGA),
        max_clock_hz=_number(fields, "clocks.max.sm", MEGA),
        slowdowns=int(slowdowns, 16) if slowdowns.lower().startswith("0x") else None,
    )


def _number(fields: Mapping[str, str], name: str, unit: float = 1.0) -> float | None:
    """The number in a field; None for `[N/A]`, `[Not Supported]`, `[Unknown Error]` and a field that is not there."""
    try:
        return float(fields.get(name, "")) * unit
    except ValueError:
        return None


def _flag(fields: Mapping[str, str], name: str) -> bool | None:
    """Yes or no in a field, which drivers write as a word or as a number."""
    text = fields.get(name, "").lower()
    return {"yes": True, "no": False}.get(text, int(text) > 0 if text.isdigit() else None)


def gpu_users(device: str, ask: Ask = nvidia_smi) -> tuple[str, ...]:
    """Processes that hold memory of a GPU, in words; those of other containers are not seen."""
    printed = ask([f"--id={device}", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits"])
    rows = [[cell.strip() for cell in row] for row in csv.reader(printed.splitlines(), skipinitialspace=True) if len(row) == 3]
    return tuple(f"{name} (process {pid}, {used} MiB)" if used.isdigit() else f"{name} (process {pid})" for pid, name, used in rows)


def slowdown_words(slowdowns: int) -> str:
    """The reasons among NVML's bits that no healthy card has under load."""
    return ", ".join(words for bit, words in HARDWARE.items() if slowdowns & bit)

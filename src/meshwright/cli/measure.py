"""Time this machine and write the times as a hardware profile."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.options import AsJson

if TYPE_CHECKING:
    from meshwright.describe.profile import Profile
    from meshwright.train.measure.machine import Asked

GPU_MODELS = ("llama-3.1-8b", "llama-3.2-3b", "llama-3.2-1b")
GPU_TOKENS = 8192
CPU_MODEL, CPU_TOKENS, CPU_SEQUENCES = "llama-2m", 128, 4  # those of the embedded default
CPU_PROCESSES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the options ask for; empty: what is usual on this kind of machine."""

    models: Sequence[str] = ()
    workload: str = ""
    recompute: str = "none"
    seq: int | None = None
    batch: int | None = None
    precisions: Sequence[str] = ()


def measure(
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="NAME|FILE",
            help="Model whose shapes are timed; default: the usual ones. May be given several times.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the profile to this file; default: the user's cache.", show_default=False)
    ] = None,
    workload: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="Time what this workload trains: its sequences, its precision, and its adapters beside a frozen base.",
            show_default=False,
        ),
    ] = "",
    recompute: Annotated[
        str, typer.Option(metavar="KIND", help="What the slices compute again: none, selective, mlp or full, as in a layout.")
    ] = "none",
    seq: Annotated[int | None, typer.Option(metavar="N", min=8, help="Length of a sequence in tokens.", show_default=False)] = None,
    batch: Annotated[int | None, typer.Option(metavar="N", min=1, help="Number of sequences in a micro-batch.", show_default=False)] = None,
    precisions: Annotated[
        list[str] | None,
        typer.Option(
            "--precision",
            metavar="NAME",
            help="Precision recipe (bf16, fp8, ...); default: those that the trainer runs here. May be given several times.",
            show_default=False,
        ),
    ] = None,
    processes: Annotated[
        int, typer.Option(metavar="N", min=1, max=64, help="Maximum number of processes that share the cores, without a GPU.")
    ] = CPU_PROCESSES,
    limit: Annotated[
        float,
        typer.Option(
            "--seconds", metavar="SECONDS", min=10.0, help="Time limit on a GPU in seconds; what is not done by then is left out."
        ),
    ] = 58.0,
    is_quick: Annotated[
        bool, typer.Option("--quick", help="Measure for a shorter time, without a GPU: about 20 s instead of a minute, and less exact.")
    ] = False,
    tiers_of: Annotated[
        str,
        typer.Option(
            "--cluster",
            metavar="LAB|FILE",
            help="Also time the tiers of a cluster between its hosts: a lab that is up, or a description whose ranks torchrun started.",
        ),
    ] = "",
    base: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --cluster: the profile of one machine to add to; default: measure it.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Time this machine's kernels, slices of the training step and collectives; write a hardware profile.

    With --cluster, collectives and messages between hosts are timed as well, over the backend that training uses.

    Examples:

      meshwright measure --model llama-3.1-8b --precision bf16 --out profile.json --json

      meshwright measure --cluster lab
    """
    started_s = time.perf_counter()  # before torch is imported: the import counts as well
    wanted = Wanted(models=models or (), workload=workload, recompute=recompute, seq=seq, batch=batch, precisions=precisions or ())
    if tiers_of or base:
        from meshwright.cli.measure_cluster import measure_cluster

        make = partial(_measured, wanted, limit_s=limit, started_s=started_s, is_quick=is_quick)
        measure_cluster(tiers_of, base, out, make, as_json=as_json)
        return
    from meshwright.cli.show import show
    from meshwright.describe.profile import usual_path
    from meshwright.say.measurement import measurement_document

    path = out or usual_path()
    check_place(path)
    profile = _measured(wanted, processes, limit_s=limit, started_s=started_s, is_quick=is_quick)
    write_profile(profile, path)
    show(measurement_document(profile, path, is_usual=out is None), as_json=as_json)


def _measured(wanted: Wanted, processes: int, *, limit_s: float, started_s: float, is_quick: bool) -> Profile:
    """The profile of this machine, measured now."""
    from meshwright.cli.train_run import torch_or_error
    from meshwright.train.measure.waiting import sees_gpu, waiting

    formats = wanted.precisions or (("bf16",) if wanted.workload else ("bf16", "fp8"))
    likely = len(wanted.models or GPU_MODELS) * len(formats) if sees_gpu() else 0
    with waiting(likely) as ready:  # these processes load torch while this process does
        torch_or_error()
        asked = _asked(wanted, processes)
        from meshwright.train.measure.machine import QUICK, THOROUGH, device_here
        from meshwright.train.measure.machine import measure as measured

        effort, report = QUICK if is_quick else THOROUGH, say_since(started_s)
        return measured(asked, device_here(), processes, report, limit_s=limit_s, started_s=started_s, ready=ready, effort=effort)


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile, and make its folder."""
    from meshwright.describe.profile import profile_text
    from meshwright.files import write_whole

    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, profile_text(profile))


def profile_cores(report: Callable[[str], None]) -> Profile:
    """A quick profile of this machine's cores for the embedded default, written where commands on this machine look for it."""
    import torch

    from meshwright.describe.load import load_model
    from meshwright.describe.profile import usual_path
    from meshwright.train.measure.machine import QUICK, asked_of, check_room
    from meshwright.train.measure.machine import measure as measured

    device = torch.device("cpu")
    asked = asked_of(load_model(CPU_MODEL), device, seq_len=CPU_TOKENS, micro_batch=CPU_SEQUENCES, packed=True)
    check_room(asked, device, CPU_PROCESSES)
    profile = measured([asked], device, CPU_PROCESSES, report, effort=QUICK)
    write_profile(profile, usual_path())
    return profile


def say_since(started_s: float) -> Callable[[str], None]:
    """Print what is being done, with the seconds since the start."""
    return lambda what: print(f"meshwright: {time.perf_counter() - started_s:4.0f} s  {what}", file=sys.stderr, flush=True)


def check_place(path: Path) -> None:
    """Raise an error before anything is timed if the file could not be written."""
    from meshwright.errors import InputError

    if path.is_dir():
        raise InputError("this is a folder", where=str(path), fix="name a file: --out profile.json")
    if path.suffix != ".json":
        raise InputError("a profile is a .json file", where=str(path), fix=f"use {path.name}.json")


def _asked(wanted: Wanted, processes: int) -> list[Asked]:
    """What to time: the models named, or the usual ones for this kind of machine, as the workload trains them if there is one."""
    from meshwright.describe.load import load_model, load_workload
    from meshwright.errors import InputError
    from meshwright.train.measure.machine import asked_of, check_room, device_here
    from meshwright.train.replica import NUMBERS

    device = device_here()
    is_gpu = device.type == "cuda"
    names = tuple(dict.fromkeys(wanted.models)) or (GPU_MODELS if is_gpu else (CPU_MODEL,))
    trained = load_workload(wanted.workload) if wanted.workload else None
    usual_tokens = trained.seq_len if trained else GPU_TOKENS if is_gpu else CPU_TOKENS
    precisions = tuple(wanted.precisions) or ((trained.precision,) if trained else ())
    if trained and not wanted.precisions and trained.precision not in NUMBERS:
        raise InputError(
            f"the trainer does not run in {trained.precision!r}",
            where=f"precision of the workload {wanted.workload}",
            fix=f"choose another one for the measurement: --precision NAME, of {', '.join(NUMBERS)}",
        )
    asked = [
        asked_of(
            load_model(name),
            device,
            seq_len=wanted.seq or usual_tokens,
            micro_batch=wanted.batch or (0 if is_gpu else CPU_SEQUENCES),
            precisions=precisions,
            packed=trained.packed if trained else not is_gpu,
            recompute=wanted.recompute,
            adapters=trained.adapters if trained else None,
        )
        for name in names
    ]
    for one in asked:
        check_room(one, device, processes)
    return asked

"""Time this machine and write what it does as a hardware profile."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.options import AsJson

if TYPE_CHECKING:
    from meshwright.describe.profile import Profile, Slice
    from meshwright.train.measure.machine import Asked

GPU_MODELS = ("llama-3.1-8b", "llama-3.2-3b", "llama-3.2-1b")
GPU_TOKENS = 8192
CPU_MODEL, CPU_TOKENS, CPU_SEQUENCES = "llama-2m", 128, 4  # the embedded default's
CPU_PROCESSES = 8


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
        float, typer.Option("--seconds", metavar="SECONDS", min=10.0, help="Time limit on a GPU in seconds; what is left is not timed.")
    ] = 58.0,
    as_json: AsJson = False,
) -> None:
    """Time this machine's kernels, slices of the training step and collectives; write a hardware profile.

    Examples:

      meshwright measure

      meshwright measure --model llama-3.1-8b --precision bf16 --out profile.json --json
    """
    started_s = time.perf_counter()  # before torch is imported: that counts as well
    from meshwright.cli.train_run import torch_or_error
    from meshwright.describe.profile import profile_text, usual_path
    from meshwright.train.measure.waiting import sees_gpu, waiting

    path = out or usual_path()
    _check_place(path)
    likely = len(models or GPU_MODELS) * len(precisions or ("bf16", "fp8")) if sees_gpu() else 0
    with waiting(likely) as ready:  # they load torch while this process does
        torch_or_error()
        asked = _asked(models or (), seq, batch, precisions or (), processes)
        from meshwright.files import write_whole
        from meshwright.train.measure.machine import device_here
        from meshwright.train.measure.machine import measure as measured

        profile = measured(asked, device_here(), processes, _say_since(started_s), limit_s=limit, started_s=started_s, ready=ready)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, profile_text(profile))
    if as_json:
        print(profile_text(profile), end="")
    else:
        _show(profile, path, is_usual=out is None)


def _say_since(started_s: float) -> Callable[[str], None]:
    """Tell what goes on, and when, from the start on."""
    return lambda what: print(f"meshwright: {time.perf_counter() - started_s:4.0f} s  {what}", file=sys.stderr, flush=True)


def _check_place(path: Path) -> None:
    """Raise before anything is timed where the file could not be written."""
    from meshwright.errors import InputError

    if path.is_dir():
        raise InputError("this is a folder", where=str(path), fix="name a file: --out profile.json")
    if path.suffix != ".json":
        raise InputError("a profile is a .json file", where=str(path), fix=f"use {path.name}.json")


def _asked(models: Sequence[str], seq: int | None, batch: int | None, precisions: Sequence[str], processes: int) -> list[Asked]:
    """What to time: the models named, or the usual ones of this kind of machine."""
    from meshwright.describe.load import load_model
    from meshwright.train.measure.machine import asked_of, check_room, device_here

    device = device_here()
    is_gpu = device.type == "cuda"
    names = tuple(dict.fromkeys(models)) or (GPU_MODELS if is_gpu else (CPU_MODEL,))
    tokens = seq or (GPU_TOKENS if is_gpu else CPU_TOKENS)
    size = batch or (0 if is_gpu else CPU_SEQUENCES)
    asked = [
        asked_of(load_model(name), device, seq_len=tokens, micro_batch=size, precisions=tuple(precisions), packed=not is_gpu)
        for name in names
    ]
    for one in asked:
        check_room(one, device, processes)
    return asked


def _show(profile: Profile, path: Path, *, is_usual: bool) -> None:
    from meshwright.cli.show import show_pairs, show_table, show_text
    from meshwright.units import seconds, si

    rates = {"copy": profile.copy_bytes_per_s, "norm": profile.norm_bytes_per_s, "optimizer": profile.optimizer_bytes_per_s}
    pairs = [("measured in", seconds(profile.measured_s)), ("a kernel of no work", seconds(profile.launch_s))]
    if profile.device_type == "cuda":
        by = dict.fromkeys(each.kernel or "torch's own kernels" for each in profile.attentions)
        pairs.append(("attention by", ", ".join(by)))
    show_pairs(profile.words, [*pairs, *((name, si(rate, "B/s")) for name, rate in rates.items())])
    show_table("products", ("format", "rows>", "slowest>", "fastest>"), _product_rows(profile))
    columns = ("model", "precision", "batch>", "ranks>", "layer>", "ends>", "update>", "kept a layer>")
    show_table("slices of the training step", columns, [_slice_row(s) for s in (*profile.slices, *profile.shared_slices)])
    if profile.collectives:
        rows = [(c.kind, c.num_ranks, si(c.payload_bytes, "B"), seconds(c.seconds)) for c in profile.collectives]
        show_table("collectives", ("kind", "processes>", "payload>", "seconds>"), rows)
    for what in profile.left_out:
        show_text(f"left out: {what}")
    use = "predict, plan and train use it on this machine by default" if is_usual else f"use it with --profile {path}"
    show_text(f"written to {path}; {use}")


def _slice_row(cut: Slice) -> tuple[object, ...]:
    from meshwright.units import seconds, si

    ranks = f"tp={cut.tp}" if cut.tp > 1 else f"pp={cut.pp}" if cut.pp > 1 else "1"
    kept = si(cut.layer_saved_bytes, "B") if cut.layer_saved_bytes else "not counted"
    times = map(seconds, (cut.layer_s, cut.ends_s, cut.updates_s[1]))
    return (cut.model, cut.precision, f"{cut.micro_batch} x {cut.seq_len:,}", ranks, *times, kept)


def _product_rows(profile: Profile) -> list[tuple[object, ...]]:
    from meshwright.units import si

    found: dict[tuple[str, int], list[float]] = {}
    for p in profile.products:
        found.setdefault((p.number_format, p.rows), []).append(2.0 * p.rows * p.columns * p.inner / p.seconds)
    return [(name, f"{rows:,}", si(min(rates), "FLOP/s"), si(max(rates), "FLOP/s")) for (name, rows), rates in sorted(found.items())]

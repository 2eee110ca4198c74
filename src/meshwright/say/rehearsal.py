"""What the rehearsal of one rank says: each measured value beside the predicted one, and the forecast with what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.describe.this_machine import catalogue_name
from meshwright.errors import InputError
from meshwright.predict.footprint import StageMemory, reserve_for
from meshwright.predict.forecast import Forecast
from meshwright.predict.rehearsed import ChunkTime, Rehearsal, predicted_chunks, predicted_memory, rehearsed_forecast
from meshwright.record.entries import PART_NAMES, PARTS
from meshwright.say.document import Block, Document, Note, Pairs, Table
from meshwright.say.forecast import forecast_values, layout_values
from meshwright.units import gib, seconds, si

MEMORY_NAMES = {"optimizer": "optimizer states", "working": "loss and buffers"}
Beside = tuple[str, float, float]  # part, predicted, measured


def rehearsal_document(plan: str, forecast: Forecast, found: Rehearsal, planned_for: str = "") -> Document:
    """The rehearsal of one rank of the plan called `plan`, beside a forecast for the trainer; `planned_for` is the plan's own software."""
    renewed = rehearsed_forecast(forecast, [found])
    title = f"rank {found.rank:,} of {forecast.layout.num_ranks:,} (stage {found.stage}) of {plan}"
    blocks = tuple(_blocks(title, forecast, renewed, found, planned_for))
    return Document(kind="rehearsal", title=title, blocks=blocks, values=_values(plan, forecast, renewed, found))


def _blocks(title: str, forecast: Forecast, renewed: Forecast, found: Rehearsal, planned_for: str) -> Iterator[Block]:
    yield Pairs(title, tuple(_facts(forecast, found)))
    chunks = predicted_chunks(forecast, found.stage)
    columns = ("chunk", "layers>", "forward predicted>", "rehearsed>", "off>", "backward predicted>", "rehearsed>", "off>")
    rows = tuple(_chunk_row(one, other) for one, other in zip(chunks, found.chunks, strict=True))
    yield Table("compute of one micro-batch, without communication", columns, rows)
    beside = ("part", "predicted>", "rehearsed>", "off>")
    yield Table("a step of this rank, without communication", beside, tuple(_row(one, seconds) for one in _times(forecast, found)))
    sizes = ((MEMORY_NAMES.get(part, part), said, seen) for part, said, seen in _bytes(_stage(forecast, found), found))
    yield Table("memory at the peak", beside, tuple(_row(one, size) for one in sizes))
    yield Table("forecast of the whole plan", ("", "by the model>", "rehearsed>", "off>"), tuple(_outlook(forecast, renewed)))
    if planned_for and planned_for != forecast.job.software.name:
        yield Note(f"the plan is for {planned_for}; what is predicted here is for {forecast.job.software.name}, the trainer that ran")
    yield from map(Note, _notes(forecast, found))


def _facts(forecast: Forecast, found: Rehearsal) -> Iterator[tuple[str, str, str]]:
    place = ", ".join(f"{axis} {index}" for axis, index in forecast.layout.coordinate(found.rank).items())
    yield "layout", forecast.layout.degrees, f"the rank is at {place}"
    yield "run on", found.device, f"torch {found.torch}, {found.date}"
    count = f"{found.num_steps} step{'' if found.num_steps == 1 else 's'} of {found.num_micro_batches} micro-batches"
    yield "timed", count, "medians; one step more came first, and one in which memory was counted"
    yield "this rank's step", seconds(found.step_s), f"without stand-ins for communication, which took {seconds(found.stand_in_s)} more"
    if found.first_step_s is not None:
        yield "its first step", seconds(found.first_step_s), "with all that is compiled and chosen in it"
    if found.idle_s is not None:
        yield "idle between kernels", seconds(found.idle_s), "of a step, while a profiler ran: at most this"
    yield "fullest in", found.memory.peak_at, f"predicted: {_stage(forecast, found).peak_at}"


def _stage(forecast: Forecast, found: Rehearsal) -> StageMemory:
    return next(stage for stage in forecast.memory if stage.stage == found.stage)


def _chunk_row(said: ChunkTime, seen: ChunkTime) -> tuple[str, ...]:
    ways = ((said.forward_s, seen.forward_s), (said.backward_s, seen.backward_s))
    return str(seen.chunk), str(seen.num_layers), *(text for pair in ways for text in (*map(seconds, pair), _off(*pair)))


def _times(forecast: Forecast, found: Rehearsal) -> Iterator[Beside]:
    said = found.num_micro_batches * sum(chunk.both_s for chunk in predicted_chunks(forecast, found.stage))
    yield "compute", said, found.compute_s
    yield "end of the step", float(forecast.detail.end_s.ravel()[0]), found.end_s
    yield "optimizer", forecast.parts["optimizer"], found.optimizer_s


def _bytes(stage: StageMemory, found: Rehearsal) -> Iterator[Beside]:
    said = predicted_memory(stage)
    for part, seen in found.memory.parts.items():
        yield part, said[part], seen
    yield "peak", stage.peak_bytes, found.memory.peak_bytes


def _row(beside: Beside, form: Any) -> tuple[str, ...]:
    name, said, seen = beside
    return name, form(said), form(seen), _off(said, seen)


def size(num_bytes: float) -> str:
    """Bytes in GiB, or in a smaller unit where there are few."""
    return gib(num_bytes) if num_bytes >= 2**30 else si(num_bytes, "B")


def off_pct(said: float, seen: float) -> float | None:
    """The measured value against the predicted one, in per cent; None where nothing is predicted."""
    return 100 * (seen / said - 1) if said > 0 else None


def _off(said: float, seen: float) -> str:
    off = off_pct(said, seen)
    return "" if off is None else f"{off:+.1f} %"


def _outlook(forecast: Forecast, renewed: Forecast) -> Iterator[tuple[str, ...]]:
    yield "step time", seconds(forecast.step_s), seconds(renewed.step_s), _off(forecast.step_s, renewed.step_s)
    for part in PARTS:
        pair = forecast.parts[part], renewed.parts[part]
        if any(pair):
            yield f"  {PART_NAMES[part]}", *map(seconds, pair), _off(*pair)
    pair = forecast.tokens_per_s, renewed.tokens_per_s
    yield "tokens/s", *(si(value, "") for value in pair), _off(*pair)
    yield "MFU", f"{100 * forecast.mfu:.1f} %", f"{100 * renewed.mfu:.1f} %", _off(forecast.mfu, renewed.mfu)
    if forecast.time_to_train and renewed.time_to_train:
        pair = forecast.time_to_train.value, renewed.time_to_train.value
        yield "time to train", *map(seconds, pair), _off(*pair)


def _notes(forecast: Forecast, found: Rehearsal) -> Iterator[str]:
    chip = forecast.job.cluster.accelerator
    yield "communication is predicted, not measured: every collective and message was a local copy of the same shape"
    yield "weights, tokens and messages are made up: the loss and the gradients of a rehearsal mean nothing"
    others = forecast.layout.pp - 1
    if others:
        yield f"stages that were not rehearsed ({others}) are taken to be off by as much as stage {found.stage}"
    if not _is_planned_device(chip.name, chip.architecture, found):
        yield f"the plan is for {chip.name} and the rehearsal ran on {found.device}: sizes hold for both, times for the latter only"
    if found.crowd > 1:
        often = f"{found.crowd:g}"
        yield f"the plan's ranks share cores, {often} threads to a core; this one had a core for itself, so its seconds count {often} times"
    room = chip.room_bytes - reserve_for(chip)
    spare = room - found.memory.peak_bytes
    fits = f"leaves {size(spare)} free" if spare >= 0 else f"does not fit: {size(-spare)} too much"
    yield f"on {chip.name}, with {size(room)} beside the reserve, the measured peak {fits}"
    if found.device_type == "cpu":
        yield "on a processor there are no kernels to wait between, and memory is that of tensors, without the interpreter"


def _is_planned_device(name: str, architecture: str, found: Rehearsal) -> bool:
    """Whether the device that ran is the one that the plan is for."""
    if found.device_type == "cpu":
        return architecture == "cpu"
    try:
        return catalogue_name(found.device) == name
    except InputError:  # a GPU that the catalogue does not have
        return False


def _values(plan: str, forecast: Forecast, renewed: Forecast, found: Rehearsal) -> dict[str, Any]:
    job = forecast.job
    said = predicted_chunks(forecast, found.stage)
    return {
        "plan": plan,
        "model": job.model.name,
        "cluster": job.cluster.name,
        "accelerator": job.cluster.accelerator.name,
        "num_accelerators": job.num_accelerators,
        "workload": job.workload.name,
        "precision": job.workload.precision,
        "layout": layout_values(forecast.layout),
        "rehearsed_rank": found.rank,
        "stage": found.stage,
        "rehearsed_on": found.device,
        "torch_version": found.torch,
        "date": found.date,
        "num_rehearsed_steps": found.num_steps,
        "num_micro_batches": found.num_micro_batches,
        "rehearsed_chunks": [
            {
                "chunk": seen.chunk,
                "layers": seen.num_layers,
                "predicted_forward_s": one.forward_s,
                "rehearsed_forward_s": seen.forward_s,
                "predicted_backward_s": one.backward_s,
                "rehearsed_backward_s": seen.backward_s,
            }
            for one, seen in zip(said, found.chunks, strict=True)
        ],
        "rehearsed_parts": [
            {"part": part, "predicted_part_s": one, "rehearsed_part_s": seen, "off_pct": off_pct(one, seen)}
            for part, one, seen in _times(forecast, found)
        ],
        "rehearsed_memory": [
            {"part": part, "predicted_part_bytes": one, "rehearsed_part_bytes": seen, "off_pct": off_pct(one, seen)}
            for part, one, seen in _bytes(_stage(forecast, found), found)
        ],
        "peak_at": found.memory.peak_at,
        "stand_in_s": found.stand_in_s,
        "kernel_idle_s": found.idle_s,
        "first_step_s": found.first_step_s,
        "predicted_step_s": forecast.step_s,
        "predicted_parts_s": dict(forecast.parts),
        "rehearsed_forecast": forecast_values(renewed),
        "notes": list(_notes(forecast, found)),
    }

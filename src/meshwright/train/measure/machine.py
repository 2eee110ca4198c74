"""Measures a machine: a GPU in this process, processors in as many processes as will share the cores."""

from __future__ import annotations

import datetime
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from pydantic import TypeAdapter

from meshwright.describe.model import Model
from meshwright.describe.profile import AttentionTime, CollectiveTime, GroupedTime, MadeTime, ProductTime, Profile, Slice
from meshwright.describe.this_machine import num_cores, processor_name
from meshwright.describe.workload import Adapters
from meshwright.errors import InputError, MeshwrightError
from meshwright.predict.layer_work import layers_alike
from meshwright.train.launch import EXIT_INTERRUPTED, Place, run_ranks
from meshwright.train.measure import kernels
from meshwright.train.measure.clock import release, share_cores
from meshwright.train.measure.exchanges import collectives_s
from meshwright.train.measure.slices import Cut, alone, number_format, slice_of
from meshwright.train.measure.waiting import Waiting
from meshwright.train.measure.workers import SliceError, Worker, compiled, workers
from meshwright.train.replica import NUMBERS
from meshwright.units import gib

Report = Callable[[str], None]

LARGEST = 8.1e9  # parameters of a model that is measured with one sequence; smaller models get proportionally more sequences
MOST_SEQUENCES = 8
KEPT_BYTES = 16  # per parameter, with fp32 states and gradients: if that does not fit, states are bf16
ROOM = 0.7  # share of a GPU's memory that states may use
Entry = TypeVar("Entry", ProductTime, GroupedTime, MadeTime, AttentionTime, Slice)
SLICE_BYTES = 20  # per parameter on a processor: value, gradient, two moments, and one in reserve
PROCESS_BYTES = 5e8  # memory of an interpreter with torch
CPU_LAYERS = (2, 4)
CPU_SHARING = 2  # ranks that compute a slice together
LIMIT_S = 58.0  # for everything on a GPU
SLICE_S = 6.0  # to time one slice there: compiling must leave time for half of them
STALLED_S = 120.0  # if a rank waits this long for the others, they have failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to time each kind of work. A longer time averages over more disturbances by other programs."""

    kernel_s: float  # for one set of products, or one shape of attention
    bytes_s: float = 0.08  # for one kernel that moves bytes
    rounds: int = 5  # rounds of steps of a slice on processors
    calls: int = 12  # calls of a collective between processes
    small_batch: bool = True  # whether slices on processors are also timed with a quarter of the batch


ON_GPU = Effort(kernel_s=0.2)
THOROUGH = Effort(kernel_s=0.6)
QUICK = Effort(kernel_s=0.1, bytes_s=0.02, rounds=2, calls=4, small_batch=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One model to be measured: the number of sequences, their length in tokens, and the precisions; how slices of it are trained."""

    model: Model
    micro_batch: int
    seq_len: int
    precisions: tuple[str, ...]
    packed: bool = False
    recompute: str = "none"
    adapters: Adapters | None = None  # beside a frozen base; None: all weights are trained

    @property
    def alike(self) -> Model:
        """The model whose layers are cut into slices."""
        return layers_alike(self.model)

    def cut(self, precision: str, micro_batch: int = 0) -> Cut:
        """The slice in one of the precisions, of another number of sequences if one is given."""
        return Cut(
            model=self.model,
            precision=precision,
            micro_batch=micro_batch or self.micro_batch,
            seq_len=self.seq_len,
            packed=self.packed,
            recompute=self.recompute,
            adapters=self.adapters,
        )


@dataclass(slots=True)
class Found:
    """What has been timed so far."""

    launch_s: float = 0.0
    rates: dict[str, float] = field(default_factory=dict)
    products: list[ProductTime] = field(default_factory=list)
    grouped: list[GroupedTime] = field(default_factory=list)
    made: list[MadeTime] = field(default_factory=list)
    attentions: list[AttentionTime] = field(default_factory=list)
    slices: list[Slice] = field(default_factory=list)
    shared_slices: list[Slice] = field(default_factory=list)
    collectives: list[CollectiveTime] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def device_here() -> torch.device:
    """The first GPU, or the processor."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def asked_of(
    model: Model,
    device: torch.device,
    *,
    seq_len: int,
    micro_batch: int = 0,
    precisions: Sequence[str] = (),
    packed: bool = False,
    recompute: str = "none",
    adapters: Adapters | None = None,
) -> Asked:
    """What to time for a model: sequences that have about the activations of one of an 8B model, in bf16 and fp8 (fp32 on a processor).

    States are bf16 if the GPU's memory is too small for fp32. Experts are timed in fp8 only if that is asked for.
    """
    unknown = [name for name in precisions if name not in NUMBERS]
    if unknown:
        raise InputError(f"the trainer does not run in {unknown[0]!r}", where="--precision", fix=f"choose from {', '.join(NUMBERS)}")
    size = micro_batch or min(2 ** max(int(LARGEST / model.num_parameters).bit_length() - 1, 0), MOST_SEQUENCES)
    chosen = tuple(precisions) or _usual_precisions(model, device, adapters)
    asked = Asked(model=model, micro_batch=size, seq_len=seq_len, precisions=chosen, packed=packed, recompute=recompute, adapters=adapters)
    refused = [precision for precision in chosen if asked.cut(precision).refusal]
    if refused and (precisions or len(refused) == len(chosen)):
        asked.cut(refused[0]).check()
    return replace(asked, precisions=tuple(precision for precision in chosen if precision not in refused))


def _usual_precisions(model: Model, device: torch.device, adapters: Adapters | None = None) -> tuple[str, ...]:
    if device.type != "cuda":
        return ("fp32",)
    room = ROOM * torch.cuda.get_device_properties(device).total_memory
    state = torch.bfloat16 if KEPT_BYTES * model.num_parameters > room and adapters is None else torch.float32
    formats = ("bf16", "fp8") if adapters is None and model.experts is None and kernels.has_fp8(device) else ("bf16",)
    found = []
    for wanted in formats:
        able = [name for name, numbers in NUMBERS.items() if number_format(name) == wanted]
        found += sorted(able, key=lambda name: NUMBERS[name].state != state)[:1]
    return tuple(found)


def check_room(asked: Asked, device: torch.device, num_processes: int) -> None:
    """Raise an error if slices of a model would not fit into memory; it says what they need, and what there is."""
    if device.type == "cuda":
        return
    from meshwright.describe.this_machine import memory_bytes

    each = SLICE_BYTES * sum(asked.alike.cut_to(count).num_parameters for count in CPU_LAYERS) + PROCESS_BYTES
    if each * num_processes > memory_bytes():
        raise InputError(
            f"slices of {asked.model.name} in {num_processes} processes need {gib(each * num_processes)} "
            f"of this machine's {gib(memory_bytes())}",
            where="--model",
            fix="measure a smaller model, or fewer processes (--processes)",
        )


def measure(
    asked: Sequence[Asked],
    device: torch.device,
    num_processes: int,
    report: Report,
    *,
    limit_s: float = LIMIT_S,
    started_s: float | None = None,
    ready: list[Waiting] | None = None,
    effort: Effort = THOROUGH,
) -> Profile:
    """The profile of the machine; on a GPU, slices that are not done `limit_s` after `started_s` are left out, and the profile says so.

    Slices are timed by the processes that are `ready` already, and by new ones if those are too few. `effort` is for processors.
    """
    started_s = time.perf_counter() if started_s is None else started_s
    is_gpu = device.type == "cuda"
    while ready and not is_gpu:  # processes that are still loading would disturb the times on the cores
        ready.pop().end()
    found = _on_gpu(asked, device, report, started_s + limit_s, ready) if is_gpu else _on_cores(asked, num_processes, report, effort)
    rates = found.rates
    return Profile(
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else f"{processor_name()}, {num_cores()} cores",
        device_type=device.type,
        torch=torch.__version__,
        num_processes=1 if device.type == "cuda" else num_processes,
        num_cores=0 if device.type == "cuda" else num_cores(),
        measured_s=time.perf_counter() - started_s,
        launch_s=found.launch_s,
        copy_bytes_per_s=rates["copy"],
        norm_bytes_per_s=rates["norm"],
        activation_bytes_per_s=rates["activation"],
        loss_bytes_per_s=rates["loss"],
        optimizer_bytes_per_s=rates["optimizer"],
        products=tuple(found.products),
        grouped=tuple(found.grouped),
        made=tuple(found.made),
        attentions=tuple(found.attentions),
        slices=tuple(found.slices),
        shared_slices=tuple(found.shared_slices),
        collectives=tuple(found.collectives),
        left_out=tuple(found.left_out),
    )


def _on_gpu(asked: Sequence[Asked], device: torch.device, report: Report, until_s: float, ready: list[Waiting] | None) -> Found:
    """Kernels first, which also warms the chip, while processes compile for slices; then slices.

    The kernel of attention is compiled before anything is timed: of the processes that need it, one compiles it and the others wait.
    """
    with workers(_cuts(asked), device, ready) as started:
        report("choosing the kernel of attention")
        for one in asked:
            for dtype in {NUMBERS[precision].compute for precision in one.precisions}:
                kernels.prepare_attention(one.model, one.seq_len, dtype, device, packed=one.packed)
        found = _kernels(asked, device, report, ON_GPU)
        release(device)
        _slices(started, found, report, until_s)
    return found


def _cuts(asked: Sequence[Asked]) -> list[Cut]:
    """Slices of every model in every precision, the first precision of all models first."""
    most = max(len(one.precisions) for one in asked)
    return [one.cut(one.precisions[i]) for i in range(most) for one in asked if i < len(one.precisions)]


def _kernels(asked: Sequence[Asked], device: torch.device, report: Report, effort: Effort) -> Found:
    """Times of single kernels with all shapes that are asked for."""
    found, budget_s = Found(), effort.kernel_s
    report("timing launches, copies, norms, activations, loss and optimizer")
    found.launch_s = kernels.launch_s(device)
    first = asked[0]
    found.rates = kernels.bytes_per_s(device, "bf16" if device.type == "cuda" else "fp32", first.model.hidden, effort.bytes_s)
    for one in asked:
        formats = sorted({number_format(precision) for precision in one.precisions})
        for name in formats:
            report(f"timing products of {one.model.name} in {name}")
            for rows in _rows(one, device):
                found.products += kernels.products_s(one.model, rows, name, device, budget_s)
                found.grouped += kernels.grouped_products_s(one.model, rows, name, device, budget_s)
            if one.adapters:
                found.made += kernels.made_s(one.model, one.adapters.base, name, device, budget_s / 2)
        report(f"timing attention of {one.model.name}")
        for batch, seq_len in _sequences(one, device):
            name = "fp32" if formats == ["fp32"] else "bf16"
            found.attentions.append(kernels.attention_s(one.model, batch, seq_len, name, device, budget_s / 2, packed=one.packed))
            release(device)
    return found


def _rows(one: Asked, device: torch.device) -> tuple[int, ...]:
    """Numbers of rows in products: that of the batch, half and twice of it; on processors those of the two slices."""
    batches = (one.micro_batch / 2, one.micro_batch, 2 * one.micro_batch) if device.type == "cuda" else _cpu_batches(one)
    return tuple(int(size * one.seq_len) for size in batches if size * one.seq_len >= 1)


def _sequences(one: Asked, device: torch.device) -> tuple[tuple[int, int], ...]:
    """(sequences, tokens) of attention: the batch, twice the batch, and shorter sequences; on processors those of the two slices."""
    batch, seq_len = one.micro_batch, one.seq_len
    if device.type != "cuda":
        return tuple((size, seq_len) for size in _cpu_batches(one))
    wanted = ((batch, seq_len), (2 * batch, seq_len), (batch, seq_len // 2), (2 * batch, seq_len // 2), (4 * batch, seq_len // 4))
    return tuple((count, length) for count, length in wanted if length > 0)


def _cpu_batches(one: Asked) -> tuple[int, ...]:
    """Sequences at once on processors, where even an empty call takes long: the batch, and a quarter of it."""
    return tuple(sorted({max(one.micro_batch // 4, 1), one.micro_batch}))


def _slices(started: Sequence[Worker], found: Found, report: Report, until_s: float) -> None:
    """Slices one by one, after all are compiled; a slice that fails, or for which no time is left, is left out and reported."""
    report(f"compiling for {len(started)} slices at once")
    failed = compiled(started, until_s - SLICE_S * ((len(started) + 1) // 2), report)
    num_left = len(started) - len(failed)
    for worker in started:
        try:
            if worker in failed:
                raise failed[worker]
            report(f"timing slices of {worker.cut.words}")
            share_s = max(until_s - time.perf_counter(), 0.0) / num_left
            num_left -= 1
            found.slices.append(worker.slice(until_s, share_s))
        except SliceError as error:
            found.left_out.append(f"slices of {worker.cut.words}: {error.what}")
            worker.end()


def _on_cores(asked: Sequence[Asked], num_processes: int, report: Report, effort: Effort) -> Found:
    """The same, and collectives, in processes that all work at once; the results are means over the processes."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # otherwise gloo looks up the name of the host, which fails on many laptops
    with tempfile.TemporaryDirectory(prefix="meshwright-measure-") as folder:
        code = run_ranks(num_processes, lambda place: _rank(place, asked, Path(folder), report, effort))
        files = [Path(folder) / f"{rank}.json" for rank in range(num_processes)]
        if code not in (0, EXIT_INTERRUPTED):
            raise MeshwrightError(f"measuring failed with status {code}", where="the processes that measure")
        if code or not all(path.exists() for path in files):
            raise KeyboardInterrupt
        return _mean([_read(path) for path in files])


def _rank(place: Place, asked: Sequence[Asked], folder: Path, report: Report, effort: Effort) -> None:
    """The work of one process; when it is asked to stop, it exits at once."""
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    torch.set_num_threads(max(num_cores() // place.num_ranks, 1))
    share_cores(place.num_ranks, num_cores())
    device = torch.device("cpu")
    report_on_rank_0 = report if place.rank == 0 else (lambda what: None)
    _meet(place, "kernels")
    found = _kernels(asked, device, report_on_rank_0, effort)
    undo = alone(device)
    for one in asked:
        for precision in one.precisions:
            for micro_batch in _cpu_batches(one) if effort.small_batch else (one.micro_batch,):
                cut = one.cut(precision, micro_batch)
                report_on_rank_0(f"timing slices of {cut.words}")
                _meet(place, cut.words)
                found.slices.append(slice_of(cut, device, layers=CPU_LAYERS, rounds=effort.rounds))
    undo()
    _shared_slices(place, asked, device, found, report_on_rank_0, effort)
    if place.num_ranks > 1:
        timeout = datetime.timedelta(seconds=STALLED_S)
        dist.init_process_group("gloo", store=place.store, rank=place.rank, world_size=place.num_ranks, timeout=timeout)
        found.collectives = collectives_s(place.num_ranks, effort.calls, report_on_rank_0)
        dist.destroy_process_group()
    (folder / f"{place.rank}.json").write_text(json.dumps(asdict(found)))


def _shared_slices(
    place: Place, asked: Sequence[Asked], device: torch.device, found: Found, report_on_rank_0: Report, effort: Effort
) -> None:
    """Slices that neighbouring ranks compute together, all groups at once: they show what exchanges within a layer and between stages cost.

    All weights are trained there, and nothing is computed again. Slices with stages have no tied embeddings, because their gradients are
    summed once a step, not once a micro-batch.
    """
    if place.num_ranks % CPU_SHARING:
        if place.num_ranks > 1:
            found.left_out.append(f"slices of {CPU_SHARING} ranks: {place.num_ranks} processes do not make groups of {CPU_SHARING}")
        return
    group, rank = divmod(place.rank, CPU_SHARING)
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore(f"measure/shared/{group}", place.store),
        rank=rank,
        world_size=CPU_SHARING,
        timeout=datetime.timedelta(seconds=STALLED_S),
    )
    for plain in dict.fromkeys(replace(cut, adapters=None, recompute="none") for cut in _cuts(asked)):
        untied = replace(plain.model, tied_embeddings=False)
        for cut in (replace(plain, tp=CPU_SHARING), replace(plain, model=untied, pp=CPU_SHARING)):
            if refusal := cut.refusal:
                found.left_out.append(f"slices of {cut.words}: {refusal}")
                continue
            report_on_rank_0(f"timing slices of {cut.words}")
            _meet(place, cut.words)
            found.shared_slices.append(slice_of(cut, device, layers=CPU_LAYERS, rounds=effort.rounds))
    dist.destroy_process_group()


def _meet(place: Place, what: str) -> None:
    """Wait until all processes are ready, so that they work at the same time."""
    if place.store.add(f"measure/{what}", 1) == place.num_ranks:
        place.store.set(f"measure/{what}/all", "yes")
    place.store.wait([f"measure/{what}/all"], datetime.timedelta(seconds=STALLED_S))


def _read(path: Path) -> Found:
    found: Found = TypeAdapter(Found).validate_json(path.read_bytes())
    return found


def _mean(everyones: Sequence[Found]) -> Found:
    """The results of the processes, averaged entry by entry."""
    first = everyones[0]
    mean = Found(launch_s=fmean(one.launch_s for one in everyones), left_out=first.left_out)
    mean.rates = {name: fmean(one.rates[name] for one in everyones) for name in first.rates}
    mean.collectives = first.collectives  # already a mean
    mean.products = [_averaged([one.products[i] for one in everyones], "seconds") for i in range(len(first.products))]
    mean.grouped = [_averaged([one.grouped[i] for one in everyones], "seconds") for i in range(len(first.grouped))]
    mean.made = [_averaged([one.made[i] for one in everyones], "seconds") for i in range(len(first.made))]
    mean.attentions = [_averaged([one.attentions[i] for one in everyones], "forward_s", "backward_s") for i in range(len(first.attentions))]
    names = ("steps_s", "layer_s", "ends_s", "updates_s")
    mean.slices = [_averaged([one.slices[i] for one in everyones], *names) for i in range(len(first.slices))]
    mean.shared_slices = [_averaged([one.shared_slices[i] for one in everyones], *names) for i in range(len(first.shared_slices))]
    return mean


def _averaged(entries: Sequence[Entry], *names: str) -> Entry:
    """The first entry, with the mean over all entries in the fields `names`."""
    means: dict[str, Any] = {}  # of numbers, or of tuples of numbers
    for name in names:
        values = [getattr(entry, name) for entry in entries]
        means[name] = tuple(map(fmean, zip(*values, strict=True))) if isinstance(values[0], tuple) else fmean(values)
    return replace(entries[0], **means)

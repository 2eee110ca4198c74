"""What the ranks of `benchmarks/nccl.py` run."""

from __future__ import annotations

import contextlib
import gc
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from parity import Steps, run_steps

from meshwright.describe.model import Model
from meshwright.describe.workload import Workload
from meshwright.layout import Layout
from meshwright.record.profile import profile_of
from meshwright.train.rehearse.boundaries import Boundaries
from meshwright.train.rehearse.rank import Part, counted, stand_of
from meshwright.train.rehearse.stand_in import Ledger, stand_in_world


def plain_steps(model: Model, workload: Workload, layout: Layout, num_steps: int) -> Steps:
    """Steps with layers as they are written: compiling takes longer than such a small run, and is tried elsewhere."""
    torch.compiler.set_stance("force_eager")
    return run_steps(model, workload, layout, num_steps)


def full_steps(model: Model, workload: Workload, layout: Layout, num_steps: int) -> tuple[Steps, dict[str, Any]]:
    """Steps as a run takes them, with compiled layers and FlashAttention where a layout has them; and which of the two it had."""
    torch.compiler.set_stance("default")
    torch._dynamo.reset()  # each case has a model of its own, and recompiling is limited
    with _counted() as used:
        found = run_steps(model, workload, layout, num_steps)
    gc.collect()
    return found, used


@contextlib.contextmanager
def _counted() -> Iterator[dict[str, Any]]:
    """Whether layers were compiled and attention was FlashAttention's, of the replicas made inside."""
    from meshwright.train import replica
    from meshwright.train.model.compiled import compiles

    used: dict[str, Any] = {}
    make = replica.Replica.__init__

    def noted(self: replica.Replica, model: Model, workload: Workload, mesh: Any, *others: Any) -> None:
        make(self, model, workload, mesh, *others)
        used.update(compiled=compiles(mesh.layout, mesh.device), attention=self.attention)

    replica.Replica.__init__ = noted  # type: ignore[method-assign]
    try:
        yield used
    finally:
        replica.Replica.__init__ = make  # type: ignore[method-assign]


def facts() -> dict[str, str]:
    """The NCCL library that a rank has loaded, and its GPU."""
    from meshwright.train.shared_gpu import loaded_nccl

    version = loaded_nccl()
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU"
    return {"nccl": ".".join(map(str, version)) if version else "none", "device": device, "torch": torch.__version__}


def cost_of_groups(num_groups: int = 4) -> dict[str, Any]:
    """Memory and seconds that each further communicator of all ranks takes on this rank, used once."""
    import time

    import torch.distributed as dist

    is_gpu = torch.cuda.is_available() and dist.get_backend() == "nccl"
    device = torch.device("cuda", 0) if is_gpu else torch.device("cpu")
    everyone = list(range(dist.get_world_size()))
    made, seconds, bytes_taken = [], [], []
    for _ in range(num_groups):
        dist.barrier()
        free = torch.cuda.mem_get_info()[0] if is_gpu else 0
        started_s = time.monotonic()
        made.append(dist.split_group(split_ranks=[everyone]) if is_gpu else dist.new_group(everyone))
        dist.all_reduce(torch.ones(1024, device=device), group=made[-1])
        if is_gpu:
            torch.cuda.synchronize()
        seconds.append(time.monotonic() - started_s)
        dist.barrier()
        bytes_taken.append((free - torch.cuda.mem_get_info()[0]) / len(everyone) if is_gpu else 0.0)  # all ranks share the card
        dist.barrier()
    for group in made:
        dist.destroy_process_group(group)
    return {
        "each_s": [round(value, 3) for value in seconds],
        "each_mib": [round(value / 2**20, 1) for value in bytes_taken],
        "faults": [],
    }


WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpy", "cudaEventSynchronize")


def steady_step(model: Model, workload: Workload, layout: Layout, traces: Path | None = None, num_steps: int = 3) -> dict[str, Any]:
    """What the host waits for in steps that follow one another, and how much of the exchanges runs behind compute, under the profiler.

    As in a run, the result of a step is read when the next one has been launched; so the host may wait for an event of the step before,
    with the device busy meanwhile, and for nothing else. Rank 0 leaves its trace in the folder `traces`.
    """
    import torch.distributed as dist
    from parity import batch_of, replica_of
    from torch.profiler import ProfilerActivity, profile

    torch.compiler.set_stance("force_eager")
    with replica_of(model, workload, layout) as (replica, mesh):
        batches = [batch_of(step, model, workload, mesh) for step in range(num_steps + 3)]
        late = None
        for batch in batches[:3]:
            late = replica.step(batch, 1e-3)
        late.result()
        dist.barrier()
        torch.cuda.synchronize()
        asked = _store_calls()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled, asked as calls:
            late = None
            for batch in batches[3:]:
                sums = replica.step(batch, 1e-3)
                if late is not None:
                    late.result()
                late = sums
            num_calls = len(calls)
        late.result()
        torch.cuda.synchronize()
    events = list(profiled.events())
    last_launch = max(event.time_range.start for event in events if event.name.startswith("cudaLaunch"))
    in_steps = [event.name for event in events if event.time_range.start < last_launch]  # the profiler itself waits at its end
    waits = {name: in_steps.count(name) for name in WAITS}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json.gz"
        profiled.export_chrome_trace(str(path))
        (process,) = profile_of((path,)).processes
        if traces is not None and dist.get_rank() == 0:
            shutil.copy(path, traces / f"{layout}.json.gz".replace(",", "-").replace("=", ""))
    return {
        "waits": {name: count for name, count in waits.items() if count},
        "store_calls": num_calls,
        "exchange_ms": round(process.communication_s * 1e3, 2),
        "compute_ms": round(process.compute_s * 1e3, 2),
        "hidden": round((process.overlap_pct or 0.0) / 100, 3),
        "faults": [f"{count} x {name}" for name, count in waits.items() if count and name != "cudaEventSynchronize"]
        + ([f"{num_calls} calls of the store"] if num_calls else []),
    }


@dataclass(frozen=True)
class Ran:
    """What a rank launched in a step, and the memory of another step."""

    kernels: Counter[str]  # without those of NCCL and of plain copies
    products: Counter[str]  # operators that multiply or attend, with their shapes
    peak_bytes: int
    parts_bytes: dict[str, int]
    num_stand_ins: int = 0  # exchanges of the step that were done by local copies


def rank_among_others(part: Part) -> Ran:
    """A step of the trainer on a rank whose others exist."""
    import torch.distributed as dist

    return _ran(replace(part, rank=dist.get_rank()))


def rank_alone(part: Part) -> Ran:
    """The same step on stand-ins, in a process that has no group."""
    with stand_in_world(part.rank, part.layout.num_ranks, torch.device("cuda", 0)) as ledger:
        return _ran(part, ledger)


def _ran(part: Part, ledger: Ledger | None = None) -> Ran:
    from torch.profiler import ProfilerActivity, profile

    gc.collect()  # what a case before left in this process
    torch._dynamo.reset()
    torch.compiler.set_stance("default")
    marks = Boundaries()
    stand = stand_of(part, torch.device("cuda", 0), marks)
    for _ in range(2):  # the first compiles and chooses
        stand.step()
    memory = counted(stand, None)
    torch.cuda.synchronize()
    if ledger:
        ledger.sent.clear()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as profiled:
        stand.step()
        torch.cuda.synchronize()
    num_stand_ins = sum(ledger.sent.values()) if ledger else 0
    kernels: Counter[str] = Counter()
    products: Counter[str] = Counter()
    for event in profiled.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            kernels[event.name] += not event.name.startswith(("nccl", "Memcpy", "Memset"))
        elif re.search(r"::(mm|addmm|bmm|_scaled_mm|_scaled_dot\w+attention\w*)$", event.name):
            products[f"{event.name} {event.input_shapes}"] += 1
    stand.replica.ready()
    stand.mesh.close()
    return Ran(+kernels, +products, memory.peak_bytes, memory.parts, num_stand_ins)


@contextlib.contextmanager
def _store_calls() -> Iterator[list[str]]:
    """Names of the store's functions that are called inside by Python: object collectives and rendezvous use them."""
    import torch.distributed as dist

    kept, calls = {}, []
    for name in ("get", "set", "wait", "add", "check"):
        kept[name] = getattr(dist.Store, name)

        def noted(*args: Any, _name: str = name, **kwargs: Any) -> Any:
            calls.append(_name)
            return kept[_name](*args, **kwargs)

        setattr(dist.Store, name, noted)
    try:
        yield calls
    finally:
        for name, function in kept.items():
            setattr(dist.Store, name, function)

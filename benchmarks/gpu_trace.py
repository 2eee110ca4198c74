"""A small real profile of one GPU with compute and NCCL kernels on several streams: `python benchmarks/gpu_trace.py trace.json.gz`.

Five rounds, each with communication behind matrix products, communication alone, and a copy. What is measured on the trace:

    meshwright report trace.json.gz          and          HolisticTraceAnalysis on the same file

One rank moves nothing in an all-reduce, so NCCL launches no kernel for it. A rank may send to itself, though, and an all-to-all does:
that gives `ncclDevKernel_SendRecv`. Where this NCCL takes a copy for that too, a kernel of ours named `ncclDevKernel_StandIn`, compiled by
torch at run time, takes its place on a stream of its own; the last line printed says which it was.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

ROUNDS = 5
SIZE = 4096  # of the matrices
NUM_ELEMENTS = 32 << 20  # of what is sent: 128 MiB
NCCL_KERNEL = re.compile(r"nccl\w*Kernel")  # annotations of torch are named nccl:all_to_all
STAND_IN = """
extern "C" __global__ void ncclDevKernel_StandIn(float* out, const float* in, int count) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) out[i] = in[i] + 1.0f;
}
"""

Send = Callable[[Tensor, Tensor], Callable[[], object]]  # starts a transfer; what comes back waits for it


def main(path: Path) -> None:
    """Write the trace, and print what is in it."""
    started_s = time.monotonic()
    torch.cuda.set_device(0)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1, device_id=torch.device("cuda", 0))
        try:
            name, send = chosen()
            recorded = record(send)
        finally:
            dist.destroy_process_group()
    recorded.export_chrome_trace(str(path))
    for (kernel, stream), count in sorted(kernels(recorded).items(), key=lambda item: -item[1]):
        print(f"{count:5d} x {kernel[:90]} on {stream}")
    print(f"torch {torch.__version__}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}, {torch.cuda.get_device_name()}")
    print(f"{path}: {path.stat().st_size:,} bytes, {time.monotonic() - started_s:.1f} s; communication by {name}")


def chosen() -> tuple[str, Send]:
    """The first way of sending that launches a kernel named nccl*."""
    tried: list[tuple[str, Send]] = [("all_to_all_single", equal_split), ("all_to_all", list_split), ("a stand-in kernel", stand_in())]
    for name, send in tried:
        out, data = torch.empty(1 << 20, device="cuda"), torch.ones(1 << 20, device="cuda")
        try:
            send(out, data)()  # NCCL connects on the first call, outside the profile
            with profile(activities=[ProfilerActivity.CUDA]) as seen:
                send(out, data)()
                torch.cuda.synchronize()
        except RuntimeError as error:
            print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        if any(NCCL_KERNEL.match(kernel) for kernel, _ in kernels(seen)):
            return name, send
        print(f"{name}: no kernel named nccl*", file=sys.stderr)
    raise SystemExit("no way of sending gave a kernel named nccl*")


def equal_split(out: Tensor, data: Tensor) -> Callable[[], object]:
    """Send all to oneself, on the stream that NCCL keeps for that."""
    work = dist.all_to_all_single(out, data, async_op=True)
    assert work is not None
    return work.wait


def list_split(out: Tensor, data: Tensor) -> Callable[[], object]:
    """The same through the collective that takes lists, which sends piece by piece."""
    work = dist.all_to_all([out], [data], async_op=True)
    assert work is not None
    return work.wait


def stand_in() -> Send:
    """A kernel of NCCL's name on a stream of its own."""
    stream = torch.cuda.Stream()
    kernels_of: list[Callable[..., object]] = []

    def send(out: Tensor, data: Tensor) -> Callable[[], object]:
        if not kernels_of:
            kernels_of.append(torch.cuda._compile_kernel(STAND_IN, "ncclDevKernel_StandIn"))
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            kernels_of[0](grid=(16, 1, 1), block=(512, 1, 1), args=[out, data, data.numel()])
        return lambda: torch.cuda.current_stream().wait_stream(stream)

    return send


def record(send: Send) -> profile:
    """The profile of the rounds."""
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out, data = torch.empty(NUM_ELEMENTS, device="cuda"), torch.ones(NUM_ELEMENTS, device="cuda")
    host = torch.empty(1 << 20).pin_memory()
    one_round(send, a, b, out, data, host)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        for _ in range(ROUNDS):
            one_round(send, a, b, out, data, host)
        torch.cuda.synchronize()
    return recorded


def one_round(send: Send, a: Tensor, b: Tensor, out: Tensor, data: Tensor, host: Tensor) -> None:
    """Communication behind products, then alone, then a copy to the host."""
    wait = send(out, data)
    for _ in range(4):
        torch.relu_(a @ b)
    wait()
    send(out, data)()
    host.copy_(out[: host.numel()], non_blocking=True)


def kernels(seen: profile) -> Counter[tuple[str, str]]:
    """Kernels of a profile by name and device."""
    found: Counter[tuple[str, str]] = Counter()
    for event in seen.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            found[event.name, f"device {event.device_index}"] += 1
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2 or not torch.cuda.is_available():
        raise SystemExit("usage, on a machine with a GPU: python benchmarks/gpu_trace.py trace.json.gz")
    main(Path(sys.argv[1]))

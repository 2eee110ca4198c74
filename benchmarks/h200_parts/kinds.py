"""What a step's time goes to, by kind of work, from the trace of one step.

A kernel's kind comes from its name, and where the name does not show it, from what the trainer was doing when it launched it. Names that
nothing here knows are listed with their time: nothing is put where it looks best. Launch gaps are the times between a step's first kernel
and its last in which the device had nothing to do. Shares are of the traced step: at a power cap it need not last as long as another one.
"""

from __future__ import annotations

import functools
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

KINDS = ("GEMM", "attention", "norms and elementwise", "fp8 scales and casts", "loss", "optimizer", "copies", "other", "launch gaps")
MARK = "h200 "  # begins the name of our annotations
STEPS_BETWEEN = 4  # a profiler's first start takes a second, in which a card cools: it is started once for nothing, and these steps follow

# In this order: products are products wherever they stand. What inductor fuses is named after all it came from, attention among it.
FUSED = r"^triton_(poi|red|per)_"
BY_NAME = (
    ("attention", r"sdpa|fmha|flash|attention|_attn"),
    (
        "GEMM",
        r"^triton_(tem|mm)|^_(product|weight_gradient)|grouped_mm|nvjet|gemm|cutlass|cublas|xmma|splitk|scaled_mm|gemv|::mm\b|::addmm|::linear|::matmul|::bmm",
    ),
)
BY_ANNOTATION = (("optimizer", r"h200 optimizer|^Optimizer\.step"), ("loss", r"h200 loss"))
BY_NAME_THEN = (
    ("loss", r"^_score|log_?softmax|logsumexp|nll_loss|cross_entropy|softmax"),
    ("optimizer", r"adam|multi_tensor_apply|lpnorm|foreach|^_?square|^update"),
    ("fp8 scales and casts", r"^_round|fp8|float8|e4m3|e5m2|amax|clamp|quant"),
    ("copies", r"^memcpy|^memset|nccl"),
    (
        "norms and elementwise",
        r"triton_|elementwise|vectorized|reduce|embedding|index|catarray|norm|silu|rsqrt|copy|fill|aten::|distribution"
        r"|^_(gate|heads)_back|compute_grad_weight|sum_and_scatter|radix_sort|unique_by_key"  # ours; the rest: gradient of embeddings
        r"|^_gate|^_(count|scan|place|copy_rows|sum_rows|sum_groups|highest)|sort|scan|gather|scatter|fill_indices|histogram",  # experts
    ),
)

Span = tuple[float, float]  # start and end, seconds


def annotated(function: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """The function, marked in traces."""
    import torch

    @functools.wraps(function)
    def marked(*arguments: Any, **named: Any) -> Any:
        with torch.profiler.record_function(MARK + kind):
            return function(*arguments, **named)

    return marked


@contextmanager
def traced(path: Path, device_type: str) -> Iterator[None]:
    """Write down what runs inside."""
    profiler = start_trace(device_type)
    yield
    stop_trace(profiler, path, device_type)


def start_trace(device_type: str) -> torch.profiler.profile:
    """A profiler that is running."""
    import torch

    activities = [torch.profiler.ProfilerActivity.CPU]
    if device_type == "cuda":
        torch.cuda.synchronize()
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    profiler = torch.profiler.profile(activities=activities)
    profiler.start()
    return profiler


def stop_trace(profiler: torch.profiler.profile, path: Path, device_type: str) -> None:
    """End a trace and write its file."""
    if device_type == "cuda":
        import torch

        torch.cuda.synchronize()
    profiler.stop()
    profiler.export_chrome_trace(str(path))


def shares_of(path: Path, step_s: float, device_type: str) -> dict[str, Any]:
    """Seconds of a step by kind, and the kernels that nothing here knows; `step_s`: what steps take without the profiler."""
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("ph") == "X"]
    wanted = {"kernel", "gpu_memcpy", "gpu_memset"} if device_type == "cuda" else {"cpu_op"}
    kernels = [(event["name"], _span(event)) for event in events if event.get("cat") in wanted]
    return summed(kernels, _annotations(events, device_type), step_s)


def summed(kernels: Sequence[tuple[str, Span]], annotations: dict[str, list[Span]], step_s: float) -> dict[str, Any]:
    """Seconds by kind: each moment in which a kernel ran is counted once, for the kernel that began first."""
    by_kind, by_name = dict.fromkeys(KINDS, 0.0), defaultdict[tuple[str, str], list[float]](list)
    until_s = 0.0
    for name, (start_s, end_s) in sorted(kernels, key=lambda kernel: kernel[1]):
        kind = kind_of(name, start_s, annotations)
        alone_s = max(end_s - max(start_s, until_s), 0.0)
        until_s = max(until_s, end_s)
        by_kind[kind] += alone_s
        by_name[kind, name].append(alone_s)
    busy_s = sum(by_kind.values())
    traced_s = until_s - min((start_s for _, (start_s, _) in kernels), default=until_s)
    by_kind["launch gaps"] = traced_s - busy_s
    largest = sorted(((sum(times), len(times), kind, name[:120]) for (kind, name), times in by_name.items()), reverse=True)
    return {
        "step_s": step_s,
        "traced_s": traced_s,
        "busy_s": busy_s,
        "by_kind_s": by_kind,
        "largest": largest[:40],
        "unknown": [row for row in largest if row[2] == "other"],
    }


def kind_of(name: str, start_s: float, annotations: dict[str, list[Span]]) -> str:
    """The kind of a kernel that began at `start_s`."""
    lower = name.lower()
    for kind, pattern in () if re.match(FUSED, lower) else BY_NAME:
        if re.search(pattern, lower):
            return kind
    for kind, spans in annotations.items():
        if any(start <= start_s <= end for start, end in spans):
            return kind
    return next((kind for kind, pattern in BY_NAME_THEN if re.search(pattern, lower)), "other")


def _annotations(events: Sequence[dict[str, Any]], device_type: str) -> dict[str, list[Span]]:
    """When the device worked on what is marked, by kind."""
    category = "gpu_user_annotation" if device_type == "cuda" else "user_annotation"
    found: dict[str, list[Span]] = {}
    for kind, pattern in BY_ANNOTATION:
        found[kind] = [_span(event) for event in events if event.get("cat") == category and re.search(pattern, event["name"])]
    return found


def _span(event: dict[str, Any]) -> Span:
    start_s = float(event["ts"]) / 1e6
    return start_s, start_s + float(event["dur"]) / 1e6

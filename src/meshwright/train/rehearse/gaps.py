"""Time in which a GPU waits for the host between kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch._C._autograd import DeviceType


def idle_in_step_s(step: Callable[[], None]) -> float:
    """Seconds between the first kernel of a step and the last in which none ran. The profiler slows the host a little: an upper bound."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        step()
        torch.cuda.synchronize()
    events = profile.profiler.kineto_results.events()
    on_device = [event for event in events if event.device_type() == DeviceType.CUDA and not event.is_user_annotation()]
    return idle_s((event.start_ns() / 1e9, (event.start_ns() + event.duration_ns()) / 1e9) for event in on_device)


def idle_s(kernels: Iterable[tuple[float, float]]) -> float:
    """Seconds between the first start and the last end that no interval covers."""
    idle, reached = 0.0, None
    for start, end in sorted(kernels):
        if reached is not None and start > reached:
            idle += start - reached
        reached = end if reached is None else max(reached, end)
    return idle

"""SIGTERM as a wish to stop that all ranks grant at the same step."""

from __future__ import annotations

import signal
import threading
import time

import torch
import torch.distributed as dist


class StopSignal:
    """Whether someone asked this rank to stop, and since when."""

    def __init__(self) -> None:
        self.asked_s: float | None = None
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, number: int, frame: object) -> None:
        if self.asked_s is None:
            self.asked_s = time.monotonic()

    def agreed(self, device: torch.device) -> bool:
        """Whether any rank was asked; all ranks must call it, and all get the same answer."""
        asked = torch.tensor(float(self.asked_s is not None), device=device)
        dist.all_reduce(asked, op=dist.ReduceOp.MAX)
        return bool(asked.item())

    def left_s(self, grace_s: float) -> float:
        """Seconds of the grace time that are left."""
        return grace_s if self.asked_s is None else max(grace_s - (time.monotonic() - self.asked_s), 1.0)

"""Times, peaks and energy of steps, taken in the same way for every trainer."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from h200_parts.child import say
from h200_parts.energy import meter_for


class Recorder:
    """What each step took. A step's peak is read before anything resets it, and every step's begins anew."""

    def __init__(self, device_type: str, num_warmup: int, num_tokens: int) -> None:
        self.is_gpu = device_type == "cuda"
        self.num_warmup, self.num_tokens = num_warmup, num_tokens
        self.steps_s: list[float] = []
        self.peaks_bytes: list[int] = []
        self.losses: list[float | None] = []  # None: not read yet
        self.meter = meter_for(device_type)
        self._energy_j: list[float | None] = []  # at the end of the warm-up and of every step after it
        self._marks_s: list[float] = []
        self._last_s = 0.0

    def start(self) -> None:
        """A step begins."""
        if self.is_gpu:
            torch.cuda.reset_peak_memory_stats()
        self._last_s = time.perf_counter()

    def done(self, loss: float | None) -> None:
        """The step is over, once the device is; None: its loss is read later."""
        if self.is_gpu:
            torch.cuda.synchronize()
        now_s = time.perf_counter()
        self.steps_s.append(now_s - self._last_s)
        self.peaks_bytes.append(torch.cuda.max_memory_allocated() if self.is_gpu else 0)
        self.losses.append(loss)
        number = len(self.steps_s)
        if number >= self.num_warmup:
            self._energy_j.append(self.meter.read_j() if self.meter else None)
            self._marks_s.append(now_s)
        words = "" if loss is None else f"loss {loss:.4f}, "
        say(f"step {number}: {self.steps_s[-1]:.4f} s, {words}peak {self.peaks_bytes[-1] / 2**30:.2f} GiB")

    def result(self) -> dict[str, Any]:
        """All figures after the warm-up."""
        timed = self.steps_s[self.num_warmup :]
        mean_s = statistics.mean(timed)  # not the median: a card at its power cap may run at one of two speeds for some steps each
        return {
            "mean_s": mean_s,
            "tokens_per_s": self.num_tokens / mean_s,
            "cv": statistics.pstdev(timed) / statistics.mean(timed),
            "peak_bytes": max(self.peaks_bytes[self.num_warmup :]),
            "peak_with_warmup_bytes": max(self.peaks_bytes),
            "reserved_bytes": torch.cuda.max_memory_reserved() if self.is_gpu else 0,
            "num_timed": len(timed),
            "steps_s": timed,
            "first_loss": self.losses[0],
            "last_loss": self.losses[-1],
            **self._energy(len(timed)),
        }

    def _energy(self, num_steps: int) -> dict[str, Any]:
        if self.meter is None or not self._energy_j or self._energy_j[0] is None or self._energy_j[-1] is None:
            return {"joules_per_token": None, "no_energy_because": self.meter.why if self.meter else "no GPU"}
        used_j, took_s = self._energy_j[-1] - self._energy_j[0], self._marks_s[-1] - self._marks_s[0]
        return {"joules_per_token": used_j / (num_steps * self.num_tokens), "mean_power_w": used_j / took_s}

"""A copy of one rank's state in host memory, laid out as its shard will be, and reused from save to save."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from meshwright.train.checkpoint.shard import ShardLayout


class Snapshot:
    """One stretch of host memory. With CUDA it is pinned, so that the copy runs at the link's speed while the host goes on.

    Ordinary memory is registered with the driver: torch's own pinned memory is handed out in powers of two, up to twice what is needed.
    """

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._pinned = False
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None

    def reserve(self, layout: ShardLayout) -> None:
        """Have memory for this layout, its pages in place."""
        if self._memory.numel() < layout.data_bytes:
            self.release()
            self._memory = torch.empty(layout.data_bytes, dtype=torch.uint8).zero_()
        if not self._pinned and layout.data_bytes and any(piece.tensor.is_cuda for piece in layout.pieces):
            self._pinned = int(torch.cuda.cudart().cudaHostRegister(self._memory.data_ptr(), self._memory.numel(), 0)) == 0

    def take(self, layout: ShardLayout) -> None:
        """Copy the pieces. From CUDA this only queues the copies: later kernels of the same stream run after them."""
        self.reserve(layout)
        device = next((piece.tensor.device for piece in layout.pieces if piece.tensor.is_cuda), None)
        self._events = None
        if device is None:
            self._copy(layout)
            return
        with torch.cuda.device(device):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            self._copy(layout)
            end.record()
        self._events = begin, end

    @torch.no_grad()
    def _copy(self, layout: ShardLayout) -> None:
        for piece, offset in zip(layout.pieces, layout.offsets_bytes, strict=True):
            room = self._memory[offset : offset + piece.tensor.nbytes].view(piece.tensor.dtype)
            room.view(piece.tensor.shape).copy_(piece.tensor, non_blocking=True)

    def wait(self) -> None:
        """Return once the copy is complete."""
        if self._events:
            self._events[1].synchronize()

    def copy_s(self) -> float:
        """Seconds the device took for the copy, once it is complete; 0 where there was none."""
        return self._events[0].elapsed_time(self._events[1]) / 1e3 if self._events else 0.0

    def data(self, layout: ShardLayout) -> Iterator[memoryview]:
        """The copied bytes, in the order of the shard."""
        yield self._memory.numpy().data[: layout.data_bytes]

    def release(self) -> None:
        """Give the memory back."""
        if self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self._memory.data_ptr())
            self._pinned = False
        self._memory = torch.empty(0, dtype=torch.uint8)

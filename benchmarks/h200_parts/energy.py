"""Energy that a GPU has taken, by NVML's own counter."""

from __future__ import annotations

import ctypes


class EnergyMeter:
    """Joules of one GPU since its driver was loaded. Where NVML is missing or has no such counter, there are none, and `why` says so."""

    def __init__(self, uuid: str) -> None:
        self.why = ""
        self._library: ctypes.CDLL | None = None
        self._device = ctypes.c_void_p()
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            self.why = "NVML is not there"
            return
        if library.nvmlInit_v2():
            self.why = "NVML does not start"
        elif self._find(library, uuid):
            self.why = f"NVML knows no GPU {uuid}"
        else:
            self._library = library

    def _find(self, library: ctypes.CDLL, uuid: str) -> int:
        """Look the GPU up by its name; where the only one goes by another, take that. 0: found."""
        here = ctypes.byref(self._device)
        count = ctypes.c_uint()
        if not library.nvmlDeviceGetHandleByUUID(uuid.encode(), here):
            return 0
        library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        return int(library.nvmlDeviceGetHandleByIndex_v2(0, here)) if count.value == 1 else 1

    def read_j(self) -> float | None:
        """The counter now, in joules; it moves on several times a second."""
        if self._library is None:
            return None
        value_mj = ctypes.c_ulonglong()
        if self._library.nvmlDeviceGetTotalEnergyConsumption(self._device, ctypes.byref(value_mj)):
            self.why = "this GPU has no energy counter"
            return None
        return value_mj.value / 1e3


def meter_for(device_type: str) -> EnergyMeter | None:
    """The meter of the GPU in use; None on a processor."""
    if device_type != "cuda":
        return None
    import torch

    return EnergyMeter(f"GPU-{torch.cuda.get_device_properties(0).uuid}")

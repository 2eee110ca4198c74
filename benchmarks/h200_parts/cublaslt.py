"""cuBLASLt by its C interface: the library that torch has loaded, asked for all algorithms of a product instead of the first.

Products are of row-major tensors. The library thinks in columns, so it is given the factors in the other order and finds the result where
rows are expected. Names, numbers and structures are those of cublasLt.h (CUDA 12 and 13).
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

MAPS = Path("/proc/self/maps")
WORKSPACE_BYTES = 32 << 20  # what NVIDIA advises for Hopper
ALIGNMENT = 256  # of addresses, that the algorithms may count on
MAX_ALGORITHMS = 16

CUDA_R_32F, CUDA_R_16BF, CUBLAS_COMPUTE_32F = 0, 14, 68
MATMUL_DESC_TRANSA, MATMUL_DESC_TRANSB = 3, 4
PREFERENCE_MAX_WORKSPACE_BYTES = 1
ALGO_CONFIG_SPLITK_NUM = 2


class CublasLtError(RuntimeError):
    """The library refused a call."""


class Algorithm(ctypes.Structure):
    """How a product is computed."""

    _fields_ = (("data", c_uint64 * 8),)


class _Found(ctypes.Structure):
    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace_bytes", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


class Form(NamedTuple):
    """A product of bf16 factors as the library sees it: sides, and how each matrix lies in memory."""

    rows: int
    inner: int
    columns: int
    left_is_turned: bool  # columns on end, as in a transposed view
    left_step: int  # elements from one row, or column, to the next
    right_is_turned: bool
    right_step: int
    out_step: int

    @classmethod
    def of(cls, left: Tensor, right: Tensor, out: Tensor) -> Form | None:
        """The form of `out = left @ right`; None where the library cannot read or write it as it lies."""
        lies = [_lie(x) for x in (left, right, out)]
        aligned = all(x.data_ptr() % ALIGNMENT == 0 and x.dtype == torch.bfloat16 for x in (left, right, out))
        if not aligned or None in lies or lies[2][0]:  # type: ignore[index]
            return None
        (left_is_turned, left_step), (right_is_turned, right_step), (_, out_step) = lies  # type: ignore[misc]
        return cls(*left.shape, right.shape[1], left_is_turned, left_step, right_is_turned, right_step, out_step)


def _lie(x: Tensor) -> tuple[bool, int] | None:
    """Whether a matrix lies column by column, and how far these, or its rows, are apart; None where elements of neither are neighbours."""
    if x.stride(1) == 1 and x.stride(0) >= x.shape[1]:
        return False, x.stride(0)
    return (True, x.stride(1)) if x.stride(0) == 1 and x.stride(1) >= x.shape[0] else None


class Product:
    """Products of one form on the current device."""

    def __init__(self, form: Form) -> None:
        library = _library()
        assert library is not None, "callers ask is_there first"
        self.library, self.form = library, form
        self._descriptor = c_void_p()
        _check(library.cublasLtMatmulDescCreate(byref(self._descriptor), CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product")
        for attribute, is_turned in ((MATMUL_DESC_TRANSA, form.right_is_turned), (MATMUL_DESC_TRANSB, form.left_is_turned)):
            value = c_int32(is_turned)
            _check(library.cublasLtMatmulDescSetAttribute(self._descriptor, attribute, byref(value), 4), "describing a product")
        self._right = self._matrix(form.columns, form.inner, form.right_is_turned, form.right_step)
        self._left = self._matrix(form.inner, form.rows, form.left_is_turned, form.left_step)
        self._out = self._matrix(form.columns, form.rows, False, form.out_step)
        self._handle, self._workspace = _handle(torch.cuda.current_device())

    def algorithms(self) -> list[Algorithm]:
        """What the library's own rule names, best first by that rule; only such as add up along the inner side in one go."""
        library, preference = self.library, c_void_p()
        _check(library.cublasLtMatmulPreferenceCreate(byref(preference)), "asking for algorithms")
        try:
            most = c_uint64(WORKSPACE_BYTES)
            _check(
                library.cublasLtMatmulPreferenceSetAttribute(preference, PREFERENCE_MAX_WORKSPACE_BYTES, byref(most), 8),
                "asking for algorithms",
            )
            found, num_found = (_Found * MAX_ALGORITHMS)(), c_int()
            status = library.cublasLtMatmulAlgoGetHeuristic(
                self._handle, self._descriptor, self._right, self._left, self._out, self._out,
                preference, MAX_ALGORITHMS, found, byref(num_found),
            )  # fmt: skip
            _check(status, "asking for algorithms")
        finally:
            library.cublasLtMatmulPreferenceDestroy(preference)
        return [one.algorithm for one in found[: num_found.value] if one.state == 0 and self._num_splits(one.algorithm) <= 1]

    def run(self, algorithm: Algorithm, left: Tensor, right: Tensor, out: Tensor) -> None:
        """`out = left @ right`."""
        status = self.library.cublasLtMatmul(
            self._handle, self._descriptor, byref(_ONE), right.data_ptr(), self._right, left.data_ptr(), self._left,
            byref(_ZERO), out.data_ptr(), self._out, out.data_ptr(), self._out,
            byref(algorithm), self._workspace.data_ptr(), WORKSPACE_BYTES, torch.cuda.current_stream().cuda_stream,
        )  # fmt: skip
        _check(status, "a product")

    def _matrix(self, rows: int, columns: int, is_turned: bool, step: int) -> c_void_p:
        """A matrix of columns, or, where it lies turned, of rows."""
        made = c_void_p()
        sides = (columns, rows) if is_turned else (rows, columns)
        _check(self.library.cublasLtMatrixLayoutCreate(byref(made), CUDA_R_16BF, *sides, step), "describing a matrix")
        return made

    def _num_splits(self, algorithm: Algorithm) -> int:
        """Into how many sums the inner side is split; a split sum is rounded differently."""
        found, written = c_uint32(0), c_size_t()
        status = self.library.cublasLtMatmulAlgoConfigGetAttribute(
            byref(algorithm), ALGO_CONFIG_SPLITK_NUM, byref(found), 4, byref(written)
        )
        return found.value if status == 0 else 2


_ONE, _ZERO = c_float(1.0), c_float(0.0)


def is_there() -> bool:
    """Whether products can go to the library."""
    return torch.cuda.is_available() and torch.version.hip is None and _library() is not None


def _check(status: int, what: str) -> None:
    if status:
        raise CublasLtError(f"cuBLASLt gave status {status} for {what}")


@cache
def _handle(device: int) -> tuple[c_void_p, Tensor]:
    """The library's handle on a device, and memory for its algorithms; work on one stream at a time is all that may use it."""
    library, handle = _library(), c_void_p()
    assert library is not None
    _check(library.cublasLtCreate(byref(handle)), "a handle")
    return handle, torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=torch.device("cuda", device))


@cache
def _library() -> ctypes.CDLL | None:
    """The library that torch has loaded, with its calls' signatures."""
    try:
        paths = [line.split(maxsplit=5)[-1].strip() for line in MAPS.read_text().splitlines() if "libcublasLt.so" in line]
        library = ctypes.CDLL(paths[0])
    except (OSError, IndexError):
        return None
    pointer, some = c_void_p, POINTER(c_void_p)
    signatures = {
        "cublasLtCreate": (some,),
        "cublasLtMatmulDescCreate": (some, c_int, c_int),
        "cublasLtMatmulDescSetAttribute": (pointer, c_int, pointer, c_size_t),
        "cublasLtMatrixLayoutCreate": (some, c_int, c_uint64, c_uint64, c_int64),
        "cublasLtMatmulPreferenceCreate": (some,),
        "cublasLtMatmulPreferenceDestroy": (pointer,),
        "cublasLtMatmulPreferenceSetAttribute": (pointer, c_int, pointer, c_size_t),
        "cublasLtMatmulAlgoGetHeuristic": (*[pointer] * 7, c_int, pointer, pointer),
        "cublasLtMatmulAlgoConfigGetAttribute": (pointer, c_int, pointer, c_size_t, pointer),
        "cublasLtMatmul": (*[pointer] * 14, c_size_t, pointer),
    }
    try:
        for name, arguments in signatures.items():
            getattr(library, name).argtypes = arguments
            getattr(library, name).restype = c_int
    except AttributeError:
        return None
    return library

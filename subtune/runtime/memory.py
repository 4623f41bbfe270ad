"""Memory that kernels work on: aligned arrays, huge pages, and one tensor seen by numpy and by TVM without a copy."""

from __future__ import annotations

import functools
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

from subtune.core.tensor_spec import NARROW, TensorSpec, carrier

ALIGNMENT = 64
"""Bytes; a vector, or a cache line, starts on such a boundary. What is ours does; a caller's array need not."""

HUGE_PAGE = 1 << 21
"""Bytes, on x86 and on Arm with pages of 4 KiB."""


def address(array: np.ndarray) -> int:
    """Where the array's first element lies; `array.ctypes.data` takes three times as long."""
    return int(array.__array_interface__["data"][0])


def aligned_empty(nbytes: int) -> np.ndarray:
    """Uninitialised bytes that start on an ALIGNMENT boundary."""
    return aligned_array((nbytes,), np.dtype(np.uint8), nbytes)


def aligned_array(shape: tuple[int, ...], dtype: np.dtype, nbytes: int) -> np.ndarray:
    """An uninitialised array, of `nbytes` as its shape and dtype say, that starts on an ALIGNMENT boundary."""
    raw = np.empty(nbytes + ALIGNMENT, dtype=np.uint8)
    return np.ndarray(shape, dtype, raw, -address(raw) % ALIGNMENT)


@functools.cache
def has_huge_pages() -> bool:
    """Whether the system gives huge pages to who asks for them."""
    try:
        modes = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return False
    return hasattr(mmap, "MADV_HUGEPAGE") and "[never]" not in modes


def private_pages(nbytes: int) -> np.ndarray:
    """Zeroed bytes on a page boundary, in huge pages where the system grants them; a fork gets its own.

    They take memory only once they are written.
    """
    size = -(-nbytes // HUGE_PAGE) * HUGE_PAGE if nbytes >= HUGE_PAGE else max(nbytes, 1)
    if not hasattr(mmap, "MAP_PRIVATE"):
        return aligned_empty(nbytes)
    # a mapping starts anywhere: one huge page more, so that the first one is whole
    spare = HUGE_PAGE if nbytes >= HUGE_PAGE else 0
    mapping = mmap.mmap(-1, size + spare, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = np.frombuffer(mapping, dtype=np.uint8)
    start = -address(whole) % HUGE_PAGE if spare else 0
    if spare and has_huge_pages():
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return whole[start : start + nbytes]


def tensor_over(data: np.ndarray, shape: tuple[int, ...], dtype: str) -> Any:
    """A tensor of any dtype over the contiguous, writeable bytes `data`; no copy.

    Its byte offset is 0, which TVM's kernels insist on: the offset goes into the address.
    """
    return retyped(tvm_ffi.from_dlpack(data), shape, dtype)


def retyped(tensor: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """The same memory seen as another shape and dtype of no more bytes."""
    view = tvm_ffi.get_global_func("runtime.TVMTensorCreateView")
    return view(tensor, tvm_ffi.Shape(shape), tvm_ffi.dtype(dtype), 0)


def host_copy(tensor: Any) -> Any:
    """A tensor of a GPU as one of the CPU."""
    target = tvm_ffi.from_dlpack(aligned_empty(int(np.prod(tensor.shape, dtype=np.int64)) * tensor.dtype.itemsize))
    target = retyped(target, tuple(tensor.shape), str(tensor.dtype))
    tvm_ffi.get_global_func("runtime.TVMTensorCopyFromTo")(tensor, target)
    return target


def is_direct(array: np.ndarray) -> bool:
    """Whether kernels can take the array where it is. Read-only memory is left out: DLPack cannot say so."""
    return bool(array.flags.carray)  # contiguous, writeable and aligned


def is_numpys(dtype: np.dtype) -> bool:
    """Whether numpy's DLPack knows the dtype; it knows none of ml_dtypes'."""
    return dtype.kind != "V" and dtype.isbuiltin == 1


def as_tensor(array: np.ndarray, spec: TensorSpec) -> Any:
    """The memory of an array that is_direct, as the tensor that `spec` says; bytes of bits if those have no type.

    The shape is in numbers: nobody checks, here.
    """
    shape: Any = spec.shape
    if not is_numpys(array.dtype):  # pass the bytes and name the type
        is_packed = spec.dtype in NARROW and not spec.dtype.startswith("float8")  # in tensors of those types
        dtype = carrier(spec.dtype) if is_packed else spec.dtype
        return tensor_over(array.reshape(-1).view(np.uint8), shape, dtype)
    tensor = tvm_ffi.from_dlpack(array)
    return tensor if array.shape == shape else retyped(tensor, shape, spec.dtype)


def as_numpy(tensor: Any, dtype: np.dtype) -> np.ndarray:
    """A tensor's memory as an array of that dtype, which is the tensor's."""
    if dtype.isbuiltin == 1:
        return np.from_dlpack(tensor)
    shape = tuple(tensor.shape)
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return np.from_dlpack(retyped(tensor, (nbytes,), "uint8")).view(dtype).reshape(shape)


def carried(array: np.ndarray) -> np.ndarray:
    """An array as `main` takes it: of a narrow dtype, the bytes of the same memory (`core.tensor_spec.carrier`)."""
    return array.view(np.uint8) if array.dtype.name in NARROW else array


def uncarried(array: np.ndarray, dtype: str) -> np.ndarray:
    """What `main` gives for an output of `dtype`, as an array of that; no copy."""
    return array.view(numpy_dtype(dtype)) if dtype in NARROW else array


def numpy_dtype(name: str) -> np.dtype:
    """numpy's dtype of a manifest's dtype name; ml_dtypes supplies those that numpy lacks."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))

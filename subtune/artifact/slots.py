"""The arrays of a run: one slot for each input and output, which checks what is given and makes what is not."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from subtune import runtime
from subtune.core.errors import InputError
from subtune.core.tensor_spec import NARROW, TensorSpec

_Array = np.ndarray


class Output:
    """One output: its specification, and arrays for it.

    The memory of the last one is kept, and used again when no array is left that lies in it: the system hands out new
    memory page by page, which takes longer than many an operator takes to write it.
    """

    def __init__(self, spec: TensorSpec):
        self.spec = spec
        self.dtype = runtime.numpy_dtype(spec.dtype)
        self._shape = spec.sizes
        self._nbytes = spec.nbytes
        self._memory: np.ndarray | None = None
        self._whole: np.ndarray
        self._alone = 0
        """References to the memory when no array lies in it: Python's versions count their own differently."""

    def array(self, wanted: np.ndarray | None, inputs: list[np.ndarray]) -> np.ndarray:
        """`wanted` if kernels can write there, else a new array."""
        return wanted if wanted is not None and can_take(wanted, inputs) else self.new()

    def new(self) -> np.ndarray:
        if self._memory is None or sys.getrefcount(self._memory) > self._alone:
            self._memory = np.empty(self._nbytes + runtime.ALIGNMENT, np.uint8)
            start = -runtime.address(self._memory) % runtime.ALIGNMENT
            self._whole = np.ndarray(self._shape, self.dtype, self._memory, start)
            self._alone = sys.getrefcount(self._memory)
        # A view of a view refers to what owns the memory: all of them are counted.
        return self._whole[...]


def can_take(wanted: np.ndarray, inputs: list[np.ndarray]) -> bool:
    """Whether kernels can write an output to the array itself: it is contiguous, and no input lies there."""
    return runtime.is_direct(wanted) and not any(np.may_share_memory(wanted, i) for i in inputs)


def check_output(array: Any, spec: TensorSpec, dtype: np.dtype) -> None:
    """Raise InputError if `array` of a caller's cannot take the output `spec`, a static one."""
    if not isinstance(array, np.ndarray) or array.shape != spec.shape or array.dtype != dtype:
        found = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
        raise InputError(f"out[{spec.name!r}] is {found}; the output is {spec}")
    if not array.flags.writeable:
        raise InputError(f"out[{spec.name!r}] is read-only")


class Input:
    """One input: its specification, and an aligned buffer for arrays that TVM cannot read where they are."""

    def __init__(self, spec: TensorSpec):
        self.spec = spec
        self.dtype = runtime.numpy_dtype(spec.dtype)
        self._shape = spec.sizes
        self._buffer: np.ndarray | None = None

    def array(self, value: Any) -> np.ndarray:
        is_spec = type(value) is _Array and value.shape == self._shape and value.dtype is self.dtype
        if is_spec and value.flags.carray:  # most often: nothing to do, said in the fewest steps
            return value
        array = imported(value, self.spec)
        if array.shape != self._shape:
            raise InputError(f"input {self.spec.name} has shape {array.shape}, the model takes {self.spec}")
        check_dtype(array, self.spec, self.dtype)
        if runtime.is_direct(array):
            return array
        if self._buffer is None:
            self._buffer = runtime.aligned_array(self._shape, self.dtype, array.nbytes)
        np.copyto(self._buffer, array)
        return self._buffer


def check_dtype(array: np.ndarray, spec: TensorSpec, dtype: np.dtype) -> None:
    """Raise InputError if the array for the input `spec` is of another dtype."""
    if array.dtype == dtype:
        return
    are_bits = spec.dtype in NARROW and array.dtype == np.uint8
    view = f", or with .view({spec.dtype!r}) if these are its bits" if are_bits else ""
    raise InputError(
        f"input {spec.name} has dtype {array.dtype}, the model takes {spec}; convert it with "
        f".astype({spec.dtype!r}) if that is meant{view}"
    )


def imported(value: Any, spec: TensorSpec) -> np.ndarray:
    """What a caller gave for the input `spec` as an array. Raises InputError where it is nothing of the kind."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except Exception as e:  # of whatever library the object is
            raise InputError(f"input {spec.name} cannot be read through DLPack: {e}") from e
    if isinstance(value, np.generic):
        return np.asarray(value)
    raise InputError(
        f"input {spec.name} is of type {type(value).__name__}; give a numpy array or an object with __dlpack__"
    )

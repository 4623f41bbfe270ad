"""What a model's input or output looks like from outside: its name, shape and dtype (no TVM needed)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

_DTYPES = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)|bfloat(16)|float(8)_\w+")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model.

    Attributes:
        name: the name in the model file.
        shape: static dimensions; () is a scalar.
        dtype: numpy's name ("float32", "int64", "bool"), or ml_dtypes' ("bfloat16", "float8_e4m3fn").
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if any(dim < 0 for dim in self.shape):
            raise ValueError(f"TensorSpec {self.name!r} has a negative dimension: {self.shape}")

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def nbytes(self) -> int:
        """Bytes of a contiguous array. Raises ValueError for a dtype that no array of ours has."""
        return prod(self.shape) * itemsize(self.dtype)


def itemsize(dtype: str) -> int:
    """Bytes of one element.

    >>> itemsize("bool"), itemsize("int64"), itemsize("bfloat16"), itemsize("float8_e4m3fn")
    (1, 8, 2, 1)
    """
    if (found := _DTYPES.fullmatch(dtype)) is None:
        raise ValueError(f"{dtype!r} is no dtype of a tensor")
    return int(next(filter(None, found.groups()), "8")) // 8

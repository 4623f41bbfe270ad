"""What a model's input or output looks like from outside: its name, shape and dtype (no TVM needed)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

NARROW = frozenset(
    "int2 uint2 int4 uint4 float4_e2m1fn float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz".split()
)
"""ml_dtypes' names of what inputs and outputs may be and kernels take as bytes of their bits: see `carrier`."""

_DTYPES = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)|bfloat(16)|float(8)_\w+|u?int[24]|float4_e2m1fn")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model.

    Attributes:
        name: the name in the model file.
        shape: static dimensions; () is a scalar.
        dtype: numpy's name ("float32", "int64", "bool"), or ml_dtypes' ("bfloat16", "float8_e4m3fn", "int4"). Elements
            of less than a byte take one each.
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


def carrier(dtype: str) -> str:
    """The dtype of the tensor that `main` takes or gives for an input or output of `dtype`.

    A narrow one is a uint8 for each element, with the element's bits, as its array in memory has them. Bits above those
    are 0 in outputs and ignored in inputs.

    >>> carrier("float32"), carrier("int4")
    ('float32', 'uint8')
    """
    return "uint8" if dtype in NARROW else dtype


def itemsize(dtype: str) -> int:
    """Bytes of one element.

    >>> itemsize("bool"), itemsize("int64"), itemsize("bfloat16"), itemsize("float8_e4m3fn"), itemsize("int4")
    (1, 8, 2, 1, 1)
    """
    if (found := _DTYPES.fullmatch(dtype)) is None:
        raise ValueError(f"{dtype!r} is no dtype of a tensor")
    return int(next(filter(None, found.groups()), "8")) // 8

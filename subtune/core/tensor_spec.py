"""What a model's input or output looks like from outside: its name, shape and dtype (no TVM needed)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from subtune.core.dims import Dim, parse

NARROW = frozenset(
    "int2 uint2 int4 uint4 float4_e2m1fn float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz".split()
)
"""ml_dtypes' names of what inputs and outputs may be and kernels take as bytes of their bits: see `carrier`."""

_DTYPES = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)|bfloat(16)|float(8)_\w+|u?int[24]|float4_e2m1fn")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model.

    >>> spec = TensorSpec("mask", ("batch", "seq+past"), "int64")
    >>> print(spec, "of", *spec.symbols)
    mask: int64[batch, past + seq] of batch past seq
    >>> print(spec.at({"batch": 2, "past": 3, "seq": 4}))
    mask: int64[2, 7]

    Attributes:
        name: the name in the model file.
        shape: numbers, and expressions of symbols as `subtune.core.dims` writes and reads them; () is a scalar.
        dtype: numpy's name ("float32", "int64", "bool"), or ml_dtypes' ("bfloat16", "float8_e4m3fn", "int4"). Elements
            of less than a byte take one each.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str

    def __post_init__(self) -> None:
        if not self.is_static:
            object.__setattr__(self, "shape", tuple(map(_canonical, self.shape)))
        if any(dim < 0 for dim in self.shape if not isinstance(dim, str)):
            raise ValueError(f"TensorSpec {self.name!r} has a negative dimension: {self.shape}")

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def is_static(self) -> bool:
        """Whether all dimensions are numbers."""
        return not any(isinstance(dim, str) for dim in self.shape)

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The shape as polynomials."""
        return tuple(_parsed(dim) if isinstance(dim, str) else Dim.number(dim) for dim in self.shape)

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names of the shape's symbols, each once, in alphabetical order."""
        return tuple(sorted({name for dim in self.dims for name in dim.symbols}))

    def at(self, values: Mapping[str, int]) -> TensorSpec:
        """With numbers for its symbols. Raises KeyError where `values` lacks one, ValueError for a negative size."""
        return TensorSpec(self.name, tuple(dim.at(values) for dim in self.dims), self.dtype)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of a tensor without symbols."""
        assert self.is_static, f"{self} has no shape in numbers: say first what {', '.join(self.symbols)} is"
        return self.shape  # type: ignore[return-value]

    @property
    def nbytes(self) -> int:
        """Bytes of a contiguous array, without symbols. Raises ValueError for a dtype that no array of ours has."""
        return prod(self.sizes) * itemsize(self.dtype)


@lru_cache(1024)
def _parsed(text: str) -> Dim:
    return parse(text)


def _canonical(dim: int | str) -> int | str:
    """An expression as `Dim` writes it, so that the same ones are equal."""
    if not isinstance(dim, str):
        return dim
    found = _parsed(dim)
    if found.constant is not None:
        raise ValueError(f"the dimension {dim!r} has no symbol: a number is no text")
    return str(found)


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

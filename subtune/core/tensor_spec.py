"""What a model's input or output looks like from outside: its name, shape and dtype (no TVM needed)."""

from __future__ import annotations

from dataclasses import dataclass


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

"""A recurrent layer as its call gives it, and what the templates of its kernels have in common."""

from __future__ import annotations

from dataclasses import dataclass

from subtune.backends.cuda.operators.kernels import Tensor
from subtune.core.workload import dtype_bits

_PACK = 16  # bytes of a load


@dataclass(frozen=True, slots=True)
class Layer:
    """As `subtune.core.recurrence.SYMBOL` is called.

    Attributes:
        given: shapes and dtypes of the arguments.
        y: those of the hidden states.
    """

    cell: str
    direction: str
    activations: tuple[str, ...]
    given: tuple[Tensor, ...]
    y: Tensor

    @property
    def parameters(self) -> list[str]:
        """Of the C++ templates, to begin with: the cell, its activations, which directions go backwards."""
        names = [name.upper() for name in self.activations]
        names += [names[-1]] * (3 - len(names))
        backwards = {"forward": 0, "reverse": 1, "bidirectional": 2}[self.direction]
        return [*(f"subtune::{name}" for name in (self.cell, *names)), str(backwards)]


def packed(extent: int, dtype: str) -> int:
    """Elements that one load reads of rows of `extent`, which begin where a load may."""
    pack = _PACK * 8 // dtype_bits(dtype)
    while extent % pack:
        pack //= 2
    return pack

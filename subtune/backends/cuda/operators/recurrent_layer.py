"""A recurrent layer as its call gives it, and what the templates of its kernels have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from subtune.backends.cuda.operators.kernels import NOTHING, Tensor
from subtune.backends.cuda.source.calls import address
from subtune.backends.cuda.source.emit import const
from subtune.core.recurrence import STATES
from subtune.core.workload import dtype_bits

_PACK = 16  # bytes of a load


@dataclass(frozen=True, slots=True)
class Addresses:
    """Of the input's product, weights and bias; of both initial states; of the lengths; of the results."""

    operands: tuple[Any, ...]
    initial: tuple[Any, ...]
    lengths: Any
    results: tuple[Any, ...]


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
        short = "SHORT_" if dtype_bits(self.y[1]) <= 16 else ""
        names = [name.upper() if name == "relu" else f"{short}{name.upper()}" for name in self.activations]
        names += [names[-1]] * (3 - len(names))
        backwards = {"forward": 0, "reverse": 1, "bidirectional": 2}[self.direction]
        return [*(f"subtune::{name}" for name in (self.cell, *names)), str(backwards)]

    def addresses(self, buffers: Sequence[Any]) -> Addresses:
        """Of the function's `buffers`: its arguments, then its results. What a cell has not is what it has last."""
        states, (y, *last) = STATES[self.cell], buffers[len(self.given) :]
        operands, initial = buffers[:3], buffers[3 : 3 + states]
        has_lengths = len(self.given) > 3 + states
        return Addresses(
            tuple(address(one, const(0)) for one in operands),
            tuple(address(one, const(0)) for one in (initial[0], initial[-1])),
            address(buffers[3 + states], const(0)) if has_lengths else NOTHING[0],
            tuple(address(one, const(0)) for one in (y, last[0], last[-1])),
        )


def packed(extent: int, dtype: str) -> int:
    """Elements that one load reads of rows of `extent`, which begin where a load may."""
    pack = _PACK * 8 // dtype_bits(dtype)
    while extent % pack:
        pack //= 2
    return pack

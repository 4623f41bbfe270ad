"""Where every tensor of a compiled model lies: the plan that the manifest holds and that loading follows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Base(Enum):
    """Whose memory a view looks at."""

    INPUT = "input"
    OUTPUT = "output"
    WEIGHT = "weight"
    ARENA = "arena"

    @property
    def is_fixed(self) -> bool:
        """Whether its address is known once the model is loaded."""
        return self in (Base.WEIGHT, Base.ARENA)


@dataclass(frozen=True, slots=True)
class View:
    """A tensor in the memory of another: `place` counts the inputs, outputs or weights; in the arena it is a byte.

    Of a model with symbols, `shape` is that of the largest instance: smaller ones are compact from the same byte on.
    """

    base: Base
    place: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of one run, and how `main` of the library is called.

    Attributes:
        arena_nbytes: bytes that hold all intermediate tensors, each where nothing live lies.
        bound_nbytes: the largest sum of tensors live at the same time; no arena can be smaller.
        total_nbytes: what they would take without reuse.
        takes_addresses: `main` is machine code and takes addresses; otherwise it is the VM's, and takes tensors.
        arguments: what kernels read and write; of the VM's `main`, in order: those with a fixed address come last and
            are bound once.
        copies: outputs that no kernel writes, being views of other tensors: (output, what is copied there).
        slack: bytes behind outputs that a kernel may write to: (output, bytes).
        returned: outputs that `main` returns, made by what has no place in the plan.
    """

    arena_nbytes: int
    bound_nbytes: int
    total_nbytes: int
    arguments: tuple[View, ...]
    copies: tuple[tuple[int, View], ...] = ()
    returned: tuple[int, ...] = ()
    slack: tuple[tuple[int, int], ...] = ()
    takes_addresses: bool = False

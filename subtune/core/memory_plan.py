"""Where every tensor of a compiled model lies: the plan that the manifest holds and that loading follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any


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
    """A tensor in the memory of another: `place` counts the inputs, outputs or weights; in the arena it is a byte."""

    base: Base
    place: int
    shape: tuple[int, ...]
    dtype: str

    def to_list(self) -> list[Any]:
        return [self.base.value, self.place, list(self.shape), self.dtype]

    @classmethod
    def from_list(cls, data: Sequence[Any]) -> View:
        base, place, shape, dtype = data
        return cls(Base(base), int(place), tuple(int(d) for d in shape), str(dtype))


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of one run, and how `main` of the library is called.

    Attributes:
        arena_nbytes: bytes that hold all intermediate tensors, each where nothing live lies.
        bound_nbytes: the largest sum of tensors live at the same time; no arena can be smaller.
        total_nbytes: what they would take without reuse.
        takes_addresses: `main` is machine code and takes addresses; otherwise it is the VM's, and takes tensors.
        arguments: of the VM's `main`, in order; those with a fixed address come last and are bound once.
        copies: outputs that no kernel writes, being views of other tensors: (output, what is copied there).
        returned: outputs that `main` returns, made by what has no place in the plan.
    """

    arena_nbytes: int
    bound_nbytes: int
    total_nbytes: int
    arguments: tuple[View, ...]
    copies: tuple[tuple[int, View], ...] = ()
    returned: tuple[int, ...] = ()
    takes_addresses: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {
            "arena_nbytes": self.arena_nbytes,
            "bound_nbytes": self.bound_nbytes,
            "total_nbytes": self.total_nbytes,
            "arguments": [view.to_list() for view in self.arguments],
            "copies": [[output, view.to_list()] for output, view in self.copies],
            "returned": list(self.returned),
            "takes_addresses": self.takes_addresses,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> MemoryPlan:
        return cls(
            int(data["arena_nbytes"]),
            int(data["bound_nbytes"]),
            int(data["total_nbytes"]),
            tuple(View.from_list(view) for view in data["arguments"]),
            tuple((int(output), View.from_list(view)) for output, view in data["copies"]),
            tuple(int(output) for output in data["returned"]),
            bool(data["takes_addresses"]),
        )

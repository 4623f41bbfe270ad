"""What a backend makes a library of: the calls of a model's kernels, and where all tensors are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from subtune.core.variants import Variants

if TYPE_CHECKING:
    import tvm

    from subtune.core.memory_plan import MemoryPlan


@dataclass(frozen=True, slots=True)
class Planned:
    """A module whose memory is planned, ready to become a library."""

    calls: tvm.IRModule
    """`main` is a list of calls of PrimFuncs on tensors that have their places."""
    program: tvm.IRModule
    """The same for Relax's virtual machine."""
    memory: MemoryPlan
    arrays: tuple[int, int]
    """How many inputs and outputs there are."""
    short: frozenset[str]
    """Names of kernels that are so short that a launch of their own counts."""
    offsets: tuple[int, ...]
    """Of the weights, in bytes from the first."""
    hides_denormals: bool = False
    """Numbers too small for a normal float may count as zero (`passes.denormals`)."""
    symbols: tuple[str, ...] = ()
    """Of a dynamic model, whose values `main` takes behind everything else."""
    variants: Mapping[str, Variants] = field(default_factory=dict)
    """Of a dynamic model, by the names of the PrimFuncs that they take the place of."""
    is_traced: bool = False
    """Whether `TRACE_NAME` is wanted, too, where the library alone cannot say when its kernels ran."""

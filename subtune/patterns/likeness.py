"""How alike two workloads are: what both compute, and by how much their loops differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, log2, prod
from typing import Any

import tvm_ffi
from tvm import ir
from tvm.s_tir import SBlock

from subtune.core.workload import Workload
from subtune.patterns.axes import Role
from subtune.patterns.contraction import Contraction
from subtune.patterns.recognise import recognise

_INDEX_TYPES = ("int32", "int64", "bool")
OTHER_BODY = 1.0
"""What another epilogue or prologue adds to the distance of two contractions, in doublings of a loop: their loops
round the sum are the same, and what is done beside it is little of their time."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """What is compared of a workload; nothing of it depends on names.

    Attributes:
        kind: the pattern, and the types of what it reads and writes. Workloads of two kinds are never near.
        body: the operations on elements, with those of prologue and epilogue.
        extents: of loops, all at least 1. Of a contraction those of its roles, each a product: batch, m, n, and the
            reduced ones; the windows' taps and strides. Else those of all blocks' axes, in order.
    """

    kind: str
    body: str
    extents: tuple[int, ...]

    def distance(self, other: Likeness) -> float:
        """The sum of the doublings by which loops differ: 0.0 of a workload to itself, symmetric; inf for strangers.

        Tiles are chosen by what fits, which goes by ratios: 64 channels are to 128 as 512 are to 1024.
        """
        if self.kind != other.kind or len(self.extents) != len(other.extents):
            return inf
        between = sum(abs(log2(a / b)) for a, b in zip(self.extents, other.extents, strict=True))
        return between if self.body == other.body else between + OTHER_BODY


@lru_cache(maxsize=1024)
def likeness(workload: Workload) -> Likeness:
    """Of a static workload, worked out once."""
    pattern = recognise(workload)
    body, args = _body(workload), [(arg.dtype, arg.is_output) for arg in workload.args]
    if isinstance(pattern, Contraction):
        weights = "weights" if pattern.b.is_constant else "arrays"
        groups = "groups" if pattern.per_group else ""
        outputs = sorted(dtype for dtype, is_output in args if is_output)
        parts = ("Contraction", pattern.a.dtype, pattern.b.dtype, pattern.acc_dtype, weights, groups, *outputs)
        return Likeness("/".join(filter(None, parts)), f"{len(args)} {body}", _of_roles(pattern))
    # What such patterns say does not tell all that is computed, as a contraction's roles do.
    kind = f"{type(pattern).__name__}/{args}/{body}"
    return Likeness(kind, "", _of_blocks(workload))


def _of_roles(pattern: Contraction) -> tuple[int, ...]:
    taps = {window.tap: window.stride for window in pattern.a.windows if window is not None}
    extents = {axis.index: axis.extent for axis in pattern.axes}
    reduced = _product(axis.extent for axis in pattern.of_role(Role.K) if axis.index not in taps)
    loops = [_product(axis.extent for axis in pattern.of_role(role)) for role in (Role.BATCH, Role.M, Role.N)]
    return (*loops, reduced, _product(extents[tap] for tap in taps), _product(taps.values()), pattern.groups)


def _product(extents: Any) -> int:
    return max(1, prod(map(int, extents)))


def _of_blocks(workload: Workload) -> tuple[int, ...]:
    blocks: list[Any] = []
    tvm_ffi.structural_walk(workload.func.body, (SBlock, blocks.append), order="post")
    return tuple(max(1, int(axis.dom.extent)) for block in blocks for axis in block.iter_vars)


def _body(workload: Workload) -> str:
    """Operations on elements in post order, with their types; numbers, and the arithmetic of indices, are left out."""
    found: list[str] = []

    def note(node: Any) -> None:
        name = type(node).__name__
        dtype = str(getattr(getattr(node, "ty", None), "dtype", ""))
        if dtype and dtype not in _INDEX_TYPES and name not in _LEAVES:
            found.append(f"{_called(node) or name}:{dtype}")

    tvm_ffi.structural_walk(workload.func.body, (ir.Expr, note), order="post")
    return " ".join(found)


_LEAVES: Sequence[str] = ("Var", "FloatImm", "IntImm", "TensorLoad")


def _called(node: Any) -> str:
    return str(getattr(getattr(node, "op", None), "name", ""))

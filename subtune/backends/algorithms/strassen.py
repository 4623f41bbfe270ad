"""Strassen's algorithm as tables of signs, and to which contractions it applies.

`levels` times recursive: A is seen as s x s blocks, s = 2^levels, as are B and C; every one of 7^levels products is a
signed sum of blocks of A times one of blocks of B, and every block of C a signed sum of products.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from typing import Any

from tvm import ir, te, tirx
from tvm.s_tir import Schedule

from subtune.core.workload import Workload
from subtune.patterns.axes import Axis
from subtune.patterns.contraction import Contraction
from subtune.patterns.stages import Stages
from subtune.tir.expressions import loads, replace_loads
from subtune.tir.substitute import substitute

PRODUCTS = 7

Term = tuple[tuple[int, int], int]
"""A block (row, column) and its sign."""

# Strassen 1969: his m1 to m7.
_A: tuple[tuple[Term, ...], ...] = (
    (((0, 0), 1), ((1, 1), 1)),
    (((1, 0), 1), ((1, 1), 1)),
    (((0, 0), 1),),
    (((1, 1), 1),),
    (((0, 0), 1), ((0, 1), 1)),
    (((1, 0), 1), ((0, 0), -1)),
    (((0, 1), 1), ((1, 1), -1)),
)
_B: tuple[tuple[Term, ...], ...] = (
    (((0, 0), 1), ((1, 1), 1)),
    (((0, 0), 1),),
    (((0, 1), 1), ((1, 1), -1)),
    (((1, 0), 1), ((0, 0), -1)),
    (((1, 1), 1),),
    (((0, 0), 1), ((0, 1), 1)),
    (((1, 0), 1), ((1, 1), 1)),
)
_C: tuple[tuple[Term, ...], ...] = (  # to which blocks of C each product goes
    (((0, 0), 1), ((1, 1), 1)),
    (((1, 0), 1), ((1, 1), -1)),
    (((0, 1), 1), ((1, 1), 1)),
    (((0, 0), 1), ((1, 0), 1)),
    (((0, 0), -1), ((0, 1), 1)),
    (((1, 1), 1),),
    (((0, 0), 1),),
)


@dataclass(frozen=True, slots=True)
class Terms:
    a: tuple[tuple[Term, ...], ...]
    """By product: blocks of A."""
    b: tuple[tuple[Term, ...], ...]
    c: tuple[tuple[tuple[tuple[int, int], ...], ...], ...]
    """By row and column of the block of C: products and their signs."""

    @property
    def additions(self) -> tuple[int, int]:
        """Of blocks of A and of products, one after another without sharing."""
        return sum(len(row) - 1 for row in self.a), sum(len(sums) - 1 for row in self.c for sums in row)


@cache
def terms(levels: int) -> Terms:
    """
    >>> terms(1).additions, len(terms(2).a)
    ((5, 8), 49)
    """
    a, b, c = (_recursive(table, levels) for table in (_A, _B, _C))
    s = 2**levels
    into = tuple(
        tuple(tuple((p, sign) for p, row in enumerate(c) for block, sign in row if block == (i, j)) for j in range(s))
        for i in range(s)
    )
    return Terms(a, b, into)


def _recursive(table: tuple[tuple[Term, ...], ...], levels: int) -> tuple[tuple[Term, ...], ...]:
    result = table
    for _ in range(levels - 1):
        result = tuple(
            tuple(
                ((2 * i + x, 2 * j + y), outer * inner)
                for (i, j), outer in coarse
                for (x, y), inner in fine
            )
            for coarse in result
            for fine in table
        )  # fmt: skip
    return result


def strassen_obstacle(info: Contraction, granule: int) -> str:
    """Why Strassen's algorithm does not apply; empty for a float32 contraction with constant weights.

    Args:
        granule: of what number the last reduced extent must be a multiple: whole vectors in every block.
    """
    if info.acc_dtype != "float32" or (info.a.dtype, info.b.dtype) != ("float32", "float32"):
        return "not in float32"
    if info.of_role("batch") or info.per_group or not info.of_role("m"):
        return "a batch, groups, or a single row"
    if not info.b.is_constant or -1 in info.b.axes:
        return "the second operand is no constant"
    k = info.of_role("k")[-1]
    if info.a.axes[-1] != k.index:
        return "the first operand is not contiguous along the reduced axis"
    return f"{k.extent} reduced elements are no multiple of {granule}" if k.extent % granule else ""


def dense_obstacle(info: Contraction, levels: int, granule: int) -> str:
    """Why a contraction is no matrix product of float32 whose blocks are made of rows of `granule` elements; or ""."""
    if {info.acc_dtype, info.a.dtype, info.b.dtype} != {"float32"}:
        return "not in float32"
    rows, columns, k = info.of_role("m"), info.of_role("n"), info.of_role("k")
    if info.of_role("batch") or info.per_group or not rows or len(columns) != 1 or len(k) != 1:
        return "a batch, groups, or a convolution"
    if info.a.param < 0 or info.b.param < 0 or info.a.axes != (*(axis.index for axis in rows), k[0].index):
        return "the first operand is not contiguous along the reduced axis, or one is computed"
    if sorted(info.b.axes) != sorted((columns[0].index, k[0].index)):
        return "the second operand is no matrix"
    s = 2**levels
    if prod(axis.extent for axis in rows) % s or columns[0].extent % (s * granule) or k[0].extent % (s * granule):
        return f"extents that are no multiples of {s}, or of {s * granule}"
    return ""


@lru_cache(maxsize=8)
def block_products(levels: int, rows: int, n: int, k: int, is_nn: bool) -> Workload:
    """The products of sums of blocks: a batched GEMM, B as it lies in memory."""
    s, count = 2**levels, PRODUCTS**levels
    of_b = (count, k // s, n // s) if is_nn else (count, n // s, k // s)
    v = te.placeholder(_dims(count, rows // s, k // s), "float32", name="v")
    u = te.placeholder(_dims(*of_b), "float32", name="u")
    i = te.reduce_axis(ir.Range(*_dims(0, k // s)), "k")
    m = te.compute(
        _dims(count, rows // s, n // s),
        lambda p, r, c: te.sum(v[p, r, i] * (u[p, i, c] if is_nn else u[p, c, i]), axis=i),
        name="m",
    )
    return Workload.of(te.create_prim_func([v, u, m]), 1)


def _dims(*extents: int) -> list[Any]:
    return [tirx.const(extent, "int64") for extent in extents]


def is_written_in_order(sch: Schedule, stages: Stages) -> bool:
    """Whether one block at most follows the anchor, and its axes are those of the anchor's result."""
    if not stages.outputs:
        return True
    anchor, (first, *others) = sch.get(stages.anchors[0]), stages.outputs
    block = sch.get(first)
    axes = [iv.var for iv in block.iter_vars]
    taken = [load for load in loads(block.body.value) if load.source.same_as(anchor.writes[0].source)]
    return not others and all(
        len(load.indices) == len(axes) and all(i.same_as(axis) for i, axis in zip(load.indices, axes, strict=True))
        for load in taken
    )


def signed_sum(values: list[tuple[int, Any]]) -> Any:
    """Sum of +-values; one with a plus is first."""
    (_, total), *rest = sorted(values, key=lambda term: -term[0])
    for sign, value in rest:
        total = total + value if sign > 0 else total - value
    return total


def unfold(row: Any, axes: tuple[Axis, ...]) -> list[Any]:
    """The m axes' positions in row `row` of A."""
    position = []
    for axis in reversed(axes[1:]):
        position.append(row % axis.extent)
        row = row // axis.extent
    return [row, *reversed(position)]


def finished(block: Any, result: Any, total: Any, position: dict[Any, Any]) -> Any:
    """What the output's `block` computes at `position` where the anchor's `result` is `total`."""
    if block.body.buffer.same_as(result):
        return total
    return replace_loads(substitute(block.body.value, position), result, total)

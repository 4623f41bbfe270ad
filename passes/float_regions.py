"""Regions of a half-precision file that are computed in float32 on purpose: found, marked, and kept in float32.

A float32 region is what hangs together by float32 values, between casts from a half and to one: a rotary embedding's
angles, a residual stream, a router's scores. `subtune.passes.widen` turns the halves around it into float32 as well;
operators that do nothing, `BEGIN` and `END`, hold its borders meanwhile. They are gone before there is a partition.

A region of one operator, such as a norm between two casts, needs no borders: all that it makes is rounded by the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tvm
from tvm import relax

from subtune.core.numerics import HALVES
from subtune.passes.exprs import Expr, dtype_of, is_value, op_name
from subtune.passes.opkind import CONTRACTIONS, MOVEMENTS, VIEWS
from subtune.passes.rewriter import Walk, rewrite

FULL = "float32"
BEGIN, END = (float("-inf"), float("inf")), (-1e300, 1e300)
"""Bounds of a `clip` that does nothing. It stands for a border because all that passes through elementwise operators,
layouts and reshapes, passes through it, and no rule drops it."""


def marked(expr: Expr, border: tuple[float, float]) -> Expr:
    """`expr` as it enters (`BEGIN`) or leaves (`END`) a float32 region."""
    return relax.op.clip(expr, *border)


def regions(main: relax.Function) -> frozenset[Any]:
    """The variables in the float32 regions of a half-precision file, but for regions of a single operator.

    A product of float32 operands is a region by itself.
    """
    groups = _Groups()
    work: dict[Any, int] = {}
    for binding in _bindings(main):
        if not _is_full(binding.var) or is_cast_of_half(binding.value):
            continue
        operands = [var for var in variables(binding.value) if _is_full(var)]
        groups.join(binding.var, *operands)
        work[binding.var] = _work(binding.value, bool(operands))
    total: dict[Any, int] = {}
    for var, amount in work.items():
        total[groups.root(var)] = total.get(groups.root(var), 0) + amount
    return frozenset(var for var in groups if total.get(groups.root(var), 0) > 1)


def without_borders(mod: tvm.IRModule) -> tuple[tvm.IRModule, frozenset[Any]]:
    """A normalised module without the marks, and the variables that keep float32 between kernels.

    Those are of the regions, but for what only leaves its region.
    """
    main = mod["main"]
    groups = _Groups()
    inside, leaves, stays = set(), set(), set()
    for binding in _bindings(main):
        border = _border(binding.value)
        operands = list(variables(binding.value))
        if border == BEGIN:
            inside.add(binding.var)
        elif border == END:
            inside.update(operands)
            leaves.update(operands)
        else:
            groups.join(*(var for var in (binding.var, *operands) if _is_full(var)))
            stays.update(operands)
    if not inside:
        return mod, frozenset()
    roots = {groups.root(var) for var in inside}
    kept = frozenset(var for var in groups if groups.root(var) in roots and (var in stays or var not in leaves))
    return rewrite(mod, {"relax.clip": (_drop_border,)}), kept


def _drop_border(walk: Walk, call: Any) -> Expr | None:
    return call.args[0] if _border(call) else None


def _border(value: Expr) -> tuple[float, float] | None:
    """`BEGIN` or `END` for a mark, None for anything else."""
    if op_name(value) != "relax.clip":
        return None
    bounds = tuple(float(bound.value) for bound in value.args[1:])
    return next((border for border in (BEGIN, END) if border == bounds), None)


def is_cast_of_half(value: Expr) -> bool:
    """Whether `value` is a cast between float32 and a half."""
    if op_name(value) != "relax.astype":
        return False
    pair = {dtype_of(value), dtype_of(value.args[0])}
    return FULL in pair and bool(pair & HALVES)


def variables(value: Expr) -> Iterator[Any]:
    """The variables that an expression reads."""
    if isinstance(value, tvm.ir.Var):
        yield value
    elif isinstance(value, tvm.ir.TupleGetItem):
        yield from variables(value.tuple_value)
    elif isinstance(value, tvm.ir.Tuple):
        for part in value.fields:
            yield from variables(part)
    elif isinstance(value, tvm.ir.Call) and is_value(value):
        for part in value.args:
            yield from variables(part)


def leaves(ty: Any) -> Iterator[str]:
    """The element types of a tensor or of a tuple of tensors."""
    if isinstance(ty, relax.TensorType):
        yield str(ty.dtype) if ty.dtype is not None else ""
    elif isinstance(ty, tvm.ir.TupleType):
        for part in ty.fields:
            yield from leaves(part)


def _is_full(var: Any) -> bool:
    return FULL in leaves(var.ty)


def _work(value: Expr, has_full_operands: bool) -> int:
    """1 for an operator that computes, 0 for what moves data; 2 for a product, which rounding its operands changes."""
    name = op_name(value).removeprefix("relax.")
    if not name or name in MOVEMENTS or name in VIEWS or name == "astype":
        return 0
    if name in CONTRACTIONS:
        return 2 if has_full_operands else 0
    return 1


def _bindings(main: relax.Function) -> Iterator[Any]:
    for block in main.body.blocks:
        yield from block.bindings


class _Groups:
    """Variables that belong together (union-find)."""

    def __init__(self) -> None:
        self._parent: dict[Any, Any] = {}

    def __iter__(self) -> Iterator[Any]:
        return iter(tuple(self._parent))

    def root(self, var: Any) -> Any:
        path = []
        while (parent := self._parent.get(var, var)) != var:
            path.append(var)
            var = parent
        self._parent.update(dict.fromkeys(path, var))
        return var

    def join(self, *members: Any) -> None:
        roots = [self.root(var) for var in members]
        for root in roots:
            self._parent[root] = roots[0]

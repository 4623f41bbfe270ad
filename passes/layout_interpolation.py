"""Interpolations back in planes, where nothing in the model wants its channels last.

    permute(interpolate(permute(x, NHWC)), NCHW)  ->  interpolate(x)

The importer puts them channels last, so that permutations cancel with those of convolutions. Alone, both take longer
than the interpolation itself, which on a GPU reads rows of planes as fast as channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax

from subtune.passes.exprs import Expr, dtype_of, is_const, shape_of
from subtune.passes.layout_axes import to_first
from subtune.passes.layout_planes import convolutions
from subtune.passes.normalize_cleanup import permutation
from subtune.passes.rewriter import Walk, rewrite
from subtune.tir.interpolation import AXES_ATTR, Sum, interpolation, sums_of


def interpolations_in_planes(mod: tvm.IRModule) -> tvm.IRModule:
    """All of them, or none where the model has convolutions."""
    functions = {gvar: func for gvar, func in mod.functions.items() if func.attrs and AXES_ATTR in func.attrs}
    if not functions or convolutions(mod):
        return mod
    builder = relax.BlockBuilder()

    def in_planes(walk: Walk, call: Expr) -> Expr | None:
        rank = len(call.ty.shape)
        if rank < 3 or permutation(call) != to_first(rank):
            return None
        stages, at = [], call.args[0]
        while (found := _read(walk, at, functions)) is not None:
            stages.append(found[1])
            at = found[0]
        below = walk.defined_by(at, "relax.permute_dims")
        if not stages or below is None or permutation(below) != (0, *range(2, rank), 1):
            return None
        result = below.args[0]
        for sums in reversed(stages):
            result = walk.emit(_emitted(builder, result, [Sum(one.axis + 1, one.taps, one.weights) for one in sums]))
        return result

    out = rewrite(mod, {"relax.permute_dims": (in_planes,)})
    made = builder.get()
    for gvar, func in made.functions.items():
        out.update_func(gvar, func)
    return out


def _read(walk: Walk, expr: Expr, functions: Mapping[Any, Any]) -> tuple[Expr, list[Sum]] | None:
    """What the interpolation `expr` reads, and its sums; None where it is none, or its tables are not known."""
    call = walk.defined_by(expr, "relax.call_tir")
    if call is None or call.args[0] not in functions:
        return None
    x, *tables = call.args[1].fields
    if not all(is_const(table) for table in tables):
        return None
    return x, sums_of(functions[call.args[0]].attrs, [table.value.numpy() for table in tables])


def _emitted(builder: Any, x: Expr, sums: list[Sum]) -> Expr:
    shape, dtype = shape_of(x), dtype_of(x)
    assert shape is not None
    found = interpolation(shape, dtype, sums, in_rows=True)
    tables = [relax.const(table) for table in found.tables]
    return builder.call_te(found.te, x, *tables, primfunc_name_hint="interpolate", primfunc_attrs=found.attrs)

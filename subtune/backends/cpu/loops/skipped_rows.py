"""Rows of a window that lie in the padding are not multiplied: they would add zeros.

    for ry in range(5):                     acc += pad[y + ry * 2, ...] * w[ry, ...]      the image is rows 4 to 10
->  for ry in range(first(y), end(y)):      the same

Of a 3 x 3 window on seven rows that is a tenth of the products, of a 5 x 5 one, dilated by two, a third.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym import Analyzer, detect_linear_equation
from tvm.tirx import PrimFunc

from subtune.tir.expressions import conjuncts, is_zero_padding, loads, variables
from subtune.tir.substitute import substitute

Image = Mapping[int, tuple[int, int]]
"""Of a padded buffer: the dims that are padded, and where along them what is no padding begins and ends."""


def skip_padding(func: PrimFunc, update: str) -> PrimFunc:
    """`func` whose block `update` is not reached for rows of zeros.

    Loops over a reduction axis of the block, as long as what the axis reads lies in one row of the image, or outside.
    """
    images = _images(func)

    def shortened(loop: Any) -> Any:
        if loop.kind != tirx.ForKind.SERIAL or (realize := _realized(loop, update)) is None:
            return loop
        for load in loads(realize.block.body.value):
            for dim, (low, high) in images.get(load.source, {}).items():
                if bounds := _bounds(loop, realize, load.indices[dim], low, high):
                    return _between(loop, *bounds)
        return loop

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, shortened))) if images else func


def kept(func: PrimFunc, tiled: int) -> float:
    """The share of a convolution's products that `skip_padding` leaves, where tiles are along the axis `tiled`."""
    images = _images(func)
    blocks: list[Any] = []
    tvm_ffi.structural_walk(func.body, (SBlock, blocks.append), order="pre")
    share = 1.0
    for block in blocks:
        if not any(int(iv.iter_type) == tirx.IterVar.CommReduce for iv in block.iter_vars):
            continue
        axes = {iv.var: (i, int(iv.dom.extent)) for i, iv in enumerate(block.iter_vars)}
        for load in loads(block.body.value):
            for dim, bounds in images.get(load.source, {}).items():
                share *= _kept_along(load.indices[dim], axes, tiled, bounds)
    return share


def _kept_along(index: Any, axes: Mapping[Any, tuple[int, int]], tiled: int, bounds: tuple[int, int]) -> float:
    """The share of the steps along two axes, of the output and of the window, at which `index` is in the image."""
    used = [var for var in axes if var in variables(index)]
    linear = detect_linear_equation(Analyzer().simplify(index), used)
    if len(used) != 2 or any(axes[var][0] == tiled for var in used) or len(linear) != 3:
        return 1.0
    if not all(isinstance(term, tirx.IntImm) for term in linear):
        return 1.0
    a, b, base = (int(term) for term in linear)
    low, high = bounds
    places = [a * i + b * j + base for i in range(axes[used[0]][1]) for j in range(axes[used[1]][1])]
    return sum(low <= place < high for place in places) / len(places)


def _images(func: PrimFunc) -> dict[Any, Image]:
    """By the buffers that hold them."""
    blocks: list[Any] = []
    tvm_ffi.structural_walk(func.body, (SBlock, blocks.append), order="pre")
    found: dict[Any, Image] = {}
    for block in blocks:
        store = block.body
        if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, ir.Call):
            continue
        if not str(getattr(store.value.op, "name", "")).endswith("if_then_else") or not is_zero_padding(store.value):
            continue
        bounds = _ranges(store.value.args[0])
        image = {dim: bounds[at] for dim, at in enumerate(store.indices) if isinstance(at, ir.Var) and at in bounds}
        if image:
            found[store.buffer] = image
    return found


def _ranges(condition: Any) -> dict[Any, tuple[int, int]]:
    """Variables that `condition` bounds on both sides by numbers."""
    lows: dict[Any, int] = {}
    highs: dict[Any, int] = {}
    for one in conjuncts(condition):
        if isinstance(one, tirx.LE) and isinstance(one.a, tirx.IntImm):
            lows[one.b] = int(one.a)
        elif isinstance(one, tirx.LT) and isinstance(one.b, tirx.IntImm):
            highs[one.a] = int(one.b)
    return {var: (lows[var], highs[var]) for var in lows.keys() & highs.keys()}


def _realized(loop: Any, update: str) -> Any | None:
    """Where the block `update` is in `loop`, which runs over one of its reduction axes."""
    inside: list[Any] = []
    tvm_ffi.structural_walk(loop.body, (SBlockRealize, inside.append), order="pre")
    own = [realize for realize in inside if realize.block.name_hint == update]
    if len(own) != 1:
        return None
    axes = zip(own[0].block.iter_vars, own[0].iter_values, strict=True)
    is_own = any(int(iv.iter_type) == tirx.IterVar.CommReduce and value.same_as(loop.loop_var) for iv, value in axes)
    return own[0] if is_own else None


def _bounds(loop: Any, realize: Any, index: Any, low: int, high: int) -> tuple[Any, Any] | None:
    """From which step of `loop` on, and up to which, `index` lies between `low` and `high`."""
    values = {iv.var: value for iv, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)}
    analyzer = Analyzer()
    linear = detect_linear_equation(analyzer.simplify(substitute(index, values)), [loop.loop_var])
    if len(linear) != 2 or not isinstance(linear[0], tirx.IntImm) or int(linear[0]) <= 0:
        return None
    step, base = linear[0], linear[1]
    inner: list[Any] = []
    tvm_ffi.structural_walk(loop.body, (tirx.For, lambda one: inner.append(one.loop_var)), order="pre")
    if variables(base) & set(inner):
        return None
    first = tirx.Max(tirx.floordiv(low - base + step - 1, step), tirx.const(0, "int64"))
    end = tirx.Min(tirx.floordiv(high - 1 - base, step) + 1, loop.extent)
    return analyzer.simplify(first), analyzer.simplify(end)


def _between(loop: Any, first: Any, end: Any) -> Any:
    step = tirx.Var(str(loop.loop_var.name), "int64")
    count = tirx.Max(end - first, tirx.const(0, "int64"))
    body = substitute(loop.body, {loop.loop_var: first + step})
    return tirx.For(step, tirx.const(0, "int64"), count, loop.kind, body, loop.thread_binding, loop.annotations)

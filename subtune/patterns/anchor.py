"""What the policies and the templates know of a workload's anchor: its axes and operands, read from the TIR.

Axes are classified by which accesses they index, as in an einsum: a *batch* axis indexes both operands and the
output, an *m* axis the first operand (activations) and the output, an *n* axis the second (weights) and the
output, a *k* axis is reduced. Names of functions, blocks or buffers are never looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock, Schedule

from subtune.core.kernel import NotApplicable
from subtune.patterns.movement import Crosswise


@dataclass(frozen=True, slots=True)
class Axis:
    """One loop of the anchor: its position among the block's iterators, its extent, and its role."""

    index: int
    extent: int
    role: str  # "batch" | "m" | "n" | "k"


@dataclass(frozen=True, slots=True)
class Operand:
    """One read of the anchor: position among the block's reads, shape, and the axis that runs along each dim.

    `axes` has -1 for a dim that no single axis indexes; where that is a window `h * stride + kh * dilation`, `windows`
    has (axis h, stride, axis kh, dilation). `param` is the PrimFunc parameter that is read, or -1 for the result of a
    prologue block.
    """

    read: int
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[int, ...]
    windows: tuple[tuple[int, int, int, int] | None, ...]
    param: int
    is_constant: bool


@dataclass(frozen=True, slots=True)
class Contraction:
    """C[batch, m, n] += A[batch, m, k] * B[batch, n, k], where A may be read through windows (convolution)."""

    axes: tuple[Axis, ...]
    a: Operand
    b: Operand
    acc_dtype: str
    per_group: int = 0
    """Columns n of one group in a grouped convolution, where A is read at `n // per_group * K + k`; 0: no groups."""

    def of_role(self, role: str) -> tuple[Axis, ...]:
        return tuple(axis for axis in self.axes if axis.role == role)

    @property
    def read_share(self) -> float:
        """Of A's elements those that some window looks at: a 1x1 convolution of stride 2 reads a quarter."""
        extents = {axis.index: axis.extent for axis in self.axes}
        share = 1.0
        for window in filter(None, self.a.windows):
            share *= min(1.0, extents.get(window[2], 1) / window[1])
        return share

    def lanes(self, widest: int) -> int:
        """Elements of a vector along n: `widest`, or for groups the widest power of two that divides one."""
        while self.per_group % widest:
            widest //= 2
        return widest

    @property
    def n(self) -> Axis:
        return self.of_role("n")[0]


@dataclass(frozen=True, slots=True)
class Window:
    """C[..., c] = reduce over small windows of A[..., c]: depthwise convolution and pooling.

    The innermost axis `c` indexes every operand contiguously, so it is the vector axis, but for the constants in
    `to_pack` (depthwise weights `[c, kh, kw, 1]`), which can be packed `[kh, kw, c]`. `is_padded`: a block computes
    what is read, its padding most often. `is_tabled`: tables say where what is read lies, as in resizing.
    """

    axes: tuple[Axis, ...]
    acc_dtype: str
    to_pack: tuple[Operand, ...]
    is_padded: bool
    is_tabled: bool

    def of_role(self, role: str) -> tuple[Axis, ...]:
        return tuple(axis for axis in self.axes if axis.role == role)


@dataclass(frozen=True, slots=True)
class Rowwise:
    """Reductions along whole rows (softmax, normalisation, mean): `rows` independent rows of `length` elements."""

    rows: int
    length: int


@dataclass(frozen=True, slots=True)
class Columns:
    """Reductions that keep the innermost axis: `outer` times `columns` independent ones of `length` elements each.

    `group` adjacent columns belong together (group norm).
    """

    outer: int
    columns: int
    length: int
    group: int


@dataclass(frozen=True, slots=True)
class Elementwise:
    """No reduction: `extent` output elements; `crosswise` where an operand is contiguous along another axis."""

    extent: int
    crosswise: Crosswise | None = None


Anchor = Contraction | Window | Rowwise | Columns | Elementwise


def root_stages(func: Any) -> list[Any]:
    """The statements of the root block, one loop nest each, in program order."""
    body = func.body.block.body
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def stage_block(stage: Any) -> Any:
    """The outermost sblock of a stage."""
    found: list[Any] = []
    tvm_ffi.structural_walk(stage, (SBlock, found.append), order="pre")
    return found[0]


def all_blocks(sch: Schedule, func_name: str = "main") -> list[Any]:
    """Every sblock but the root, in program order (as block variables of `sch`)."""
    names: list[str] = []
    tvm_ffi.structural_walk(sch.mod[func_name].body, (SBlock, lambda b: names.append(b.name_hint)), order="pre")
    return [sch.get_sblock(name, func_name) for name in names if name != "root"]


def is_reduction(block: Any) -> bool:
    return any(int(iv.iter_type) == tirx.IterVar.CommReduce for iv in block.iter_vars)


def loads(expr: Any) -> list[Any]:
    """Every buffer load in `expr`, in post order."""
    found: list[Any] = []
    tvm_ffi.structural_walk(expr, (ir.TensorLoad, found.append), order="post")
    return found


def variables(exprs: Any) -> set[Any]:
    """The variables that occur in an expression or a sequence of them."""
    found: set[Any] = set()
    for expr in exprs if isinstance(exprs, list | tuple | tvm_ffi.Array) else [exprs]:
        tvm_ffi.structural_walk(expr, (ir.Var, found.add), order="post")
    return found


def contraction(sch: Schedule, block_rv: Any) -> Contraction | NotApplicable:
    """The anchor as a contraction, or why it is none."""
    block = sch.get(block_rv)
    if not isinstance(block.body, tirx.BufferStore):
        return NotApplicable("the anchor stores more than one value")
    product = _added_product(block)
    if product is None:
        return NotApplicable("the anchor does not sum products of two operands")
    axes_of = {iv.var: i for i, iv in enumerate(block.iter_vars)}
    extents = _extents(block)
    if extents is None:
        return NotApplicable("the anchor has symbolic extents")
    store = block.body
    out_axes = [axes_of[v] for v in store.indices if v in axes_of]
    if not out_axes or len(out_axes) != len([iv for iv in block.iter_vars if int(iv.iter_type) == 0]):
        return NotApplicable("the anchor's output is not indexed by its own axes")
    first, second = product
    in_first, in_second = (
        {axes_of[v] for v in variables(list(load.indices)) if v in axes_of} for load in (first, second)
    )
    last = out_axes[-1]
    per_group = 0
    if last in in_first and last in in_second:
        groups = [group_size(load, block.iter_vars[last].var) for load in (first, second)]
        per_group = max(groups)
        for axes_in, group in zip((in_first, in_second), groups, strict=True):
            if group:
                axes_in.discard(last)
    if (last in in_first) == (last in in_second):
        return NotApplicable("the innermost output axis indexes both operands: no n axis")
    if last in in_first:
        first, second, in_first, in_second = second, first, in_second, in_first
    axes = []
    for i, (iv, extent) in enumerate(zip(block.iter_vars, extents, strict=True)):
        if int(iv.iter_type) == tirx.IterVar.CommReduce:
            role = "k"
        elif i in in_first and i in in_second:
            role = "batch"
        elif i in in_second:
            role = "n"
        else:
            role = "m"
        axes.append(Axis(i, extent, role))
    if sum(axis.role == "n" for axis in axes) != 1:
        return NotApplicable("more than one n axis")
    func = sch.mod["main"]
    return Contraction(
        tuple(axes),
        _operand(func, block, first, axes_of),
        _operand(func, block, second, axes_of),
        str(store.buffer.dtype),
        per_group,
    )


def group_size(load: Any, column: Any) -> int:
    """g where the load's innermost index is `column // g * K + k` and no other index has the column; else 0."""
    *others, index = load.indices
    if column in variables(others) or not isinstance(index, tirx.Add):
        return 0
    for group, k in ((index.a, index.b), (index.b, index.a)):
        if isinstance(group, tirx.Mul) and isinstance(group.b, tirx.IntImm):
            group = group.a
        if isinstance(group, tirx.FloorDiv) and group.a.same_as(column) and isinstance(group.b, tirx.IntImm):
            return 0 if column in variables(k) else int(group.b)
    return 0


def window(sch: Schedule, block_rv: Any) -> Window | NotApplicable:
    """The anchor as a window reduction that keeps the innermost axis, or why it is none."""
    block = sch.get(block_rv)
    if not isinstance(block.body, tirx.BufferStore):
        return NotApplicable("the anchor stores more than one value")
    extents = _extents(block)
    if extents is None:
        return NotApplicable("the anchor has symbolic extents")
    store = block.body
    axes_of = {iv.var: i for i, iv in enumerate(block.iter_vars)}
    if not store.indices:
        return NotApplicable("the output is a scalar")
    last = store.indices[-1]
    if last not in axes_of:
        return NotApplicable("the innermost output index is no axis")
    unit = {iv.var for iv, extent in zip(block.iter_vars, extents, strict=True) if extent == 1}
    to_pack = []
    for load in loads(store.value):
        if load.source.same_as(store.buffer) or not any(last in variables(i) for i in load.indices):
            continue
        if _is_var_plus_units(load.indices[-1], last, unit):
            continue
        operand = _operand(sch.mod["main"], block, load, axes_of)
        if not operand.is_constant or -1 in operand.axes:
            return NotApplicable("an operand is not contiguous along the innermost output axis")
        to_pack.append(operand)
    axes = tuple(
        Axis(i, extent, "k" if int(iv.iter_type) == tirx.IterVar.CommReduce else "n" if iv.var.same_as(last) else "m")
        for i, (iv, extent) in enumerate(zip(block.iter_vars, extents, strict=True))
    )
    sources = [load.source for load in loads(store.value) if not load.source.same_as(store.buffer)]
    params = sch.mod["main"].params
    is_padded = not all(any(source.same_as(param) for param in params) for source in sources)
    is_tabled = any(loads(index) for load in loads(store.value) for index in load.indices)
    return Window(axes, str(store.buffer.dtype), tuple(to_pack), is_padded, is_tabled)


def columns(sch: Schedule, reductions: list[Any]) -> Columns | NotApplicable:
    """The reductions as ones that keep the innermost axis, or why they are none. The longest ones decide."""
    extents = {block: _extents(sch.get(block)) for block in reductions}
    if any(found is None for found in extents.values()):
        return NotApplicable("symbolic extents")
    longest = max(prod(found or ()) for found in extents.values())
    group = 1
    result = None
    for block_rv, found in extents.items():
        block = sch.get(block_rv)
        kept = [iv.var for iv in block.iter_vars if int(iv.iter_type) == tirx.IterVar.DataPar]
        indices = block.writes[0].region
        if not kept or not indices or not indices[-1].min.same_as(kept[-1]):
            return NotApplicable("a reduction's innermost axis is not kept")
        sizes = {iv.var: extent for iv, extent in zip(block.iter_vars, found or (), strict=True)}
        spatial = prod(sizes[var] for var in kept)
        if prod(found or ()) < longest:
            if sizes[kept[-1]] > 0 and result is not None and result.columns % sizes[kept[-1]] == 0:
                group = max(group, result.columns // sizes[kept[-1]])
            continue
        for region in block.reads:
            if len(region.region) and not _is_var_plus_units(
                region.region[-1].min, kept[-1], {var for var, extent in sizes.items() if extent == 1}
            ):
                return NotApplicable("an operand is not contiguous along the innermost kept axis")
        columns = sizes[kept[-1]]
        result = Columns(spatial // columns, columns, longest // spatial, 1)
    return replace(result, group=group) if result is not None else NotApplicable("no reduction")


def _is_var_plus_units(index: Any, var: Any, unit: set[Any]) -> bool:
    """Whether `index` is `var`, or `var` plus axes of extent one."""
    if isinstance(index, tirx.Add):
        sides = (index.a, index.b)
        return any(one.same_as(var) and variables(other) <= unit for one, other in (sides, sides[::-1]))
    return bool(index.same_as(var))


def _extents(block: Any) -> list[int] | None:
    extents = [iv.dom.extent for iv in block.iter_vars]
    return [int(e) for e in extents] if all(isinstance(e, tirx.IntImm) for e in extents) else None


def _added_product(block: Any) -> tuple[Any, Any] | None:
    """The two loads of `C[...] = C[...] + cast(A[...]) * cast(B[...])`, or None."""
    store = block.body
    value = store.value
    if not isinstance(value, tirx.Add) or not is_load_of(value.a, store.buffer):
        return None
    product = value.b
    if isinstance(product, tirx.Cast):
        product = product.value
    if not isinstance(product, tirx.Mul):
        return None
    found = [_single_load(side) for side in (product.a, product.b)]
    if found[0] is None or found[1] is None:
        return None
    return found[0], found[1]


def _single_load(expr: Any) -> Any | None:
    while isinstance(expr, tirx.Cast):
        expr = expr.value
    return expr if isinstance(expr, ir.TensorLoad) else None


def is_same(x: Any, y: Any) -> bool:
    """Whether two expressions, or lists of them, are equal over the same variables."""
    return bool(tvm_ffi.structural_equal(x, y, map_free_vars=False))


def conjuncts(condition: Any) -> list[Any]:
    """The conditions of which `condition` wants all."""
    if isinstance(condition, tirx.And):
        return [*conjuncts(condition.a), *conjuncts(condition.b)]
    return [condition]


def is_load_of(expr: Any, buffer: Any) -> bool:
    return isinstance(expr, ir.TensorLoad) and expr.source.same_as(buffer)


def _operand(func: Any, block: Any, load: Any, axes_of: dict[Any, int]) -> Operand:
    read = next(i for i, region in enumerate(block.reads) if region.source.same_as(load.source))
    param = next((i for i, p in enumerate(func.params) if p.same_as(load.source)), -1)
    constants = {int(i) for i in func.attrs.get("layout_free_buffers", ())}
    return Operand(
        read=read,
        shape=tuple(int(d) for d in load.source.shape),
        dtype=str(load.source.dtype),
        axes=tuple(axes_of.get(index, -1) if isinstance(index, ir.Var) else -1 for index in load.indices),
        windows=tuple(_window_of(index, block, axes_of) for index in load.indices),
        param=param,
        is_constant=param in constants,
    )


def _window_of(index: Any, block: Any, axes_of: dict[Any, int]) -> tuple[int, int, int, int] | None:
    """`h * stride + kh * dilation` as (axis h, stride, axis kh, dilation), h spatial and kh reduced."""
    if not isinstance(index, tirx.Add):
        return None
    terms = [_scaled(side, axes_of) for side in (index.a, index.b)]
    if terms[0] is None or terms[1] is None:
        return None
    kinds = [int(block.iter_vars[axis].iter_type) for axis, _ in (terms[0], terms[1])]
    if kinds == [tirx.IterVar.CommReduce, tirx.IterVar.DataPar]:
        terms.reverse()
    elif kinds != [tirx.IterVar.DataPar, tirx.IterVar.CommReduce]:
        return None
    (h, stride), (kh, dilation) = terms[0], terms[1]
    return h, stride, kh, dilation


def _scaled(expr: Any, axes_of: dict[Any, int]) -> tuple[int, int] | None:
    """`axis * constant` as (axis, constant)."""
    factor = 1
    if isinstance(expr, tirx.Mul) and isinstance(expr.b, tirx.IntImm):
        expr, factor = expr.a, int(expr.b)
    return (axes_of[expr], factor) if isinstance(expr, ir.Var) and expr in axes_of else None


def winograd_obstacle(info: Contraction) -> str:
    """Why Winograd's algorithm does not apply; empty for a 3x3 convolution of stride 1, NHWC x constant OHWI.

    Operands of bfloat16 are widened: transforms and products are in float32.
    """
    if info.acc_dtype != "float32" or (info.a.dtype, info.b.dtype) not in (("float32",) * 2, ("bfloat16",) * 2):
        return "not in float32"
    if len(info.axes) != 7 or [axis.role for axis in info.axes] != ["m", "m", "m", "n", "k", "k", "k"]:
        return "not a 2-D convolution"
    if info.a.windows[1:3] != ((1, 1, 4, 1), (2, 1, 5, 1)) or info.a.axes != (0, -1, -1, 6):
        return "not an NHWC convolution of stride and dilation 1"
    if info.axes[4].extent != 3 or info.axes[5].extent != 3 or info.b.axes != (3, 4, 5, 6):
        return "the window is not 3x3"
    return "" if info.b.is_constant else "the weights are no constant"

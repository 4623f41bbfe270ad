"""A PrimFunc as loop nests round sblocks: its stages one by one, and a function made of such stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.sym import Analyzer
from tvm.tirx import PrimFunc

from subtune.tir.expressions import is_same, loads
from subtune.tir.substitute import substitute


def root_stages(func: PrimFunc) -> list[Any]:
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


def extents_of(block: Any) -> list[int] | None:
    """Of a block's axes; None where one is symbolic."""
    extents = [iv.dom.extent for iv in block.iter_vars]
    return [int(e) for e in extents] if all(isinstance(e, tirx.IntImm) for e in extents) else None


def with_stages(
    func: PrimFunc, stages: Sequence[Any], buffers: Sequence[Any], params: Sequence[Any] | None = None
) -> PrimFunc:
    """`func` whose root block holds `stages` (see `root_stages`) and allocates `buffers`, and nothing else.

    Args:
        params: in place of its own.
    """
    root = func.body.block
    block = SBlock(
        root.iter_vars, root.reads, root.writes, root.name_hint,
        tirx.SeqStmt(list(stages)) if len(stages) > 1 else stages[0],
        root.init, list(buffers), root.match_buffers, root.annotations,
    )  # fmt: skip
    own = func.params if params is None else list(params)
    return tirx.PrimFunc(own, SBlockRealize([], True, block), func.ret_type, func.attrs)


def nest(name: str, iter_vars: Any, extents: Mapping[int, int], body: Any, init: Any | None) -> Any:
    """A perfect loop nest round one sblock, its access regions read off `body`."""
    fresh = [
        tirx.IterVar(
            ir.Range(tirx.const(0, "int64"), tirx.const(extents[i], "int64") if i in extents else iv.dom.extent),
            iv.var,
            int(iv.iter_type),
        )
        for i, iv in enumerate(iter_vars)
    ]
    loops = [tirx.Var(f"i{i}", "int64") for i in range(len(fresh))]
    regions = [_point(load.source, load.indices) for load in loads(body.value) if not load.source.same_as(body.buffer)]
    block = SBlock(fresh, _unique(regions), [_point(body.buffer, body.indices)], name, body, init)
    stmt: tirx.Stmt = SBlockRealize(loops, True, block)
    for var, iv in zip(reversed(loops), reversed(fresh), strict=True):
        stmt = tirx.For(var, tirx.const(0, "int64"), iv.dom.extent, tirx.ForKind.SERIAL, stmt)
    return stmt


Moved = Callable[[Any, Any, Callable[[Any], Any]], tuple[Any, Any]]
"""Buffer and indices of an access -> where it goes; the third argument gives an index in terms of the new axes."""


def with_axes(block: Any, axes: Sequence[Any], values: Mapping[Any, Any], moved: Moved) -> Any:
    """The stage of `block`, an element at a time, over other `axes`.

    Args:
        values: of the block's own axes, by variable, in terms of the new ones.
        moved: what becomes of each access.
    """
    analyzer = Analyzer()
    for iv in axes:
        analyzer.bind(iv.var, iv.dom)

    def here(index: Any) -> Any:
        return analyzer.simplify(substitute(index, values))

    def load(one: ir.TensorLoad) -> Any:
        return tirx.BufferLoad(*moved(one.source, list(one.indices), here))

    def stored(store: Any, value: Any) -> Any:
        buffer, indices = moved(store.buffer, list(store.indices), here)
        return tirx.BufferStore(buffer, value, indices)

    value = substitute(tvm_ffi.structural_map(block.body.value, (ir.TensorLoad, load)), values)
    init = stored(block.init, block.init.value) if block.init is not None else None
    return nest(block.name_hint, axes, {}, stored(block.body, value), init)


def written(name: str, body: Any, buffers: Sequence[Any] = ()) -> SBlockRealize:
    """A written-out body as a stage of its own; what it reads and writes is taken from its loads and stores.

    Args:
        buffers: its own ones.
    """
    stored: list[Any] = []
    own = list(buffers)
    tvm_ffi.structural_walk(body, (tirx.BufferStore, lambda one: stored.append(one.buffer)))
    tvm_ffi.structural_walk(body, (SBlock, lambda block: own.extend(block.alloc_buffers)))
    regions = [
        [
            tirx.BufferRegion(one, [ir.Range(tirx.const(0, "int64"), extent) for extent in one.shape])
            for one in _distinct(some)
            if not any(one.same_as(b) for b in own)
        ]
        for some in ([one.source for one in loads(body)], stored)
    ]
    return SBlockRealize([], True, SBlock([], *regions, name, body, None, list(buffers)))


def _distinct(buffers: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for one in buffers:
        if not any(one.same_as(other) for other in found):
            found.append(one)
    return found


def _point(buffer: Any, indices: Any) -> Any:
    """The one element that `indices` name, or the few, where one of them is a ramp."""
    first = [i.base if isinstance(i, tirx.Ramp) else i for i in indices]
    extents = [int(i.lanes) if isinstance(i, tirx.Ramp) else 1 for i in indices]
    ranges = [ir.Range.from_min_extent(i, tirx.const(n, "int64")) for i, n in zip(first, extents, strict=True)]
    return tirx.BufferRegion(buffer, ranges)


def _unique(regions: list[Any]) -> list[Any]:
    kept: list[Any] = []
    for region in regions:
        if not any(region.source.same_as(other.source) and is_same(region, other) for other in kept):
            kept.append(region)
    return kept


def is_costly(node: Any) -> bool:
    """Whether a block calls a function, such as exp."""
    found: list[Any] = []
    tvm_ffi.structural_walk(node.body, (ir.Call, found.append), order="post")
    return bool(found)

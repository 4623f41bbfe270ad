"""The default schedule of functions of several products, attention and perceptrons in one function, as a dlight rule.

Dlight's rules take one product; its fallback computes a softmax's exponentials again for every column of the second
product. Here every stage is a kernel of its own: products in tiles, whose operands are computed while they are copied
to shared memory, reductions of rows by a warp each, the rest element by element. Any type: references are in float64.
"""

from __future__ import annotations

from typing import Any

_ROWS = 64
_STEP = 16  # of k, that is in shared memory at a time
_SIDE = 16  # threads along either side of a tile
_LANES, _WARPS = 32, 8
_THREADS = 256
_LEAST = 16
"""Rows and columns below which a tile would be empty for the most part."""


class Staged:
    """See the module. Applies to functions of at least two products."""

    def apply(self, func: Any, target: Any, _tunable: bool) -> Any:
        from tvm import s_tir
        from tvm.s_tir import dlight

        sch = s_tir.Schedule(func)
        infos = dlight.normalize_prim_func(sch)
        if infos is None:
            return None
        products = [info.block_rv for info in infos if _is_product(sch.get(info.block_rv))]
        if len(products) < 2:
            return None
        tiled = [block for block in products if _has_tiles(sch, block)]
        copies = {sch.get(block).name_hint: _copied(sch, block) for block in tiled}
        for info in dlight.try_inline(sch, infos):
            block, kinds = info.block_rv, info.dom_kind()
            name = sch.get(block).name_hint
            if name in copies:
                _tile(sch, block, copies[name])
            elif "R" in kinds:
                _reduce(sch, block, kinds)
            else:
                _bind_all(sch, sch.get_loops(block))
        return sch


def _is_product(stmt: Any) -> bool:
    """C[...] += a[...] * b[...] along one axis."""
    from tvm import tirx

    value = getattr(stmt.body, "value", None)
    if not isinstance(value, tirx.Add) or not isinstance(value.b, tirx.Mul):
        return False
    kinds = [int(var.iter_type) for var in stmt.iter_vars]
    return len(kinds) >= 3 and kinds == [0] * (len(kinds) - 1) + [2] and len(_operands(stmt)) == 2


def _has_tiles(sch: Any, block: Any) -> bool:
    """Whether a product has enough rows and columns. One without has a warp for each of its sums."""
    stmt, loops = sch.get(block), sch.get_loops(block)
    if len(loops) != len(stmt.iter_vars):
        return False
    extents = [getattr(sch.get(loop).extent, "value", 0) for loop in loops]
    rows = _row_axis(stmt, extents)
    return rows is not None and min(extents[-2], extents[rows]) >= _LEAST


def _row_axis(stmt: Any, extents: list[int]) -> int | None:
    """Which axis the rows of a tile are along, of those before the columns that one operand alone is read by: the last
    one, or the longest; images, where they have few pixels side by side. Heads of one row each have none.
    """
    last = len(extents) - 3
    axes = [axis.var for axis in stmt.iter_vars]
    indexed = [_indexed(stmt.reads[i], axes) for i in _operands(stmt)]
    rows = [i for i in range(last + 1) if sum(i in axes_of for axes_of in indexed) == 1]
    if last in rows and extents[last] >= _LEAST:
        return last
    return max(rows, key=extents.__getitem__, default=None)


def _indexed(region: Any, axes: list[Any]) -> set[int]:
    """Those of `axes` that say where a block reads a buffer."""
    from subtune.tir.expressions import variables

    found = variables([dim.min for dim in region.region])
    return {i for i, axis in enumerate(axes) if axis in found}


def _operands(stmt: Any) -> list[int]:
    """Which of the buffers that are read are not the sum's own."""
    return [i for i, region in enumerate(stmt.reads) if not region.source.same_as(stmt.writes[0].source)]


def _copied(sch: Any, block: Any) -> list[Any]:
    """The operands in shared memory: what is elementwise before them is computed there, once."""
    return [sch.cache_read(block, index, "shared") for index in _operands(sch.get(block))]


def _tile(sch: Any, block: Any, copies: list[Any]) -> None:
    sums = sch.cache_write(block, 0, "local")
    *outer, n, k = sch.get_loops(block)
    rows = _row_axis(sch.get(block), [int(sch.get(loop).extent) for loop in (*outer, n, k)])
    assert rows is not None, "_has_tiles"
    m = outer.pop(rows)
    m0, m1, mi = sch.split(m, [None, _SIDE, _ROWS // _SIDE])
    n0, n1, ni = sch.split(n, [None, _SIDE, _ROWS // _SIDE])
    k0, k1 = sch.split(k, [None, _STEP])
    sch.reorder(*outer, m0, n0, m1, n1, k0, k1, mi, ni)
    sch.bind(sch.fuse(*outer, m0, n0), "blockIdx.x")
    thread = sch.fuse(m1, n1)
    sch.bind(thread, "threadIdx.x")
    sch.reverse_compute_at(sums, thread)
    for copy in copies:
        sch.compute_at(copy, k0)
        inner = sch.fuse(*sch.get_loops(copy)[3:])  # the grid, the threads, k0
        sch.bind(sch.split(inner, [None, _THREADS])[1], "threadIdx.x")
    sch.decompose_reduction(block, k0)


def _reduce(sch: Any, block: Any, kinds: str) -> None:
    """A warp for each row."""
    loops = sch.get_loops(block)
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "S"] or [sch.add_unit_loop(block)]
    reduced = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "R"]
    sch.reorder(*spatial, *reduced)
    rows, warp = sch.split(sch.fuse(*spatial), [None, _WARPS])
    lane = sch.split(sch.fuse(*reduced), [None, _LANES])[1]
    sch.bind(rows, "blockIdx.x")
    sch.bind(warp, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")


def _bind_all(sch: Any, loops: list[Any]) -> None:
    """A thread for each element."""
    grid, thread = sch.split(sch.fuse(*loops), [None, _THREADS])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")

"""Writes the loops round one tile, and the tile: vectors of an operand, turned in registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock, SBlockRealize

from subtune.core.kernel import NotApplicable
from subtune.core.numerics import HALVES
from subtune.patterns.elementwise import Access, TransposedAccess, access_of
from subtune.tir.shuffle import interleaved, lanes_of, taken_apart, turned
from subtune.tir.statements import sequence

_MAX_NARROW = 8


class TileWriter:
    """Writes the loops round one tile, and the tile."""

    def __init__(self, block: Any, info: TransposedAccess, lanes: int, is_serial: bool) -> None:
        self._block, self.is_serial = block, is_serial
        self.info, self.lanes = info, lanes
        self.start: dict[int, Any] = {}
        self._axes = {iv.var: i for i, iv in enumerate(block.iter_vars)}

    def body(self, inner_axis: str) -> Any | NotApplicable:
        a, b, extents, lanes = self.info.a, self.info.b, self.info.extents, self.lanes
        is_copy = isinstance(self._block.body.value, ir.TensorLoad)
        widths = {axis: min(lanes, extents[axis]) for axis in (a, b)}
        narrow = [axis for axis in (a, b) if widths[axis] < lanes]
        if len(narrow) == 2:
            return NotApplicable("both axes are shorter than a vector")
        if narrow and (not is_copy or widths[narrow[0]] > _MAX_NARROW or not self._adjoin(narrow[0])):
            return NotApplicable("an axis is shorter than a vector")
        first, second = (b, a) if inner_axis == "a" else (a, b)
        loops = [(group, extents[group]) for group in range(len(extents)) if group not in (a, b)]
        tiles = {axis: -(-extents[axis] // lanes) for axis in (a, b)}
        outer = tirx.Var("outer", "int64")
        rest: Any = outer
        count = 1
        for group, extent in [*reversed([*loops, (first, tiles[first])])]:
            at = rest % extent if group != (loops[0][0] if loops else first) else rest
            self.start[group] = at if group != first else self._tile_start(first, at)
            rest = tirx.floordiv(rest, extent)
            count *= extent
        inner = tirx.Var("inner", "int64")
        self.start[second] = self._tile_start(second, inner)
        local, body = self._narrow_tile(narrow[0]) if narrow else self.tile(self._in_place)
        row = tirx.For(inner, const(0), const(tiles[second]), tirx.ForKind.SERIAL, self.realize("tile", body, local))
        return tirx.For(outer, const(0), const(count), self.outer_kind, row)

    @property
    def outer_kind(self) -> Any:
        return tirx.ForKind.SERIAL if self.is_serial else tirx.ForKind.PARALLEL

    def realize(self, name: str, body: list[Any], buffers: list[Any]) -> SBlockRealize:
        regions = [[tirx.BufferRegion(r.source, [ir.Range(const(0), d) for d in r.source.shape]) for r in regions]
                   for regions in (self._block.reads, self._block.writes)]  # fmt: skip
        return SBlockRealize([], True, SBlock([], *regions, name, sequence(*body), None, buffers))

    def transposed_loads(self) -> list[tuple[Any, Access]]:
        found: list[Any] = []
        tvm_ffi.structural_walk(self._block.body.value, (ir.TensorLoad, found.append), order="post")
        loads = [(load, access_of(load, self._axes)) for load in found]
        return [(load, access) for load, access in loads if access is not None and self._is_transposed(access)]

    def _tile_start(self, group: int, at: Any) -> Any:
        """Where the tile begins: the last one may overlap the one before it."""
        extent, lanes = self.info.extents[group], self.lanes
        if extent <= lanes:
            return const(0)
        start = at * lanes
        return start if extent % lanes == 0 else tirx.Min(start, const(extent - lanes))

    def _adjoin(self, narrow: int) -> bool:
        """Whether the narrow axis follows the other one directly where it is the contiguous one."""
        a, b = self.info.a, self.info.b
        if narrow == a:
            return b == a - 1
        access = access_of(self._block.body.value, self._axes)
        assert access is not None, "transposed_access() has read it"
        shape = self._block.body.value.source.shape
        dims = [dim for dim, extent in enumerate(shape) if int(extent) != 1]
        groups = {axis: i for i, group in enumerate(self.info.groups) for axis in group}
        order = [groups.get(access.axes[dim], -1) for dim in dims]
        whole = access.offsets[dims[-1]] == 0 and int(shape[dims[-1]]) == self.info.extents[b]
        return whole and len(order) > 1 and order[-2:] == [a, b]

    def indices(self, access: Access, moved: dict[int, Any]) -> list[Any]:
        """The load's indices at the tile, `moved` added to the starts of groups (a ramp, or a number)."""
        found: list[Any] = []
        for axis, offset in zip(access.axes, access.offsets, strict=True):
            index: Any = const(0)
            for group, axes in enumerate(self.info.groups):
                real = [i for i in axes if int(self._block.iter_vars[i].dom.extent) != 1]
                if axis == real[-1]:  # a merged group runs along its last dim, past that dim's end
                    index = self.start[group]
                    shift = moved.get(group)
                    if isinstance(shift, int):
                        index = index + const(shift + offset)
                    elif shift is not None:
                        index = tirx.Ramp(index + const(offset), const(1), shift[0])
                    else:
                        index = index + const(offset)
                    break
            else:
                index = const(offset)
            found.append(index)
        return found

    def _is_transposed(self, access: Access) -> bool:
        groups = {axis: i for i, group in enumerate(self.info.groups) for axis in group}
        used = [groups[axis] for axis in access.axes if axis in groups]
        return self.info.a in used and used[-1] != self.info.a

    def _out_access(self) -> Access:
        return Access(tuple(range(len(self._axes))), (0,) * len(self._axes))

    def _in_place(self, load: ir.TensorLoad, access: Access) -> list[Any]:
        """The vectors of a square tile, each along `b`."""
        moved = ({self.info.a: i, self.info.b: (self.lanes,)} for i in range(self.lanes))
        return [bits(tirx.BufferLoad(load.source, self.indices(access, each))) for each in moved]

    def tile(self, read: Callable[[Any, Access], list[Any]]) -> tuple[list[Any], list[Any]]:
        """Buffers and statements of one tile; `read` gives of a load the vectors to be turned, one for each column."""
        a, b, lanes = self.info.a, self.info.b, self.lanes
        store, out = self._block.body, self._out_access()
        stmts: list[Any] = []
        columns: dict[Any, list[Any]] = {}
        for number, (load, access) in enumerate(self.transposed_loads()):
            rows = []
            for i, value in enumerate(read(load, access)):
                rows.append(tirx.Var(f"x{number}_{i}", f"{moved_as(load.source)}x{lanes}"))
                stmts.append(tirx.Bind(rows[-1], value))
            rounds, columns[load] = turned(rows, f"x{number}_")
            stmts += rounds
        if isinstance(store.value, ir.TensorLoad):
            for j, vector in enumerate(columns[store.value]):
                value = typed(vector, store.buffer)
                stmts.append(tirx.BufferStore(store.buffer, value, self.indices(out, {b: j, a: (lanes,)})))
            return [], stmts
        places: dict[Any, Any] = {}
        for number, (load, vectors) in enumerate(columns.items()):
            size = [const(len(vectors)), const(lanes)]
            places[load] = tirx.decl_buffer(size, moved_as(load.source), f"tile{number}", scope="local")
            for j, vector in enumerate(vectors):
                stmts.append(tirx.BufferStore(places[load], vector, [const(j), tirx.Ramp(const(0), const(1), lanes)]))
        for j in range(len(vectors)):
            at = tirx.Var(f"j{j}", "int64")

            def place(load: ir.TensorLoad, j: int = j, at: Any = at) -> Any:
                if load in places:
                    return typed(tirx.BufferLoad(places[load], [const(j), at]), load.source)
                access = access_of(load, self._axes)
                assert access is not None, "transposed_access() has read it"
                return tirx.BufferLoad(load.source, self._shifted(access, j, at))

            value = tvm_ffi.structural_map(store.value, (ir.TensorLoad, place))
            row = tirx.BufferStore(store.buffer, value, self._shifted(out, j, at))
            stmts.append(tirx.For(at, const(0), const(lanes), tirx.ForKind.VECTORIZED, row))
        return list(places.values()), stmts

    def _shifted(self, access: Access, j: int, at: Any) -> list[Any]:
        """Indices at row j of the tile and column `at`."""
        start = dict(self.start)
        self.start = {**start, self.info.a: start[self.info.a] + at}
        indices = self.indices(access, {self.info.b: j})
        self.start = start
        return indices

    def _narrow_tile(self, narrow: int) -> tuple[list[Any], list[Any]]:
        """One axis as a whole: `count` vectors in, as many out."""
        a, b, lanes = self.info.a, self.info.b, self.lanes
        store = self._block.body
        access, out = access_of(store.value, self._axes), self._out_access()
        assert access is not None, "transposed_access() has read it"
        count = self.info.extents[narrow]
        vectors, stmts = [], []
        for i in range(count):
            if narrow == a:  # a vector along b for every value of a
                indices = self.indices(access, {a: i, b: (lanes,)})
            else:  # `count` vectors from the run of lanes * count elements
                indices = self._run(access, i)
            var = tirx.Var(f"x{i}", f"{moved_as(store.buffer)}x{lanes}")
            stmts.append(tirx.Bind(var, bits(tirx.BufferLoad(store.value.source, indices))))
            vectors.append(var)
        results = interleaved(vectors) if narrow == a else taken_apart(vectors)
        for i, value in enumerate(results):
            indices = self._run(out, i) if narrow == a else self.indices(out, {b: i, a: (lanes,)})
            stmts.append(tirx.BufferStore(store.buffer, typed(value, store.buffer), indices))
        return [], stmts

    def _run(self, access: Access, i: int) -> list[Any]:
        """Vector i of the run that begins at the tile's start, along the buffer's innermost dim."""
        *others, last = self.indices(access, {})
        return [*others, tirx.Ramp(last + const(i * self.lanes), const(1), self.lanes)]


def moved_as(buffer: Any) -> str:
    """The type in which elements are turned: halves as their bits, of which every processor has vectors."""
    dtype = str(buffer.dtype)
    return "uint16" if dtype in HALVES else dtype


def bits(load: Any) -> Any:
    """What is loaded, as it is turned."""
    wanted = moved_as(load.source)
    if wanted == str(load.source.dtype):
        return load
    lanes = lanes_of(load)
    return tirx.reinterpret(f"{wanted}x{lanes}" if lanes > 1 else wanted, load)


def typed(value: Any, buffer: Any) -> Any:
    """What was turned, as an element of `buffer`."""
    dtype, lanes = str(buffer.dtype), lanes_of(value)
    if moved_as(buffer) == dtype:
        return value
    return tirx.reinterpret(f"{dtype}x{lanes}" if lanes > 1 else dtype, value)


def const(value: int) -> Any:
    return tirx.const(value, "int64")

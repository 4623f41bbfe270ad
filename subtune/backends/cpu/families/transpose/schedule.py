"""Transposes and elementwise subgraphs that read an operand transposed: square tiles, turned in vector registers.

    for outer axes, tiles along one axis (parallel):  for tiles along the other:
      16 vectors of the operand, turned by four rounds of shuffles, make 16 vectors of the output

Loads and stores are whole vectors, so that memory is the limit; loops over scalars issue one element a cycle. The last
tile overlaps its neighbour where the extent is no multiple: it writes the same values. An axis shorter than a vector
(the three channels of an image) is taken as a whole: its vectors are interleaved, or taken apart.

With the knob `rows`, operands that come from memory are read as memory likes it, along their rows:

    for parts of the blocks of rows x lanes^2 elements (parallel):  for blocks:  for tiles of the block:
      ask for a row to come;  a row of the next block -> staged;  staged tile of this block, turned -> output

Lines a power of two apart share a few sets of every cache: tiles read in place evict one another, those of the staged
block, whose rows lie a line further apart, do not.

With `columns` as well, for operands in L3, a block is staged as a whole, and then turned in tiles half as wide:

    for parts of the blocks of rows x columns elements (parallel):  for blocks:
      rows of the block -> staged
      for tiles of lanes x lanes / 2 elements, along the output's rows:  staged tile, turned -> output

Sixteen rows of the output a power of two apart are more than the 12 ways of the set of L1 in which their lines lie:
written along, they evict one another at every vector. Eight stay. And runs of `columns` elements, one row after the
other, are what hardware prefetchers recognise: L3 is so near that asking for a block ahead costs more than it brings.

The function is written, not scheduled: no schedule primitive makes shuffles.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule

from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.loops.prefetch import L1, ask
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload, dtype_bits
from subtune.patterns.elementwise import Access, TransposedAccess, access_of, transposed_access
from subtune.patterns.stages import inline
from subtune.tir.blocks import with_stages
from subtune.tir.shuffle import interleaved, rows_beside, side_by_side, taken_apart, turned
from subtune.tir.statements import named, sequence, serial

_MAX_NARROW = 8


def schedule(workload: Workload, candidate: Candidate, device: CPUModel) -> Kernel | NotApplicable:
    sch = Schedule(workload.func)
    stages = inline(sch)
    if isinstance(stages, NotApplicable):
        return stages
    if stages.anchors or stages.producers or len(stages.outputs) != 1:
        return NotApplicable("not an elementwise workload with one output")
    block = sch.get(stages.outputs[0])
    info = transposed_access(block)
    if isinstance(info, NotApplicable):
        return info
    dtypes = {str(region.source.dtype) for region in (*block.reads, *block.writes)}
    if any(dtype_bits(dtype) != 32 for dtype in dtypes):
        return NotApplicable(f"turns elements of 32 bits, not {', '.join(sorted(dtypes))}")
    writer = _Writer(block, info, device.lanes(), candidate.is_serial)
    rows, columns = (int(candidate.get(knob) or 0) for knob in ("rows", "columns"))
    body = writer.blocks(rows, columns, device.threads) if rows else writer.body(str(candidate["inner"]))
    if isinstance(body, NotApplicable):
        return body
    return Kernel(with_stages(sch.mod["main"], [body], []))


class _Writer:
    """Writes the loops round one tile, and the tile."""

    def __init__(self, block: Any, info: TransposedAccess, lanes: int, is_serial: bool) -> None:
        self._block, self._is_serial = block, is_serial
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
        row = tirx.For(inner, _c(0), _c(tiles[second]), tirx.ForKind.SERIAL, self.realize("tile", body, local))
        return tirx.For(outer, _c(0), _c(count), self.outer_kind, row)

    @property
    def outer_kind(self) -> Any:
        return tirx.ForKind.SERIAL if self._is_serial else tirx.ForKind.PARALLEL

    def realize(self, name: str, body: list[Any], buffers: list[Any]) -> Any:
        regions = [[tirx.BufferRegion(r.source, [ir.Range(_c(0), d) for d in r.source.shape]) for r in regions]
                   for regions in (self._block.reads, self._block.writes)]  # fmt: skip
        return SBlockRealize([], True, SBlock([], *regions, name, sequence(*body), None, buffers))

    def blocks(self, rows: int, columns: int, threads: int) -> Any | NotApplicable:
        """Blocks that are staged: as wholes where `columns` says how wide, else while others are turned."""
        a, b, extents, lanes = self.info.a, self.info.b, self.info.extents, self.lanes
        if columns and (extents[a] < rows or extents[b] < columns or rows % lanes or columns % lanes):
            return NotApplicable(f"no block of {rows} x {columns} elements in whole vectors")
        if min(extents[a], extents[b]) < lanes:
            return NotApplicable("an axis is shorter than a vector")
        parts = 1 if self._is_serial else threads
        if columns:
            return _Blocks(self, rows, columns, 1).one_by_one(parts)
        vectors = min(lanes, 1 << (extents[b] // lanes).bit_length() - 1)
        return _Blocks(self, min(rows, extents[a] // lanes * lanes), vectors * lanes, 2).overlapped(parts)

    def transposed_loads(self) -> list[tuple[Any, Access]]:
        found: list[Any] = []
        tvm_ffi.structural_walk(self._block.body.value, (ir.TensorLoad, found.append), order="post")
        loads = [(load, access_of(load, self._axes)) for load in found]
        return [(load, access) for load, access in loads if access is not None and self._is_transposed(access)]

    def _tile_start(self, group: int, at: Any) -> Any:
        """Where the tile begins: the last one may overlap the one before it."""
        extent, lanes = self.info.extents[group], self.lanes
        if extent <= lanes:
            return _c(0)
        start = at * lanes
        return start if extent % lanes == 0 else tirx.Min(start, _c(extent - lanes))

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
            index: Any = _c(0)
            for group, axes in enumerate(self.info.groups):
                real = [i for i in axes if int(self._block.iter_vars[i].dom.extent) != 1]
                if axis == real[-1]:  # a merged group runs along its last dim, past that dim's end
                    index = self.start[group]
                    shift = moved.get(group)
                    if isinstance(shift, int):
                        index = index + _c(shift + offset)
                    elif shift is not None:
                        index = tirx.Ramp(index + _c(offset), _c(1), shift[0])
                    else:
                        index = index + _c(offset)
                    break
            else:
                index = _c(offset)
            found.append(index)
        return found

    def _is_transposed(self, access: Access) -> bool:
        groups = {axis: i for i, group in enumerate(self.info.groups) for axis in group}
        used = [groups[axis] for axis in access.axes if axis in groups]
        return self.info.a in used and used[-1] != self.info.a

    def _out_access(self) -> Access:
        return Access(tuple(range(len(self._axes))), (0,) * len(self._axes))

    def _in_place(self, load: Any, access: Access) -> list[Any]:
        """The vectors of a square tile, each along `b`."""
        moved = ({self.info.a: i, self.info.b: (self.lanes,)} for i in range(self.lanes))
        return [tirx.BufferLoad(load.source, self.indices(access, each)) for each in moved]

    def tile(self, read: Callable[[Any, Access], list[Any]]) -> tuple[list[Any], list[Any]]:
        """Buffers and statements of one tile; `read` gives of a load the vectors to be turned, one for each column."""
        a, b, lanes = self.info.a, self.info.b, self.lanes
        store, out = self._block.body, self._out_access()
        stmts: list[Any] = []
        columns: dict[Any, list[Any]] = {}
        for number, (load, access) in enumerate(self.transposed_loads()):
            rows = []
            for i, value in enumerate(read(load, access)):
                rows.append(tirx.Var(f"x{number}_{i}", _vector(load.source, lanes)))
                stmts.append(tirx.Bind(rows[-1], value))
            rounds, columns[load] = turned(rows, f"x{number}_")
            stmts += rounds
        if isinstance(store.value, ir.TensorLoad):
            for j, vector in enumerate(columns[store.value]):
                stmts.append(tirx.BufferStore(store.buffer, vector, self.indices(out, {b: j, a: (lanes,)})))
            return [], stmts
        places: dict[Any, Any] = {}
        for number, (load, vectors) in enumerate(columns.items()):
            size = [_c(len(vectors)), _c(lanes)]
            places[load] = tirx.decl_buffer(size, str(load.source.dtype), f"tile{number}", scope="local")
            for j, vector in enumerate(vectors):
                stmts.append(tirx.BufferStore(places[load], vector, [_c(j), tirx.Ramp(_c(0), _c(1), lanes)]))
        for j in range(len(vectors)):
            at = tirx.Var(f"j{j}", "int64")

            def place(load: Any, j: int = j, at: Any = at) -> Any:
                if load in places:
                    return tirx.BufferLoad(places[load], [_c(j), at])
                access = access_of(load, self._axes)
                assert access is not None, "transposed_access() has read it"
                return tirx.BufferLoad(load.source, self._shifted(access, j, at))

            value = tvm_ffi.structural_map(store.value, (ir.TensorLoad, place))
            row = tirx.BufferStore(store.buffer, value, self._shifted(out, j, at))
            stmts.append(tirx.For(at, _c(0), _c(lanes), tirx.ForKind.VECTORIZED, row))
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
            var = tirx.Var(f"x{i}", _vector(store.buffer, lanes))
            stmts.append(tirx.Bind(var, tirx.BufferLoad(store.value.source, indices)))
            vectors.append(var)
        results = interleaved(vectors) if narrow == a else taken_apart(vectors)
        for i, value in enumerate(results):
            indices = self._run(out, i) if narrow == a else self.indices(out, {b: i, a: (lanes,)})
            stmts.append(tirx.BufferStore(store.buffer, value, indices))
        return [], stmts

    def _run(self, access: Access, i: int) -> list[Any]:
        """Vector i of the run that begins at the tile's start, along the buffer's innermost dim."""
        *others, last = self.indices(access, {})
        return [*others, tirx.Ramp(last + _c(i * self.lanes), _c(1), self.lanes)]


class _Blocks:
    """Blocks of the output, rows along `a` and columns along `b`, whose transposed operands are staged a line apart.

    Every part has room for `copies` staged blocks. Those of one part follow one another along the operands' rows.
    """

    def __init__(self, writer: _Writer, rows: int, columns: int, copies: int) -> None:
        info = writer.info
        self._writer, self._rows, self._columns, self._copies = writer, rows, columns, copies
        self._pitch = columns + writer.lanes
        self._sizes = {info.a: rows, info.b: columns}
        self._counts = {group: extent for group, extent in enumerate(info.extents) if group not in self._sizes}
        self._counts |= {group: -(-info.extents[group] // size) for group, size in self._sizes.items()}
        self._loads = writer.transposed_loads()
        self._staged = [tirx.decl_buffer([_c(copies * rows * self._pitch)], str(load.source.dtype), f"staged{i}")
                        for i, (load, _) in enumerate(self._loads)]  # fmt: skip

    def one_by_one(self, parts: int) -> Any:
        """Each is staged as a whole, and then turned in tiles half as wide as a vector."""
        lanes, width = self._writer.lanes, self._writer.lanes // 2

        def body(block: Any) -> Any:
            def turn(down: Any, across: Any) -> Any:
                local, turning = self._turned(block, down, across, width)
                return self._writer.realize("tile", turning, local)

            return sequence(
                serial(self._rows, lambda row: sequence(*self._stage(block, row))),
                serial(self._columns // width, lambda across: serial(
                    self._rows // lanes, lambda down: turn(down * lanes, across * width)
                )),
            )  # fmt: skip

        return self._in_parts(parts, lambda first: [], lambda at: named("block", at(0), body))

    def overlapped(self, parts: int) -> Any:
        """Each is staged while the one before it is turned in square tiles, and asked for while that is staged."""
        lanes = self._writer.lanes
        tiles = self._rows // lanes * self._columns // lanes
        each = self._rows // tiles  # rows that are staged while a tile is turned

        def over_rows(tile: Any, action: Callable[[Any], list[Any]]) -> list[Any]:
            return [stmt for i in range(each) for stmt in action(tile * each + i)]

        def begin(first: Any) -> list[Any]:
            return [serial(tiles, lambda tile: sequence(*over_rows(tile, lambda row: self._stage(first, row))))]

        def body(at: Callable[[int], Any]) -> Any:
            def turn(tile: Any) -> Any:
                staging = over_rows(tile, lambda row: [*self._ask_for(at(2), row), *self._stage(at(1), row)])
                down, across = tile % (self._rows // lanes), tirx.floordiv(tile, self._rows // lanes)
                local, turning = self._turned(at(0), down * lanes, across * lanes, lanes)
                return self._writer.realize("tile", [*staging, *turning], local)

            return serial(tiles, turn)

        return self._in_parts(parts, begin, body)

    def _in_parts(
        self, parts: int, begin: Callable[[Any], list[Any]], body: Callable[[Callable[[int], Any]], Any]
    ) -> Any:
        """As many blocks for every part: `begin(first)`, and for each `body(at)`, `at(i)` the block i behind it.

        Behind the last block comes that one again.
        """
        total = prod(self._counts.values())
        length = -(-total // parts)
        part = tirx.Var("part", "int64")
        first = part * length
        last = tirx.Min(first + (length - 1), _c(total - 1))
        blocks = serial(length, lambda number: body(lambda i: tirx.Min(first + number + i, last)))
        whole = self._writer.realize("blocks", [*begin(first), blocks], self._staged)
        return tirx.For(part, _c(0), _c(-(-total // length)), self._writer.outer_kind, whole)

    def _move_to(self, block: Any, along_a: Any, along_b: Any) -> None:
        info, start = self._writer.info, self._writer.start
        for group, count in reversed(self._counts.items()):
            size, extent = self._sizes.get(group, 1), info.extents[group]
            at = block % count * size
            start[group] = tirx.Min(at, _c(extent - size)) if extent % size else at
            block = tirx.floordiv(block, count)
        start[info.a] += along_a
        start[info.b] += along_b

    def _place(self, block: Any, row: Any, at: Any, lanes: int) -> list[Any]:
        """Where a staged block has the vector of `lanes` elements at `at` of a row."""
        return [tirx.Ramp((block % self._copies * self._rows + row) * self._pitch + at, _c(1), lanes)]

    def _ask_for(self, block: Any, row: Any) -> list[Any]:
        stmts = []
        for load, access in self._loads:
            for at in range(0, self._columns, self._writer.lanes):
                self._move_to(block, row, at)
                stmts.append(ask(load.source, self._writer.indices(access, {}), L1))
        return stmts

    def _stage(self, block: Any, row: Any) -> list[Any]:
        lanes, b = self._writer.lanes, self._writer.info.b
        stmts = []
        for buffer, (load, access) in zip(self._staged, self._loads, strict=True):
            for at in range(0, self._columns, lanes):
                self._move_to(block, row, at)
                value = tirx.BufferLoad(load.source, self._writer.indices(access, {b: (lanes,)}))
                stmts.append(tirx.BufferStore(buffer, value, self._place(block, row, at, lanes)))
        return stmts

    def _turned(self, block: Any, down: Any, across: Any, width: int) -> tuple[list[Any], list[Any]]:
        """Buffers and statements of a tile of a staged block, as many columns wide."""
        lanes = self._writer.lanes
        self._move_to(block, down, across)
        buffers = {load: buffer for buffer, (load, _) in zip(self._staged, self._loads, strict=True)}

        def read(load: Any, access: Access) -> list[Any]:
            def of_row(row: int) -> Any:
                return tirx.BufferLoad(buffers[load], self._place(block, down + row, across, width))

            return [side_by_side([of_row(row) for row in rows_beside(i, width, lanes)]) for i in range(width)]

        return self._writer.tile(read)


def _vector(buffer: Any, lanes: int) -> str:
    return f"{buffer.dtype}x{lanes}"


def _c(value: int) -> Any:
    return tirx.const(value, "int64")

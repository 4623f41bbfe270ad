"""Transposes and elementwise subgraphs that read an operand crosswise: square tiles, turned in vector registers.

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

The function is written, not scheduled: no schedule primitive makes shuffles.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule

from subtune.candidate import Candidate
from subtune.devices.cpu import CPUModel
from subtune.forms.movement import Access, Crosswise, access_of, crosswise
from subtune.forms.stages import inline, with_stages
from subtune.kernel import Kernel, NotApplicable
from subtune.templates.prefetch import L1, ask
from subtune.templates.shuffle import interleaved, taken_apart, turned
from subtune.templates.statements import serial
from subtune.workload import Workload, dtype_bits

_MAX_NARROW = 8


def schedule(workload: Workload, candidate: Candidate, device: CPUModel) -> Kernel | NotApplicable:
    sch = Schedule(workload.func)
    stages = inline(sch)
    if isinstance(stages, NotApplicable):
        return stages
    if stages.anchors or stages.producers or len(stages.outputs) != 1:
        return NotApplicable("not an elementwise workload with one output")
    block = sch.get(stages.outputs[0])
    info = crosswise(block)
    if isinstance(info, NotApplicable):
        return info
    dtypes = {str(region.source.dtype) for region in (*block.reads, *block.writes)}
    if any(dtype_bits(dtype) != 32 for dtype in dtypes):
        return NotApplicable(f"turns elements of 32 bits, not {', '.join(sorted(dtypes))}")
    writer = _Writer(block, info, device.lanes(), candidate.is_serial)
    rows = candidate.get("rows")
    body = writer.blocks(int(rows), device.threads) if rows else writer.body(str(candidate["inner"]))
    if isinstance(body, NotApplicable):
        return body
    return Kernel(with_stages(sch.mod["main"], [body], []))


class _Writer:
    """Writes the loops round one tile, and the tile."""

    def __init__(self, block: Any, info: Crosswise, lanes: int, is_serial: bool) -> None:
        self._block, self._info, self._lanes, self._is_serial = block, info, lanes, is_serial
        self._axes = {iv.var: i for i, iv in enumerate(block.iter_vars)}
        self._start: dict[int, Any] = {}
        self._staged: dict[Any, list[Any]] = {}

    def body(self, inner_axis: str) -> Any | NotApplicable:
        a, b, extents, lanes = self._info.a, self._info.b, self._info.extents, self._lanes
        value = self._block.body.value
        is_copy = isinstance(value, ir.TensorLoad)
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
            self._start[group] = at if group != first else self._tile_start(first, at)
            rest = tirx.floordiv(rest, extent)
            count *= extent
        inner = tirx.Var("inner", "int64")
        self._start[second] = self._tile_start(second, inner)
        stmts = self._narrow_tile(narrow[0]) if narrow else self._tile(is_copy)
        local, body = stmts
        row = tirx.For(inner, _c(0), _c(tiles[second]), tirx.ForKind.SERIAL, self._realize("tile", body, local))
        return tirx.For(outer, _c(0), _c(count), self._outer_kind, row)

    @property
    def _outer_kind(self) -> Any:
        return tirx.ForKind.SERIAL if self._is_serial else tirx.ForKind.PARALLEL

    def _realize(self, name: str, body: list[Any], buffers: list[Any]) -> Any:
        regions = [[tirx.BufferRegion(r.source, [ir.Range(_c(0), d) for d in r.source.shape]) for r in regions]
                   for regions in (self._block.reads, self._block.writes)]  # fmt: skip
        return SBlockRealize([], True, SBlock([], *regions, name, tirx.SeqStmt(body), None, buffers))

    def blocks(self, rows: int, threads: int) -> Any | NotApplicable:
        """Block after block, each staged while the one before it is turned, and asked for while that is staged."""
        a, b, extents, lanes = self._info.a, self._info.b, self._info.extents, self._lanes
        if min(extents[a], extents[b]) < lanes:
            return NotApplicable("an axis is shorter than a vector")
        vectors = min(lanes, 1 << (extents[b] // lanes).bit_length() - 1)
        sizes = {a: min(rows, extents[a] // lanes * lanes), b: vectors * lanes}
        tiles = sizes[a] // lanes * vectors
        each = sizes[a] // tiles  # rows that are staged while a tile is turned
        counts = {group: extent for group, extent in enumerate(extents) if group not in sizes}
        counts |= {group: -(-extents[group] // size) for group, size in sizes.items()}
        total = prod(counts.values())
        length = -(-total // (1 if self._is_serial else threads))  # blocks of a part
        parts = -(-total // length)
        part = tirx.Var("part", "int64")
        number = tirx.Var("number", "int64") if length > 1 else _c(0)
        first = part * length
        last = tirx.Min(first + (length - 1), _c(total - 1))
        loads, pitch = self._crosswise_loads(), sizes[b] + lanes
        staged = [tirx.decl_buffer([_c(2 * sizes[a] * pitch)], str(load.source.dtype), f"staged{i}")
                  for i, (load, _) in enumerate(loads)]  # fmt: skip

        def move_to(block: Any, along_a: Any, along_b: Any) -> None:
            for group, count in reversed(counts.items()):
                size = sizes.get(group, 1)
                at = block % count * size
                self._start[group] = tirx.Min(at, _c(extents[group] - size)) if extents[group] % size else at
                block = tirx.floordiv(block, count)
            self._start[a] += along_a
            self._start[b] += along_b

        def place(block: Any, row: Any, at: Any) -> list[Any]:
            return [tirx.Ramp((block % 2 * sizes[a] + row) * pitch + at, _c(1), lanes)]

        def ask_for(block: Any, row: Any) -> list[Any]:
            stmts = []
            for load, access in loads:
                for at in range(0, sizes[b], lanes):
                    move_to(block, row, at)
                    stmts.append(ask(load.source, self._indices(access, {}), L1))
            return stmts

        def stage(block: Any, row: Any) -> list[Any]:
            stmts = []
            for buffer, (load, access) in zip(staged, loads, strict=True):
                for at in range(0, sizes[b], lanes):
                    move_to(block, row, at)
                    value = tirx.BufferLoad(load.source, self._indices(access, {b: (lanes,)}))
                    stmts.append(tirx.BufferStore(buffer, value, place(block, row, at)))
            return stmts

        def over_rows(tile: Any, action: Callable[[Any], list[Any]]) -> list[Any]:
            return [stmt for i in range(each) for stmt in action(tile * each + i)]

        # behind the last block comes that one again
        now, following, ahead = (tirx.Min(first + number + i, last) for i in range(3))

        def turn(tile: Any) -> Any:
            staging = over_rows(tile, lambda row: [*ask_for(ahead, row), *stage(following, row)])
            down = tile % (sizes[a] // lanes) * lanes
            across = tirx.floordiv(tile, sizes[a] // lanes) * lanes
            move_to(now, down, across)
            for buffer, (load, _) in zip(staged, loads, strict=True):
                self._staged[load] = [tirx.BufferLoad(buffer, place(now, down + i, across)) for i in range(lanes)]
            local, turning = self._tile(isinstance(self._block.body.value, ir.TensorLoad))
            return self._realize("tile", [*staging, *turning], local)

        begin = serial(tiles, lambda tile: tirx.SeqStmt(over_rows(tile, lambda row: stage(first, row))))
        blocks = serial(tiles, turn)
        if length > 1:
            blocks = tirx.For(number, _c(0), _c(length), tirx.ForKind.SERIAL, blocks)
        return tirx.For(part, _c(0), _c(parts), self._outer_kind, self._realize("blocks", [begin, blocks], staged))

    def _crosswise_loads(self) -> list[tuple[Any, Access]]:
        found: list[Any] = []
        tvm_ffi.structural_walk(self._block.body.value, (ir.TensorLoad, found.append), order="post")
        loads = [(load, access_of(load, self._axes)) for load in found]
        return [(load, access) for load, access in loads if access is not None and self._is_crosswise(access)]

    def _tile_start(self, group: int, at: Any) -> Any:
        """Where the tile begins: the last one may overlap the one before it."""
        extent, lanes = self._info.extents[group], self._lanes
        if extent <= lanes:
            return _c(0)
        start = at * lanes
        return start if extent % lanes == 0 else tirx.Min(start, _c(extent - lanes))

    def _adjoin(self, narrow: int) -> bool:
        """Whether the narrow axis follows the other one directly where it is the contiguous one."""
        a, b = self._info.a, self._info.b
        if narrow == a:
            return b == a - 1
        access = access_of(self._block.body.value, self._axes)
        assert access is not None, "crosswise() has read it"
        shape = self._block.body.value.source.shape
        dims = [dim for dim, extent in enumerate(shape) if int(extent) != 1]
        groups = {axis: i for i, group in enumerate(self._info.groups) for axis in group}
        order = [groups.get(access.axes[dim], -1) for dim in dims]
        whole = access.offsets[dims[-1]] == 0 and int(shape[dims[-1]]) == self._info.extents[b]
        return whole and len(order) > 1 and order[-2:] == [a, b]

    def _indices(self, access: Access, moved: dict[int, Any]) -> list[Any]:
        """The load's indices at the tile, `moved` added to the starts of groups (a ramp, or a number)."""
        found: list[Any] = []
        for axis, offset in zip(access.axes, access.offsets, strict=True):
            index: Any = _c(0)
            for group, axes in enumerate(self._info.groups):
                real = [i for i in axes if int(self._block.iter_vars[i].dom.extent) != 1]
                if axis == real[-1]:  # a merged group runs along its last dim, past that dim's end
                    index = self._start[group]
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

    def _is_crosswise(self, access: Access) -> bool:
        groups = {axis: i for i, group in enumerate(self._info.groups) for axis in group}
        used = [groups[axis] for axis in access.axes if axis in groups]
        return self._info.a in used and used[-1] != self._info.a

    def _out_access(self) -> Access:
        return Access(tuple(range(len(self._axes))), (0,) * len(self._axes))

    def _turned(self, load: Any, access: Access, name: str) -> tuple[list[Any], list[Any]]:
        """Statements that load a tile and turn it, and its vectors along `a`."""
        a, b, lanes = self._info.a, self._info.b, self._lanes
        vectors, stmts = [], []
        for i in range(lanes):
            var = tirx.Var(f"{name}{i}", _vector(load.source, lanes))
            in_place = tirx.BufferLoad(load.source, self._indices(access, {a: i, b: (lanes,)}))
            stmts.append(tirx.Bind(var, self._staged[load][i] if load in self._staged else in_place))
            vectors.append(var)
        rounds, results = turned(vectors, name)
        return [*stmts, *rounds], results

    def _tile(self, is_copy: bool) -> tuple[list[Any], list[Any]]:
        a, b, lanes = self._info.a, self._info.b, self._lanes
        store = self._block.body
        out = self._out_access()
        if is_copy:
            access = access_of(store.value, self._axes)
            assert access is not None, "crosswise() has read it"
            stmts, vectors = self._turned(store.value, access, "x")
            for j, vector in enumerate(vectors):
                stmts.append(tirx.BufferStore(store.buffer, vector, self._indices(out, {b: j, a: (lanes,)})))
            return [], stmts
        local, stmts = [], []
        places: dict[Any, Any] = {}
        column = [tirx.Var(f"j{j}", "int64") for j in range(lanes)]
        for number, (load, access) in enumerate(self._crosswise_loads()):
            buffer = tirx.decl_buffer([_c(lanes), _c(lanes)], str(load.source.dtype), f"tile{number}", scope="local")
            more, vectors = self._turned(load, access, f"x{number}_")
            stmts += more
            for j, vector in enumerate(vectors):
                stmts.append(tirx.BufferStore(buffer, vector, [_c(j), tirx.Ramp(_c(0), _c(1), lanes)]))
            local.append(buffer)
            places[load] = buffer
        for j in range(lanes):
            at = column[j]

            def place(load: Any, j: int = j, at: Any = at) -> Any:
                if load in places:
                    return tirx.BufferLoad(places[load], [_c(j), at])
                access = access_of(load, self._axes)
                assert access is not None, "crosswise() has read it"
                return tirx.BufferLoad(load.source, self._shifted(access, j, at))

            value = tvm_ffi.structural_map(store.value, (ir.TensorLoad, place))
            row = tirx.BufferStore(store.buffer, value, self._shifted(out, j, at))
            stmts.append(tirx.For(at, _c(0), _c(lanes), tirx.ForKind.VECTORIZED, row))
        return local, stmts

    def _shifted(self, access: Access, j: int, at: Any) -> list[Any]:
        """Indices at row j of the tile and column `at`."""
        start = dict(self._start)
        self._start = {**start, self._info.a: start[self._info.a] + at}
        indices = self._indices(access, {self._info.b: j})
        self._start = start
        return indices

    def _narrow_tile(self, narrow: int) -> tuple[list[Any], list[Any]]:
        """One axis as a whole: `count` vectors in, as many out."""
        a, b, lanes = self._info.a, self._info.b, self._lanes
        store = self._block.body
        access, out = access_of(store.value, self._axes), self._out_access()
        assert access is not None, "crosswise() has read it"
        count = self._info.extents[narrow]
        vectors, stmts = [], []
        for i in range(count):
            if narrow == a:  # a vector along b for every value of a
                indices = self._indices(access, {a: i, b: (lanes,)})
            else:  # `count` vectors from the run of lanes * count elements
                indices = self._run(access, i)
            var = tirx.Var(f"x{i}", _vector(store.buffer, lanes))
            stmts.append(tirx.Bind(var, tirx.BufferLoad(store.value.source, indices)))
            vectors.append(var)
        results = interleaved(vectors) if narrow == a else taken_apart(vectors)
        for i, value in enumerate(results):
            indices = self._run(out, i) if narrow == a else self._indices(out, {b: i, a: (lanes,)})
            stmts.append(tirx.BufferStore(store.buffer, value, indices))
        return [], stmts

    def _run(self, access: Access, i: int) -> list[Any]:
        """Vector i of the run that begins at the tile's start, along the buffer's innermost dim."""
        *others, last = self._indices(access, {})
        return [*others, tirx.Ramp(last + _c(i * self._lanes), _c(1), self._lanes)]


def _vector(buffer: Any, lanes: int) -> str:
    return f"{buffer.dtype}x{lanes}"


def _c(value: int) -> Any:
    return tirx.const(value, "int64")

"""Transposes and elementwise subgraphs that read an operand crosswise: square tiles, turned in vector registers.

    for outer axes, tiles along one axis (parallel):  for tiles along the other:
      16 vectors of the operand, turned by four rounds of shuffles, make 16 vectors of the output

Loads and stores are whole vectors, so that memory is the limit; loops over scalars issue one element a cycle. The last
tile overlaps its neighbour where the extent is no multiple: it writes the same values. An axis shorter than a vector
(the three channels of an image) is taken as a whole: its vectors are interleaved, or taken apart.

The function is written, not scheduled: no schedule primitive makes shuffles.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule

from subtune.candidate import Candidate
from subtune.devices.cpu import CPUModel
from subtune.forms.movement import Access, Crosswise, access_of, crosswise
from subtune.forms.stages import inline, with_stages
from subtune.kernel import Kernel, NotApplicable
from subtune.templates.shuffle import interleaved, taken_apart, turned
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
    writer = _Writer(block, info, device.lanes(), str(candidate["inner"]), candidate.is_serial)
    body = writer.body()
    if isinstance(body, NotApplicable):
        return body
    return Kernel(with_stages(sch.mod["main"], [body], []))


class _Writer:
    """Writes the loops round one tile, and the tile."""

    def __init__(self, block: Any, info: Crosswise, lanes: int, inner: str, is_serial: bool) -> None:
        self._block, self._info, self._lanes, self._inner, self._is_serial = block, info, lanes, inner, is_serial
        self._axes = {iv.var: i for i, iv in enumerate(block.iter_vars)}
        self._start: dict[int, Any] = {}

    def body(self) -> Any | NotApplicable:
        a, b, extents, lanes = self._info.a, self._info.b, self._info.extents, self._lanes
        value = self._block.body.value
        is_copy = isinstance(value, ir.TensorLoad)
        widths = {axis: min(lanes, extents[axis]) for axis in (a, b)}
        narrow = [axis for axis in (a, b) if widths[axis] < lanes]
        if len(narrow) == 2:
            return NotApplicable("both axes are shorter than a vector")
        if narrow and (not is_copy or widths[narrow[0]] > _MAX_NARROW or not self._adjoin(narrow[0])):
            return NotApplicable("an axis is shorter than a vector")
        first, second = (b, a) if self._inner == "a" else (a, b)
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
        regions = [[tirx.BufferRegion(r.source, [ir.Range(_c(0), d) for d in r.source.shape]) for r in regions]
                   for regions in (self._block.reads, self._block.writes)]  # fmt: skip
        tile = SBlockRealize([], True, SBlock([], *regions, "tile", tirx.SeqStmt(body), None, local))
        row = tirx.For(inner, _c(0), _c(tiles[second]), tirx.ForKind.SERIAL, tile)
        kind = tirx.ForKind.SERIAL if self._is_serial else tirx.ForKind.PARALLEL
        return tirx.For(outer, _c(0), _c(count), kind, row)

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
            value = tirx.BufferLoad(load.source, self._indices(access, {a: i, b: (lanes,)}))
            stmts.append(tirx.Bind(var, value))
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
        found: list[Any] = []
        tvm_ffi.structural_walk(store.value, (ir.TensorLoad, found.append), order="post")
        for number, load in enumerate(found):
            access = access_of(load, self._axes)
            assert access is not None, "crosswise() has read it"
            if not self._is_crosswise(access) or load in places:
                continue
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

"""A contraction of bfloat16, of float32 in parts, or of bytes, whose operands are copied into the tiles that AMX loads.

    C[m, n] += cast(f32, A[m, k]) * cast(f32, B[k, n])                    k < K, several axes as one
->  At[m / r, s, m % r, l] = A[m, 32 s + l]                               uint16, zero from K on
    Bt[n / 16, s, q, n % 16] = B[32 s + 2 q, n] | B[32 s + 2 q + 1, n] << 16      int32
    C[m, n] += bf16_dot(...)                                              over pairs, until the schedule is made

Of float32, At and Bt have three bfloat16 for an element, what one leaves of it in the next: dims `part` before s. Of
bytes a step has 64 elements of k, and a word of B four.

A tile of A has r rows of 32 elements of k, one of B 16 pairs of rows for 16 columns. Copying A costs a load and a store
for every 64 bytes; whatever window, stride, cast or padding it is read through, the products see none of that. Channels
of a window that no vector divides are padded with zeros, each position's by themselves (`Run`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.sym import Analyzer
from tvm.tirx import PrimFunc

from subtune.backends.algorithms.strassen import unfold
from subtune.backends.cpu.families.amx.packing import TilePacking
from subtune.backends.cpu.math.amx_tiles import COLUMNS, DEPTH, PARTS, PRODUCTS_OF_PARTS, WORDS, TileBlock
from subtune.backends.cpu.math.bf16_ops import rounded
from subtune.backends.cpu.math.words import BYTES, HALVES, SIGNED_BYTES, sides
from subtune.core.kernel import NotApplicable
from subtune.patterns.axes import Axis, Role
from subtune.patterns.contraction import Contraction
from subtune.tir.blocks import nest, root_stages, stage_block, with_stages
from subtune.tir.expressions import loads, variables
from subtune.tir.substitute import substitute

_WORDS = {"bfloat16": HALVES, "uint8": BYTES, "int8": SIGNED_BYTES}
COPIED_CYCLES = 4.0  # per vector of A


@dataclass(frozen=True, slots=True)
class Run:
    """The last k axis: `extent` elements, `padded` with zeros, copied in vectors of `lanes`; `count` of it are k.

    A step has `depth` elements.
    """

    extent: int
    padded: int
    lanes: int
    count: int
    depth: int

    @classmethod
    def of(cls, k_axes: Sequence[Axis], columns: int, depth: int = DEPTH) -> Run:
        """The one that costs least: a vector copied a few cycles, a step of a row one for every 16 `columns`."""
        *others, last = k_axes
        count = prod(axis.extent for axis in others)
        if count == 1:
            return cls(last.extent, last.extent, depth, 1, depth)

        def cost(lanes: int) -> float:
            vectors = -(-last.extent // lanes)
            products = -(-count * vectors * lanes // depth) * -(-columns // COLUMNS)
            return products + count * (vectors + (last.extent % lanes > 0)) * COPIED_CYCLES

        lanes = min((lanes for lanes in (64, 32, 16, 8, 4) if lanes <= depth), key=cost)
        return cls(last.extent, -(-last.extent // lanes) * lanes, lanes, count, depth)

    @property
    def steps(self) -> int:
        return -(-self.count * self.padded // self.depth)

    @property
    def vectors(self) -> int:
        """Copied of a row, parts of one counted twice."""
        return self.count * (-(-self.extent // self.lanes) + (self.extent % self.lanes > 0))


@dataclass(frozen=True, slots=True)
class Tiled:
    """`func` with its anchor over tiles, which `info` describes; the blocks that copy A and B, both last of a tile."""

    func: PrimFunc
    info: Contraction
    a_tiles: str
    b_tiles: str
    steps: int
    lies_along_k: bool
    """Whether A's copy loads vectors."""


def in_tiles(func: PrimFunc, block_name: str, info: Contraction, block: TileBlock) -> Tiled | NotApplicable:
    """Rewrite the anchor `block_name`, whose last m axis and n axis are whole tiles, to multiply copies in tiles."""
    stages = root_stages(func)
    at = next(i for i, stage in enumerate(stages) if stage_block(stage).name_hint == block_name)
    anchor = stage_block(stages[at])
    n = anchor.iter_vars[info.n.index].var
    factors = _sides(anchor, n) if block.parts > 1 else sides(anchor, n, _WORDS[block.dtype])
    if isinstance(factors, NotApplicable):
        return factors
    reading = _Reading(anchor, info, block)
    a_tiles, a_stage = reading.a_tiles(factors[0])
    b_tiles, b_stage = reading.b_tiles(factors[1])
    rewritten, axes = reading.product(a_tiles, b_tiles)
    buffers = [*func.body.block.alloc_buffers, a_tiles, b_tiles]
    new = with_stages(func, [*stages[:at], a_stage, b_stage, rewritten, *stages[at + 1 :]], buffers)
    tiled = Contraction(axes, info.a, replace(info.b, param=-1), info.acc_dtype)
    return Tiled(new, tiled, a_tiles.name, b_tiles.name, reading.run.steps, reading.lies_along_k(factors[0]))


def _sides(anchor: Any, n: Any) -> tuple[Any, Any] | NotApplicable:
    """The two factors of float32, the one that `n` indexes second."""
    product = anchor.body.value.b
    if not isinstance(product, tirx.Mul) or str(product.ty) != "float32":
        return NotApplicable("no product of two numbers of float32")
    return (product.a, product.b) if n in variables(product.b) else (product.b, product.a)


class _Reading:
    """The axes of an anchor in terms of tiles."""

    def __init__(self, anchor: Any, info: Contraction, block: TileBlock) -> None:
        self._anchor, self._info, self._block = anchor, info, block
        self._k_axes = info.of_role(Role.K)
        self._batch = list(info.of_role(Role.BATCH))
        *self._outer, self._rows = info.of_role(Role.M)
        self.run = Run.of(self._k_axes, info.n.extent, block.depth)

    def lies_along_k(self, side: Any) -> bool:
        """Whether neighbours along the last k axis are neighbours in the operand."""
        *others, last = loads(side)[0].indices
        along = self._var(self._k_axes[-1])
        return along not in variables(others) and along not in variables(Analyzer().simplify(last - along))

    def a_tiles(self, side: Any) -> tuple[Any, Any]:
        """The copy of A, and the stage that makes it: a row after the other, in vectors."""
        rows, run = self._block.rows, self.run
        each = self._block.depth // run.lanes
        shared = [_axis(f"a{axis.index}", axis.extent) for axis in (*self._batch, *self._outer)]
        tile, row = _axis("t", self._rows.extent // rows), _axis("i", rows)
        vector, lane = _axis("q", run.steps * each), _axis("l", run.lanes)
        part = self._part_axis()
        axes = [*shared, tile, row, vector, *part, lane]
        position = self._position((*self._batch, *self._outer), shared)
        position[self._var(self._rows)] = tile.var * rows + row.var
        value = self._bits(self._element(side, position, (vector.var, lane.var), axes, True), part)
        tiles = [*(iv.dom.extent for iv in (*shared, tile, *part)), *_constants(run.steps, rows, self._block.depth)]
        buffer = tirx.decl_buffer(tiles, self._block.stored, "a_tiles")
        place = [vector.var // each, row.var, vector.var % each * run.lanes + lane.var]
        store = tirx.BufferStore(buffer, value, [*(iv.var for iv in (*shared, tile, *part)), *place])
        return buffer, nest(buffer.name, axes, {}, store, None)

    def b_tiles(self, side: Any) -> tuple[Any, Any]:
        """B in tiles, and the stage that makes it: of a constant it is the packing."""
        block, run, shared = self._block, self.run, [_axis(f"b{axis.index}", axis.extent) for axis in self._batch]
        panel, part = _axis("p", self._info.n.extent // COLUMNS), self._part_axis()
        step, word, column = _axis("s", run.steps), _axis("q", WORDS), _axis("c", COLUMNS)
        axes = [*shared, panel, step, word, *part, column]
        position = self._position(self._batch, shared)
        position[self._var(self._info.n)] = panel.var * COLUMNS + column.var
        value = None
        for i in range(block.count):
            k = step.var * block.depth + word.var * block.count + tirx.const(i, "int64")
            bits = self._bits(self._element(side, position, (k // run.lanes, k % run.lanes), axes, False), part)
            element = tirx.Cast("int32", bits)
            element = element & tirx.const(0xFF, "int32") if block.count == BYTES.count else element
            moved = element << tirx.const(i * 32 // block.count, "int32") if i else element
            value = moved if value is None else value | moved
        place = [*shared, panel, *part, step, word, column]
        buffer = tirx.decl_buffer([iv.dom.extent for iv in place], "int32", "b_tiles")
        store = tirx.BufferStore(buffer, value, [iv.var for iv in place])
        return buffer, nest(buffer.name, axes, {}, store, None)

    def product(self, a_tiles: Any, b_tiles: Any) -> tuple[Any, tuple[Axis, ...]]:
        """The anchor over words of the copies; its axes, of which one is k."""
        block, store = self._block, self._anchor.body
        word = _axis("vq", self.run.steps * WORDS, tirx.IterVar.CommReduce)
        kept = [axis for axis in self._info.axes if axis.role is not Role.K]
        axes = (
            *(replace(axis, index=i) for i, axis in enumerate(kept)),
            Axis(len(kept), self.run.steps * WORDS, Role.K),
        )
        m, n, q = self._var(self._rows), self._var(self._info.n), word.var
        batch = [self._var(axis) for axis in self._batch]
        outer = [self._var(axis) for axis in self._outer]
        lanes = tirx.Ramp(q % WORDS * block.count, tirx.const(1, "int64"), block.count)
        made: Any = tirx.BufferLoad(store.buffer, list(store.indices))
        for left, right in self._parts_multiplied():
            a = tirx.BufferLoad(a_tiles, [*batch, *outer, m // block.rows, *left, q // WORDS, m % block.rows, lanes])
            place = [n // COLUMNS, *right, q // WORDS, q % WORDS, n % COLUMNS]
            made = _WORDS[block.dtype].dot(
                made, tirx.reinterpret("int32", a), tirx.BufferLoad(b_tiles, [*batch, *place])
            )
        body = tirx.BufferStore(store.buffer, made, list(store.indices))
        iter_vars = [*(self._anchor.iter_vars[axis.index] for axis in kept), word]
        return nest(self._anchor.name_hint, iter_vars, {}, body, self._anchor.init), axes

    def _part_axis(self) -> list[Any]:
        return [_axis("e", self._block.parts)] if self._block.parts > 1 else []

    def _parts_multiplied(self) -> list[tuple[list[Any], list[Any]]]:
        """Indices of the parts of A and B, where they have parts."""
        if self._block.parts == 1:
            return [([], [])]
        return [([tirx.const(a, "int64")], [tirx.const(b, "int64")]) for a, b in PRODUCTS_OF_PARTS]

    def _bits(self, value: Any, part: Sequence[Any]) -> Any:
        """Of a bfloat16 itself; of a float32, what the parts before this one leave, rounded."""
        if not part:
            return value
        rest, found = value, []
        for _ in range(PARTS):
            found.append(rounded(rest))
            whole = tirx.Cast("uint32", found[-1]) << tirx.const(16, "uint32")
            rest = rest - tirx.reinterpret("float32", whole)
        first, second, third = found
        at = [part[0].var.equal(tirx.const(i, "int64")) for i in range(PARTS - 1)]
        return tirx.Select(at[0], first, tirx.Select(at[1], second, third))

    def _element(
        self, side: Any, position: Mapping[Any, Any], at: tuple[Any, Any], axes: Sequence[Any], in_lanes: bool
    ) -> Any:
        """An operand's element in the lane of a vector of k, of bfloat16 its bits; zero where there is none.

        `in_lanes`: lanes of k are those of a processor's vector, which reads nothing beyond the end. Else one vector
        has elements of one k, and is read in any case.
        """
        analyzer, run = Analyzer(), self.run
        for iv in axes:
            analyzer.bind(iv.var, iv.dom)
        vector, lane = at
        *others, last = self._k_axes
        vectors = -(-run.padded // run.lanes)
        along, inside = vector % vectors * run.lanes + lane, []
        if run.count * vectors * run.lanes < run.steps * run.depth:
            vector, within = _kept(vector, run.count * vectors, in_lanes)
            inside.append(within)
        if run.extent % run.lanes:
            along, within = _kept(analyzer.simplify(along), run.extent, in_lanes)
            inside.append(within)
        k = [*(unfold(vector // vectors, tuple(others)) if others else ()), along]
        values = {**position, **dict(zip((self._var(axis) for axis in (*others, last)), k, strict=True))}

        def moved(load: ir.TensorLoad) -> Any:
            return tirx.BufferLoad(load.source, [analyzer.simplify(substitute(i, values)) for i in load.indices])

        value = tvm_ffi.structural_map(side, (ir.TensorLoad, moved))
        if self._block.parts == 1 and self._block.dtype == "bfloat16":
            value = tirx.reinterpret("uint16", value)
        choose = tirx.if_then_else if in_lanes else tirx.Select
        for within in reversed(inside):
            value = choose(analyzer.simplify(within), value, tirx.const(0, str(value.ty)))
        return value

    def _position(self, axes: Sequence[Axis], made: Sequence[Any]) -> dict[Any, Any]:
        return dict(zip(map(self._var, axes), (iv.var for iv in made), strict=True))

    def _var(self, axis: Axis) -> Any:
        return self._anchor.iter_vars[axis.index].var


def packing_of(info: Contraction, block: TileBlock) -> TilePacking:
    """What makes `b_tiles` of a constant B, which `info` describes as it is, without padding."""
    order = [axis.index for role in (Role.BATCH, Role.N, Role.K) for axis in info.of_role(role)]
    where = tuple(info.b.axes.index(axis) for axis in order)
    panels = -(-info.n.extent // (block.n * COLUMNS)) * block.n
    run = Run.of(info.of_role(Role.K), panels * COLUMNS, block.depth)
    batch = len(info.of_role(Role.BATCH))
    return TilePacking(info.b.shape, where, batch, panels, run.padded, block.parts, block.count)


def _kept(index: Any, end: int, in_lanes: bool) -> tuple[Any, Any]:
    """What is read at `index`, and whether it is before `end`: nothing beyond the last is read."""
    return index if in_lanes else tirx.min(index, tirx.const(end - 1, "int64")), index < tirx.const(end, "int64")


def _axis(name: str, extent: int, kind: int = tirx.IterVar.DataPar) -> Any:
    (size,) = _constants(extent)
    return tirx.IterVar(ir.Range(tirx.const(0, "int64"), size), tirx.Var(name, "int64"), kind)


def _constants(*extents: int) -> list[Any]:
    return [tirx.const(extent, "int64") for extent in extents]

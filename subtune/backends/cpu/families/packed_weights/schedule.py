"""The loops: threads share panels of columns, each of which reads its weights once, from the first block to the last.

scaled[m, k] = x[m, k] * 2^-p                            (p: where the field of weight k lies in its word)
sums[m, b] = sum of x[m, k] over block b                  (where blocks have zero points)
for panel (parallel):
  for block b:
    part[m, n] = 0
    for word of the block:  for field, vector of the panel, row m (unrolled):  part += scaled * float(field)
    total[m, n] += (part + (middle - zero[n, b]) * sums[m, b]) * scale[n, b]
  epilogue
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import Schedule, ScheduleError
from tvm.tirx import PrimFunc

from subtune.backends.cpu.families.packed_weights.candidates import Knobs, accepts, has_nibble_table
from subtune.backends.cpu.families.packed_weights.words import (
    WORD,
    WordPacking,
    float_of,
    inverse,
    middle,
    of_blocks,
    power,
)
from subtune.backends.cpu.family import CPUProblem
from subtune.backends.cpu.loops.prefetch import L1, MicroKernel, ask, before_steps
from subtune.backends.cpu.math.nibble_ops import with_nibble_table
from subtune.core.kernel import ConstantTransform, Kernel, NotApplicable
from subtune.patterns.packed_product import PackedProduct, factors, packed_product
from subtune.patterns.stages import Stages, anchored
from subtune.tir.blocks import nest, root_stages, stage_block, with_stages
from subtune.tir.statements import buffer, integer, load, store
from subtune.tir.substitute import substitute
from subtune.tir.tile import vectorize_tile

_AHEAD_BYTES = 4096
_LINE = 16
"""Elements of 32 bits in 64 bytes."""
_SUM, _EACH = tirx.IterVar.CommReduce, tirx.IterVar.DataPar
_SCALED, _PARTS, _SUMS, _PART = "x_scaled", "x_parts", "x_sums", "part"


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    if why := accepts(problem):
        return NotApplicable(why)
    found = anchored(problem.workload, packed_product)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    if stages.producers:
        return NotApplicable("x is computed for all products before the first")
    lanes = problem.device.lanes()
    form = _Form(info, knobs.vectors * lanes, has_nibble_table(info, problem.device))
    try:
        func = _rewritten(sch, stages, form)
        func = _scheduled(func, sch.get(stages.anchors[0]).name_hint, form, lanes, knobs.serial)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])
    func = _asking(func, form) if knobs.ahead else func
    return Kernel(with_nibble_table(func, form.point) if form.is_looked_up else func, form.packings)


@dataclass(frozen=True, slots=True)
class _Form:
    """The product in words; `panel` columns lie side by side."""

    info: PackedProduct
    panel: int
    is_looked_up: bool
    """Nibbles become floats by a table where that is less work."""

    @property
    def fields(self) -> int:
        """Of a word."""
        return WORD // self.info.bits

    @property
    def words(self) -> int:
        """Of a block."""
        return ceil(self.info.group / self.fields)

    @property
    def columns(self) -> int:
        """Whole panels."""
        return ceil(self.info.columns / self.panel) * self.panel

    @property
    def length(self) -> int:
        """Whole words, and whole blocks."""
        return self.info.blocks * self.words * self.fields

    @property
    def point(self) -> int:
        """Subtracted of every field, as the file has them."""
        return middle(self.info.bits) if self.info.zero >= 0 else self.info.point

    @property
    def packings(self) -> tuple[tuple[int, ConstantTransform], ...]:
        info = self.info
        words = WordPacking(self.columns, self.panel, info.blocks, self.words)
        blocks = of_blocks(self.columns, self.panel, info.blocks)
        return tuple((i, blocks if i != info.packed else words) for i in (info.packed, info.scale, info.zero) if i >= 0)


def _rewritten(sch: Schedule, stages: Stages, form: _Form) -> PrimFunc:
    """The workload with its anchor in words, on packed parameters."""
    func = sch.mod["main"]
    nests, name = root_stages(func), sch.get(stages.anchors[0]).name_hint
    at = next(i for i, one in enumerate(nests) if stage_block(one).name_hint == name)
    anchor = stage_block(nests[at])
    writer, result = _Writer(anchor, form), anchor.body.buffer
    after = [_reading(stage_block(one), result, writer.total) for one in nests[at + 1 :]]
    if any(param.same_as(result) for param in func.params):
        after.insert(0, writer.copied(result))
    kept = [one for one in func.body.block.alloc_buffers if not one.same_as(result)]
    params = [writer.packed.get(i, param) for i, param in enumerate(func.params)]
    return with_stages(func, [*nests[:at], *writer.stages(), *after], [*kept, *writer.buffers], params)


def _reading(block: Any, source: Any, by: Any) -> Any:
    """The stage of `block` with `by` read in place of `source`."""

    def follow(one: ir.TensorLoad) -> Any:
        return tirx.BufferLoad(by, list(one.indices)) if one.source.same_as(source) else one

    body = tvm_ffi.structural_map(block.body, (ir.TensorLoad, follow))
    return nest(block.name_hint, block.iter_vars, {}, body, block.init)


class _Writer:
    """The stages that take the anchor's place."""

    def __init__(self, anchor: Any, form: _Form) -> None:
        self._form, self._anchor, info = form, anchor, form.info
        *self._outer, self._n = list(anchor.body.indices)
        (self._k,) = [iv.var for iv in anchor.iter_vars if int(iv.iter_type) == _SUM]
        self._extents = {iv.var: int(iv.dom.extent) for iv in anchor.iter_vars}
        found = factors(anchor, self._n)
        assert not isinstance(found, NotApplicable), found.reason
        self._x = found[0]
        rows = [self._extents[axis] for axis in self._outer]
        panels = form.columns // form.panel
        blocks = [panels, info.blocks, form.panel]
        self._words = buffer("words", [panels, info.blocks, form.words, form.panel], dtype="uint32")
        self._scale = buffer("scale", blocks)
        self.packed = {info.packed: self._words, info.scale: self._scale}
        if info.zero >= 0:
            self._zero = self.packed[info.zero] = buffer("zero", blocks, dtype="uint8")
        # rows lie side by side: a power of two apart, they would all be in one set of the cache
        self._scaled = buffer(_SCALED, [info.blocks * form.words, *rows, form.fields])
        self._parts = buffer(_PARTS, [*rows, info.blocks, form.fields])
        self._sums = buffer(_SUMS, [*rows, info.blocks])
        self._part = buffer(_PART, [*rows, form.columns, info.blocks])
        self.total = buffer("total", [*rows, form.columns])
        self.buffers = [self._scaled, self._part, self.total] + ([self._parts, self._sums] if info.zero >= 0 else [])

    def stages(self) -> list[Any]:
        sums = [self._parts_stage(), self._sums_stage()] if self._form.info.zero >= 0 else []
        return [self._scaled_stage(), *sums, self._part_stage(), self._total_stage()]

    def _rows(self) -> list[Any]:
        return [_axis(f"m{i}", self._extents[axis]) for i, axis in enumerate(self._outer)]

    def _x_of(self, rows: Sequence[Any], block: Any, word: Any, field: Any) -> Any:
        """Scaled."""
        return load(self._scaled, block * self._form.words + word, *_vars(rows), field)

    def _scaled_stage(self) -> Any:
        form = self._form
        word, rows, field = _axis("w", form.info.blocks * form.words), self._rows(), _axis("j", form.fields)
        k = word.var * form.fields + field.var
        place = dict(zip(self._outer, _vars(rows), strict=True)) | {self._k: k}
        value = substitute(self._x, place)
        if form.length > form.info.length:
            inside = k < tirx.const(form.info.length, "int64")
            value = tirx.if_then_else(inside, value, tirx.const(0.0, "float32"))
        body = store(self._scaled, value * inverse(field.var, form.info.bits), word.var, *_vars(rows), field.var)
        return nest(_SCALED, [word, *rows, field], {}, body, None)

    def _parts_stage(self) -> Any:
        """The sums of every field of a block's words, which makes vectors."""
        form = self._form
        rows, block, field = self._rows(), _axis("b", form.info.blocks), _axis("j", form.fields)
        word = _axis("w", form.words, _SUM)
        value = self._x_of(rows, block.var, word.var, field.var)
        at = [*_vars(rows), block.var, field.var]
        return _summed(_PARTS, [*rows, block, field, word], self._parts, at, value)

    def _sums_stage(self) -> Any:
        form = self._form
        rows, block = self._rows(), _axis("b", form.info.blocks)
        field = _axis("j", form.fields, _SUM)
        value = load(self._parts, *_vars(rows), block.var, field.var) * power(field.var, form.info.bits)
        return _summed(_SUMS, [*rows, block, field], self._sums, [*_vars(rows), block.var], value)

    def _part_stage(self) -> Any:
        form, info = self._form, self._form.info
        rows, n, block = self._rows(), _axis("n", form.columns), _axis("b", info.blocks)
        word, field = _axis("w", form.words, _SUM), _axis("j", form.fields, _SUM)
        panel, column = _parted(n.var, form.panel)
        weight = load(self._words, panel, block.var, word.var, column)
        # every zero point is the one number that the kernel subtracts, or the difference is accounted for in `total`
        point = form.point + (0 if info.zero >= 0 else self._shifted())
        x = self._x_of(rows, block.var, word.var, field.var)
        value = x * float_of(weight, field.var, info.bits, point, form.is_looked_up)
        at = [*_vars(rows), n.var, block.var]
        return _summed(_PART, [*rows, n, block, word, field], self._part, at, value)

    def _shifted(self) -> int:
        """By which int8 is more as uint8."""
        loads_of = self._anchor.reads
        is_signed = any(str(region.source.dtype) == "int8" for region in loads_of)
        return middle(8) if is_signed else 0

    def _total_stage(self) -> Any:
        form, info = self._form, self._form.info
        rows, n, block = self._rows(), _axis("n", form.columns), _axis("b", info.blocks, _SUM)
        panel, column = _parted(n.var, form.panel)
        value = load(self._part, *_vars(rows), n.var, block.var)
        if info.zero >= 0:
            zero = load(self._zero, panel, block.var, column).astype("float32")
            value = value + (float(middle(info.bits)) - zero) * load(self._sums, *_vars(rows), block.var)
        value = value * load(self._scale, panel, block.var, column)
        return _summed(self._anchor.name_hint, [*rows, n, block], self.total, [*_vars(rows), n.var], value)

    def copied(self, result: Any) -> Any:
        """The stage that stores an output that is the sums themselves."""
        axes = [*self._rows(), _axis("n", self._form.info.columns)]
        return nest("stored", axes, {}, store(result, load(self.total, *_vars(axes)), *_vars(axes)), None)


def _axis(name: str, extent: int, kind: int = _EACH) -> Any:
    return tirx.IterVar(
        ir.Range(tirx.const(0, "int64"), tirx.const(extent, "int64")), tirx.Var(f"v_{name}", "int64"), kind
    )


def _vars(axes: Sequence[Any]) -> list[Any]:
    return [axis.var for axis in axes]


def _parted(n: Any, panel: int) -> tuple[Any, Any]:
    size = tirx.const(panel, "int64")
    return tirx.floordiv(n, size), tirx.floormod(n, size)


def _summed(name: str, axes: Sequence[Any], target: Any, at: Sequence[Any], value: Any) -> Any:
    body = store(target, load(target, *at) + value, *at)
    return nest(name, axes, {}, body, store(target, tirx.const(0.0, "float32"), *at))


def _scheduled(func: PrimFunc, name: str, form: _Form, lanes: int, is_serial: bool) -> PrimFunc:
    sch = Schedule(func)
    outputs = sch.get_consumers(sch.get_sblock(name))
    total, part = sch.get_sblock(name), sch.get_sblock(_PART)
    *rows, n, block = sch.get_loops(total)
    no, nv, ni = sch.split(n, [None, form.panel // lanes, lanes])
    sch.reorder(no, block, *rows, nv, ni)
    sch.set_scope(total, 0, "local")
    for output in outputs:
        sch.reverse_compute_at(output, no)
    sch.compute_at(part, block, preserve_unit_loops=True)
    sch.set_scope(part, 0, "local")
    *inner, columns, _, word, field = sch.get_loops(part)[2:]
    pv, pi = sch.split(columns, [None, lanes])
    sch.reorder(word, field, pv, *inner, pi)
    for loop in (field, pv, *inner, nv, *rows):
        sch.unroll(loop)
    for loop in (pi, ni):
        sch.vectorize(loop)
    if not is_serial:
        sch.parallel(no)
    for output in outputs:
        vectorize_tile(sch, output, 1, lanes)
    sch.decompose_reduction(part, word)
    sch.decompose_reduction(total, block)
    _place_x(sch, form, lanes)
    return sch.mod["main"]


def _asking(func: PrimFunc, form: _Form) -> PrimFunc:
    """`func` asking ahead for what it reads once."""
    info = form.info
    words, scale = func.params[info.packed], func.params[info.scale]
    rows_ahead = ceil(_AHEAD_BYTES / (4 * form.panel))
    lines = range(0, form.panel, _LINE)

    def of_words(loops: Sequence[Any], step: Any) -> list[Any]:
        panel, block, word = (loop.loop_var for loop in loops)
        return [ask(words, [panel, block, word + rows_ahead, integer(line)], L1) for line in lines]

    def of_scale(loops: Sequence[Any], step: Any) -> list[Any]:
        panel, block = (loop.loop_var for loop in loops)
        return [ask(scale, [panel, block + rows_ahead, integer(line)], L1) for line in lines]

    func = before_steps(func, MicroKernel(f"{_PART}_update", 2, 0, 1), of_words)
    return before_steps(func, MicroKernel(f"{_PART}_update", 1, 0, 1), of_scale) if info.blocks > 1 else func


def _place_x(sch: Schedule, form: _Form, lanes: int) -> None:
    """Few elements, of which all threads read all: the calling one makes them."""
    *_, fields = sch.get_loops(sch.get_sblock(_SCALED))
    _, vector = sch.split(fields, [None, min(lanes, form.fields)])
    sch.vectorize(vector)
    if form.info.zero < 0:
        return
    parts, sums = sch.get_sblock(_PARTS), sch.get_sblock(_SUMS)
    *_, fields, word = sch.get_loops(parts)
    _, vector = sch.split(fields, [None, min(lanes, form.fields)])
    sch.reorder(word, vector)
    sch.vectorize(vector)
    sch.decompose_reduction(parts, word)
    *_, field = sch.get_loops(sums)
    sch.unroll(field)
    sch.decompose_reduction(sums, field)

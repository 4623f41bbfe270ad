"""Sums of products of bytes: x as integers of three signed digits, and the stages that take the anchor's place.

    unit[m, b]    = the largest |x| of the block / S                 (S: almost 2^23)
    fixed[m, k]   = x / unit, rounded to an integer                  = 65536 d2 + 256 d1 + d0, digits of -128 to 127
    part[d, m, n] = sum of d[m, k] * q[n, k] over block b            (int32: exact)
    total[m, n]  += (65536 part[2] + 256 part[1] + part[0] - point * sum of fixed) * unit[m, b] * scale[n, b]

An instruction multiplies four digits with four nibbles. x is rounded once, by at most 2^-24 of the largest in its
block, as adding it to a sum in float32 would; what follows is as exact. A point that all weights have is subtracted
in integers. Where an x of a block is NaN or infinite, what its row gives is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from subtune.backends.cpu.families.packed_weights.form import PART, SUM, Anchor, Form, axis, parted, summed, vars_of
from subtune.backends.cpu.families.packed_weights.words import middle
from subtune.backends.cpu.math import byte_ops
from subtune.tir.blocks import nest
from subtune.tir.statements import buffer, load, store

DIGITS = 3
LONGEST = 128
"""Elements of a block: their sum fits int32, as integers."""
_STEPS = float(127 * 65536 + 127 * 256)
"""What the largest |x| becomes: of three digits, and so with what rounding may add."""
_LEAST = 24 << 23
"""Bits of 2^-103: where all of a block are smaller, they are taken as parts of that, so that no unit is denormal."""
_INFINITE, _MAGNITUDE = 0x7F800000, 0x7FFFFFFF
_CARRIES = 0x8080
"""Of the two lower digits: added before a higher one is cut out, since they may be negative."""
_TAKEN = (0, 2)
"""Of these digits' sums is taken what the point makes; of that between, nothing."""
_HALF = 4
"""Digits in a word of 32 bits, for the lower or the upper nibbles of a word's bytes."""
_TOPS, _TOP, _UNIT, _FIXED, _PARTS, _SUMS, _POINTS, _DIGITS = (
    f"x_{name}" for name in ("tops", "top", "unit", "fixed", "parts", "sums", "points", "digits")
)


class Digits:
    """The stages, and the buffers between them."""

    def __init__(self, anchor: Anchor, form: Form) -> None:
        self._form, self._anchor, info, rows = form, anchor, form.info, anchor.extents
        blocks, self._block = [*rows, info.blocks], form.words * form.fields
        self._tops = buffer(_TOPS, [*blocks, self._form.fields], dtype="int32")
        self._top = buffer(_TOP, blocks, dtype="int32")
        self._unit = buffer(_UNIT, blocks)
        self._fixed = buffer(_FIXED, [*rows, form.length], dtype="int32")
        self._parts = buffer(_PARTS, [*blocks, self._form.fields], dtype="int32")
        self._sums = buffer(_SUMS, blocks, dtype="int32")
        self._taken = buffer(_POINTS, [*blocks, len(_TAKEN)], dtype="int32")
        # as they are read, one behind the other
        self._digits = buffer(_DIGITS, [info.blocks * form.words, *rows, DIGITS, form.fields], dtype="int8")
        self._part = buffer(PART, [*rows, DIGITS, form.columns, info.blocks], dtype="int32")
        self.buffers = [
            self._tops, self._top, self._unit, self._fixed, self._parts, self._sums, self._taken,
            self._digits,
            self._part,
        ]  # fmt: skip

    def stages(self) -> list[Any]:
        return [
            *self._top_stages(), self._unit_stage(), self._fixed_stage(), *self._sum_stages(), self._taken_stage(),
            self._digits_stage(), self._part_stage(), self._total_stage(),
        ]  # fmt: skip

    def _blocks(self) -> list[Any]:
        return [*self._anchor.rows(), axis("b", self._form.info.blocks)]

    def _along(self, blocks: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Axes of a block, vector by vector, and k."""
        lane, step = axis("j", self._form.fields), axis("s", self._block // self._form.fields, SUM)
        return lane, step, blocks[-1].var * self._block + step.var * self._form.fields + lane.var

    def _top_stages(self) -> list[Any]:
        """The bits of the largest magnitude, in whose order are those of numbers, infinity and NaN."""

        def largest(name: str, axes: Sequence[Any], target: Any, at: Sequence[Any], value: Any) -> Any:
            body = store(target, tirx.max(load(target, *at), value), *at)
            return nest(name, axes, {}, body, store(target, _int(0), *at))

        blocks = self._blocks()
        lane, step, k = self._along(blocks)
        at = [*vars_of(blocks), lane.var]
        tops = largest(_TOPS, [*blocks, lane, step], self._tops, at, _magnitude(self._anchor.x(blocks[:-1], k)))
        blocks, lane = self._blocks(), axis("j", self._form.fields, SUM)
        value = load(self._tops, *vars_of(blocks), lane.var)
        return [tops, largest(_TOP, [*blocks, lane], self._top, vars_of(blocks), value)]

    def _unit_stage(self) -> Any:
        """NaN or infinite where x is; its steps are zero there, and zero times that is NaN."""
        blocks = self._blocks()
        top = load(self._top, *vars_of(blocks))
        number = tirx.reinterpret("float32", tirx.max(top, _int(_LEAST)))
        unit = number * tirx.const(1.0 / _STEPS, "float32")
        return nest(_UNIT, blocks, {}, store(self._unit, unit, *vars_of(blocks)), None)

    def _fixed_stage(self) -> Any:
        """Divided: the inverse of a unit, rounded, would be wrong by as much for a whole block."""
        blocks, j = self._blocks(), axis("j", self._block)
        k = blocks[-1].var * self._block + j.var
        is_finite = load(self._top, *vars_of(blocks)) < _int(_INFINITE)
        steps = self._anchor.x(blocks[:-1], k) / load(self._unit, *vars_of(blocks))
        steps = tirx.Select(is_finite, steps, tirx.const(0.0, "float32"))
        value = tirx.nearbyint(steps).astype("int32")
        return nest(_FIXED, [*blocks, j], {}, store(self._fixed, value, *vars_of(blocks[:-1]), k), None)

    def _sum_stages(self) -> list[Any]:
        blocks = self._blocks()
        lane, step, k = self._along(blocks)
        value = load(self._fixed, *vars_of(blocks[:-1]), k)
        parts = summed(_PARTS, [*blocks, lane, step], self._parts, [*vars_of(blocks), lane.var], value)
        blocks, lane = self._blocks(), axis("j", self._form.fields, SUM)
        value = load(self._parts, *vars_of(blocks), lane.var)
        return [parts, summed(_SUMS, [*blocks, lane], self._sums, vars_of(blocks), value)]

    def _taken_stage(self) -> Any:
        """The point times the sum, which may exceed int32, as what is taken from the lowest and the highest digit's."""
        blocks, which = self._blocks(), axis("t", len(_TAKEN))
        whole = load(self._sums, *vars_of(blocks))
        halves = tirx.Select(which.var == 0, whole & _int(0xFFFF), whole >> _int(16))
        at = [*vars_of(blocks), which.var]
        return nest(_POINTS, [*blocks, which], {}, store(self._taken, _int(self._anchor.point) * halves, *at), None)

    def _digits_stage(self) -> Any:
        form = self._form
        word, rows, digit = axis("w", form.info.blocks * form.words), self._anchor.rows(), axis("d", DIGITS)
        field = axis("j", form.fields)
        place = digit.var.astype("int32") * _int(8)
        carry = _int(_CARRIES) >> (_int(16) - place)
        value = (load(self._fixed, *vars_of(rows), word.var * form.fields + field.var) + carry) >> place
        at = [word.var, *vars_of(rows), digit.var, field.var]
        return nest(_DIGITS, [word, *rows, digit, field], {}, store(self._digits, value.astype("int8"), *at), None)

    def _part_stage(self) -> Any:
        form, info = self._form, self._form.info
        rows, digit, n = self._anchor.rows(), axis("d", DIGITS), axis("n", form.columns)
        block, word, half = axis("b", info.blocks), axis("w", form.words, SUM), axis("h", 2, SUM)
        panel, column = parted(n.var, form.panel)
        bits = load(self._anchor.words, panel, block.var, word.var, column)
        shift = half.var.astype("uint32") * tirx.const(info.bits, "uint32")
        nibbles = tirx.reinterpret("int32", (bits >> shift) & tirx.const(0x0F0F0F0F, "uint32"))
        four = tirx.Ramp(half.var * _HALF, tirx.const(1, "int64"), _HALF)
        x = load(self._digits, block.var * form.words + word.var, *vars_of(rows), digit.var, four)
        at = [*vars_of(rows), digit.var, n.var, block.var]
        value = byte_ops.dot(load(self._part, *at), nibbles, tirx.reinterpret("int32", x))
        init = store(self._part, _int(0), *at)
        return nest(PART, [*rows, digit, n, block, word, half], {}, store(self._part, value, *at), init)

    def _total_stage(self) -> Any:
        form, info = self._form, self._form.info
        rows, n, block = self._anchor.rows(), axis("n", form.columns), axis("b", info.blocks, SUM)
        panel, column = parted(n.var, form.panel)
        at, total = [*vars_of(rows), block.var], tirx.const(0.0, "float32")
        for digit in range(DIGITS):
            part = load(self._part, *vars_of(rows), digit, n.var, block.var)
            if digit in _TAKEN:
                part = part - load(self._taken, *at, _TAKEN.index(digit))
            total = total + part.astype("float32") * float(1 << 8 * digit)
        if info.zero >= 0:
            zero = load(self._anchor.zero, panel, block.var, column).astype("float32")
            total = total + (float(middle(info.bits)) - zero) * load(self._sums, *at).astype("float32")
        total = total * load(self._unit, *at) * load(self._anchor.scale, panel, block.var, column)
        return summed(self._anchor.name, [*rows, n, block], self._anchor.total, [*vars_of(rows), n.var], total)


def _int(value: int) -> Any:
    return tirx.const(value, "int32")


def _magnitude(x: Any) -> Any:
    return tirx.reinterpret("int32", x) & _int(_MAGNITUDE)


def place_x(sch: Schedule, form: Form, lanes: int) -> None:
    """Few elements, of which all threads read all: the calling one makes them."""
    wide = min(lanes, form.fields)
    for name in (_TOPS, _PARTS):
        block = sch.get_sblock(name)
        *_, lane, step = sch.get_loops(block)
        _, vector = sch.split(lane, [None, wide])
        sch.reorder(step, vector)
        sch.vectorize(vector)
        sch.decompose_reduction(block, step)
    for name in (_TOP, _SUMS):
        block = sch.get_sblock(name)
        *_, lane = sch.get_loops(block)
        sch.unroll(lane)
        sch.decompose_reduction(block, lane)
    for name in (_FIXED, _DIGITS):
        *_, fields = sch.get_loops(sch.get_sblock(name))
        _, vector = sch.split(fields, [None, wide])
        sch.vectorize(vector)
    *_, which = sch.get_loops(sch.get_sblock(_POINTS))
    sch.unroll(which)
    *_, digit, _, _ = sch.get_loops(sch.get_sblock(_DIGITS))
    sch.unroll(digit)

"""Sums of products of floats: the stages that take the anchor's place, and how x is placed. See `schedule`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.s_tir import Schedule

from subtune.backends.cpu.families.packed_weights.form import PART, SUM, Anchor, Form, axis, parted, summed, vars_of
from subtune.backends.cpu.families.packed_weights.words import float_of, inverse, middle, power
from subtune.tir.blocks import nest
from subtune.tir.statements import buffer, load, store

_SCALED, _PARTS, _SUMS = "x_scaled", "x_parts", "x_sums"


class Floats:
    """The stages, and the buffers between them."""

    def __init__(self, anchor: Anchor, form: Form) -> None:
        self._form, self._anchor, info, rows = form, anchor, form.info, anchor.extents
        # rows lie side by side: a power of two apart, they would all be in one set of the cache
        self._scaled = buffer(_SCALED, [info.blocks * form.words, *rows, form.fields])
        self._parts = buffer(_PARTS, [*rows, info.blocks, form.fields])
        self._sums = buffer(_SUMS, [*rows, info.blocks])
        self._part = buffer(PART, [*rows, form.columns, info.blocks])
        self.buffers = [self._scaled, self._part] + ([self._parts, self._sums] if info.zero >= 0 else [])

    def stages(self) -> list[Any]:
        sums = [self._parts_stage(), self._sums_stage()] if self._form.info.zero >= 0 else []
        return [self._scaled_stage(), *sums, self._part_stage(), self._total_stage()]

    def _x_of(self, rows: Sequence[Any], block: Any, word: Any, field: Any) -> Any:
        """Scaled."""
        return load(self._scaled, block * self._form.words + word, *vars_of(rows), field)

    def _scaled_stage(self) -> Any:
        form = self._form
        word, rows, field = axis("w", form.info.blocks * form.words), self._anchor.rows(), axis("j", form.fields)
        k = word.var * form.fields + field.var
        value = self._anchor.x(rows, k)
        body = store(self._scaled, value * inverse(field.var, form.info.bits), word.var, *vars_of(rows), field.var)
        return nest(_SCALED, [word, *rows, field], {}, body, None)

    def _parts_stage(self) -> Any:
        """The sums of every field of a block's words, which makes vectors."""
        form = self._form
        rows, block, field = self._anchor.rows(), axis("b", form.info.blocks), axis("j", form.fields)
        word = axis("w", form.words, SUM)
        value = self._x_of(rows, block.var, word.var, field.var)
        at = [*vars_of(rows), block.var, field.var]
        return summed(_PARTS, [*rows, block, field, word], self._parts, at, value)

    def _sums_stage(self) -> Any:
        form = self._form
        rows, block = self._anchor.rows(), axis("b", form.info.blocks)
        field = axis("j", form.fields, SUM)
        value = load(self._parts, *vars_of(rows), block.var, field.var) * power(field.var, form.info.bits)
        return summed(_SUMS, [*rows, block, field], self._sums, [*vars_of(rows), block.var], value)

    def _part_stage(self) -> Any:
        form, info = self._form, self._form.info
        rows, n, block = self._anchor.rows(), axis("n", form.columns), axis("b", info.blocks)
        word, field = axis("w", form.words, SUM), axis("j", form.fields, SUM)
        panel, column = parted(n.var, form.panel)
        weight = load(self._anchor.words, panel, block.var, word.var, column)
        # every zero point is the one number that the kernel subtracts, or the difference is accounted for in `total`
        x = self._x_of(rows, block.var, word.var, field.var)
        value = x * float_of(weight, field.var, info.bits, self._anchor.point, form.is_looked_up)
        at = [*vars_of(rows), n.var, block.var]
        return summed(PART, [*rows, n, block, word, field], self._part, at, value)

    def _total_stage(self) -> Any:
        form, info = self._form, self._form.info
        rows, n, block = self._anchor.rows(), axis("n", form.columns), axis("b", info.blocks, SUM)
        panel, column = parted(n.var, form.panel)
        value = load(self._part, *vars_of(rows), n.var, block.var)
        if info.zero >= 0:
            zero = load(self._anchor.zero, panel, block.var, column).astype("float32")
            value = value + (float(middle(info.bits)) - zero) * load(self._sums, *vars_of(rows), block.var)
        value = value * load(self._anchor.scale, panel, block.var, column)
        return summed(self._anchor.name, [*rows, n, block], self._anchor.total, [*vars_of(rows), n.var], value)


def place_x(sch: Schedule, form: Form, lanes: int) -> None:
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

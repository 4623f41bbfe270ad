"""A product in words, and its anchor as the stages that take its place need it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from tvm import ir, tirx

from subtune.backends.cpu.families.packed_weights.words import WORD, WordPacking, middle, of_blocks
from subtune.core.kernel import ConstantTransform, NotApplicable
from subtune.patterns.packed_product import PackedProduct, factors
from subtune.tir.blocks import nest
from subtune.tir.statements import buffer, load, store
from subtune.tir.substitute import substitute

PART = "part"
"""The name of the stage of a block's products."""
SUM, EACH = tirx.IterVar.CommReduce, tirx.IterVar.DataPar


@dataclass(frozen=True, slots=True)
class Form:
    """The product in words; `panel` columns lie side by side."""

    info: PackedProduct
    panel: int
    is_looked_up: bool
    """Nibbles become floats by a table where that is less work."""
    is_of_digits: bool
    """Products are of integers."""
    at_once: int
    """Rows whose sums are in registers."""

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
        words = WordPacking(self.columns, self.panel, info.blocks, self.words, self.is_of_digits)
        blocks = of_blocks(self.columns, self.panel, info.blocks)
        return tuple((i, blocks if i != info.packed else words) for i in (info.packed, info.scale, info.zero) if i >= 0)


class Anchor:
    """The anchor's block: its axes, its x, and the parameters in the layout that the loops read."""

    def __init__(self, block: Any, form: Form) -> None:
        self.name, self._form, info = block.name_hint, form, form.info
        *self._outer, self._n = list(block.body.indices)
        (self._k,) = [iv.var for iv in block.iter_vars if int(iv.iter_type) == SUM]
        self._extents = {iv.var: int(iv.dom.extent) for iv in block.iter_vars}
        found = factors(block, self._n)
        assert not isinstance(found, NotApplicable), found.reason
        self._x = found[0]
        self._is_signed = any(str(region.source.dtype) == "int8" for region in block.reads)
        panels = form.columns // form.panel
        blocks = [panels, info.blocks, form.panel]
        self.words = buffer("words", [panels, info.blocks, form.words, form.panel], dtype="uint32")
        self.scale, self.zero = buffer("scale", blocks), buffer("zero", blocks, dtype="uint8")
        self.packed = {info.packed: self.words, info.scale: self.scale}
        if info.zero >= 0:
            self.packed[info.zero] = self.zero
        self.total = buffer("total", [*self.extents, form.columns])

    @property
    def extents(self) -> list[int]:
        """Of the axes of rows."""
        return [self._extents[axis] for axis in self._outer]

    @property
    def point(self) -> int:
        """Subtracted of every field, as the words have them: int8 is more there."""
        is_shifted = self._is_signed and self._form.info.zero < 0
        return self._form.point + (middle(8) if is_shifted else 0)

    def rows(self) -> list[Any]:
        return [axis(f"m{i}", extent) for i, extent in enumerate(self.extents)]

    def x(self, rows: Sequence[Any], k: Any) -> Any:
        """Zero beyond the end of a row."""
        value = substitute(self._x, dict(zip(self._outer, vars_of(rows), strict=True)) | {self._k: k})
        if self._form.length == self._form.info.length:
            return value
        inside = k < tirx.const(self._form.info.length, "int64")
        return tirx.if_then_else(inside, value, tirx.const(0.0, "float32"))

    def copied(self, result: Any) -> Any:
        """The stage that stores an output that is the sums themselves."""
        axes = [*self.rows(), axis("n", self._form.info.columns)]
        return nest("stored", axes, {}, store(result, load(self.total, *vars_of(axes)), *vars_of(axes)), None)


def axis(name: str, extent: int, kind: int = EACH) -> Any:
    return tirx.IterVar(
        ir.Range(tirx.const(0, "int64"), tirx.const(extent, "int64")), tirx.Var(f"v_{name}", "int64"), kind
    )


def vars_of(axes: Sequence[Any]) -> list[Any]:
    return [one.var for one in axes]


def parted(n: Any, panel: int) -> tuple[Any, Any]:
    """The panel of a column, and its place there."""
    size = tirx.const(panel, "int64")
    return tirx.floordiv(n, size), tirx.floormod(n, size)


def summed(name: str, axes: Sequence[Any], target: Any, at: Sequence[Any], value: Any) -> Any:
    """The stage that adds up `value`."""
    body = store(target, load(target, *at) + value, *at)
    return nest(name, axes, {}, body, store(target, tirx.const(0, str(target.dtype)), *at))

"""What a candidate of attention on mma.sync decides, and which rows share their keys."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import Any

from tvm import tirx

from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.attention.operands import Lying
from subtune.backends.many_shapes import TileShape
from subtune.patterns.chain import ChainExpressions
from subtune.tir.expressions import variables

DTYPES = ("float16", "bfloat16", "float32")
ROWS = 16
"""Of a warp: those of one multiplication."""
COPY_BYTES = 16
"""Of one asynchronous copy."""
_FEW = 16  # rows of a head, up to which heads that share keys are one head of more rows
DIRECT_DEPTH, DIRECT_COLUMNS = 32, 64
"""Of what a warp reads of K and of V at a time, straight into registers: 16 bytes a lane."""
_DIRECT_WORDS = 96  # of K and V, with which all else fits the registers
_DIRECT_REGISTERS = 32  # next to sums, scores, K, V and Q
_OTHER_REGISTERS = 48
_SQUEEZED = 1.1
"""By so much fewer registers cost less than one more block brings."""
_REGISTERS_AT_A_TIME = 8
_PART_PAD = 8  # floats behind a row's sums, so that rows are not all in the same banks: `source`'s PG
CLUSTERS = (2, 4, 8)
_UNROLLED = 6144
"""Keys times columns of a warp's step: what it multiplies is written out, and beyond does not fit the registers."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """A block has `row_warps` x `key_warps` warps, each with 16 rows and `keys` keys at a time, in `stages` stages.

    One stage: keys and values come straight into registers, not through shared memory.
    `splits` blocks share the keys of the same rows. Parts of warps are merged in shared memory, and so are those of
    blocks that are a `cluster`; else a second kernel merges those of blocks. `across`: blocks of the same rows are
    neighbours, those of all heads; else those of a head.
    """

    row_warps: int
    key_warps: int
    keys: int
    stages: int
    splits: int
    cluster: bool = False
    across: bool = False

    @property
    def is_direct(self) -> bool:
        return self.stages == 1

    @property
    def rows(self) -> int:
        return ROWS * self.row_warps

    @property
    def tile_shape(self) -> TileShape:
        return TileShape(step=self.keys * self.key_warps * self.splits)

    @property
    def threads(self) -> int:
        return 32 * self.row_warps * self.key_warps

    @property
    def step(self) -> int:
        """Keys of a block at a time."""
        return self.keys * self.key_warps

    @property
    def has_second(self) -> bool:
        """Whether a second kernel merges the blocks' parts."""
        return self.splits > 1 and not self.cluster

    @property
    def merges_here(self) -> bool:
        """Whether parts are merged in shared memory."""
        return self.key_warps > 1 or self.cluster

    def shared_elements(self, k: int, columns: int, size: int) -> int:
        """Of `size` bytes each: for Q and the stages of keys and values; for the warps' parts, when those are done."""
        pitches = _round(k, 16) + COPY_BYTES // size, _round(columns, 16) + COPY_BYTES // size
        copied = 0 if self.is_direct else self.rows * pitches[0] + self.stages * self.step * sum(pitches)
        if not self.merges_here:
            return copied
        return max(copied, self.key_warps * self.rows * (self.part_pitch(columns) + 2) * 4 // size)

    def part_pitch(self, columns: int) -> int:
        """Floats from one row of a warp's sums to the next, in shared memory."""
        return self.summed(columns) + _PART_PAD

    def summed(self, columns: int) -> int:
        """Columns of a row's sums, the last of which may be nothing."""
        return _round(columns, DIRECT_COLUMNS if self.is_direct else 16)

    def words(self, k: int, columns: int, halves: int) -> int:
        """Registers of a lane for its part of K, V and `halves` of its two rows of Q, where they lie in registers."""
        depth = _round(k, DIRECT_DEPTH)
        return self.keys * (depth + self.summed(columns)) // 64 + halves * depth // 8

    def least_blocks(self, k: int, columns: int, device: CUDAModel) -> int:
        """How many a compiler is told to make room for on a multiprocessor; 0: it is not told."""
        if not self.is_direct:
            return 0
        few = _round(ceil(self.registers(k, columns) / _SQUEEZED), _REGISTERS_AT_A_TIME)
        return device.registers_per_sm // (self.threads * few)

    def registers(self, k: int, columns: int) -> int:
        own = self.words(k, columns, 1) + _DIRECT_REGISTERS if self.is_direct else _OTHER_REGISTERS
        return min(255, self.summed(columns) // 2 + self.keys // 2 + own)


def _round(extent: int, to: int) -> int:
    return ceil(extent / to) * to


@dataclass(frozen=True, slots=True)
class Heads:
    """The outer axes, of which `axis` counts heads, `group` neighbours of it with the same keys; None: no such axis."""

    form: ChainExpressions
    axis: Any
    group: int

    @property
    def rows(self) -> int:
        """That share a head of keys."""
        return self.form.extents[self.form.m] * self.group

    @property
    def count(self) -> int:
        """Heads of keys."""
        return prod(self.form.extents[axis] for axis in self.form.outer) // self.group

    def at(self, head: Any, row: Any) -> dict[Any, Any]:
        """The outer axes and m at a row of a head; of rows past the last one, those of the last."""
        form, found = self.form, {}
        extent = form.extents[form.m]
        row = tirx.min(row, tirx.const(self.rows - 1, "int32"))
        for axis in reversed(form.outer):
            each = form.extents[axis] // (self.group if axis is self.axis else 1)
            index = tirx.floormod(head, tirx.const(each, "int32")) if axis is not form.outer[0] else head
            if axis is self.axis:
                index = index * self.group + tirx.floordiv(row, tirx.const(extent, "int32"))
            found[axis] = index
            head = tirx.floordiv(head, tirx.const(each, "int32"))
        return found | {form.m: tirx.floormod(row, tirx.const(extent, "int32")) if self.group > 1 else row}


def heads_of(form: ChainExpressions, k: Lying, v: Lying) -> Heads:
    """Heads whose rows are read with the same keys, where a head has few rows."""
    if form.extents[form.m] <= _FEW:
        for axis in reversed(form.outer):
            group = _sharing(axis, form.extents[axis], [term.value for term in (*k.terms, *v.terms)])
            if group > 1:
                return Heads(form, axis, group)
    return Heads(form, None, 1)


def _sharing(axis: Any, extent: int, values: list[Any]) -> int:
    """Neighbours along `axis` that all `values` are the same for."""
    groups = set()
    for value in values:
        if axis not in variables(value):
            continue
        if not isinstance(value, tirx.FloorDiv) or not value.a.same_as(axis) or not isinstance(value.b, tirx.IntImm):
            return 1
        groups.add(int(value.b.value))
    if not groups:
        return extent
    return groups.pop() if len(groups) == 1 and extent % min(groups) == 0 else 1


def obstacle(knobs: Knobs, k: int, columns: int, size: int, device: CUDAModel) -> str:
    """Why heads of `k` columns of Q and K, and `columns` of V, cannot have such tiles; "" where they can.

    Args:
        size: of an element in bytes.
    """
    if max(k, columns) > 256:
        return "heads of more than 256 columns"
    if knobs.keys > 16 and knobs.keys * max(k, columns) > _UNROLLED:
        return f"{knobs.keys} keys of {max(k, columns)} columns spill"
    if knobs.cluster and (device.capability < 90 or knobs.splits not in CLUSTERS):
        return f"a cluster of {knobs.splits} blocks"
    if knobs.is_direct and (why := _no_registers(knobs, k, columns, size)):
        return why
    if knobs.keys % 16 or knobs.stages < 1 or knobs.threads > device.max_threads_per_block:
        return f"{knobs.keys} keys in {knobs.stages} stages, {knobs.threads} threads"
    shared = size * knobs.shared_elements(k, columns, size)
    if shared > device.shared_per_block_bytes:
        return f"{shared} bytes of shared memory are too many"
    return ""


def _no_registers(knobs: Knobs, k: int, columns: int, size: int) -> str:
    """Why keys and values cannot come straight into registers; "" where they can."""
    if size != 2 or k % 8 or columns % 8:
        return "rows that are no whole 16 bytes of halves"
    if knobs.row_warps > 1 or not knobs.merges_here:
        return "warps that would read the same keys, or one that has none to share with"
    words = knobs.words(k, columns, 0)
    return f"{words} words of keys and values in registers" if words > _DIRECT_WORDS else ""

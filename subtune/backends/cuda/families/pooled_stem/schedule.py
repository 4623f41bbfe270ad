"""A network's first convolution and the max pooling of its result in one kernel: what lies between stays on the chip.

A band is some rows of the result. The rows of pixels that they look at are computed by `stem`'s kernel, rounded as the
model says, and kept in shared memory; rows that two bands look at are computed twice. Then every thread takes the
maxima of 8 channels at a time. What lies beyond the image is never read: the nearest pixel, which the window has as
well, stands for it.

Bytes are kept and compared as integers of 16 bits, of which an instruction compares two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.stem.plan import Plan, StemKnobs, front
from subtune.backends.cuda.families.wgmma.byte_floats import wide_of_byte
from subtune.backends.cuda.families.wgmma.exchange import STORE_MATRICES
from subtune.backends.cuda.families.wgmma.store import Store
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import dtype_bits
from subtune.patterns.pooled import Pooled

_VECTOR = 8  # channels: 16 bytes, as they are kept
_BYTES = 0x6420  # the lower one of each half of two words
_PAD = 8  # channels, so that no two rows of a store are in one bank
_LARGEST = {"float16": "max.NaN.f16x2", "bfloat16": "max.NaN.bf16x2", "uint8": "max.u16x2", "int8": "max.s16x2"}
"""Of two elements each, as they are kept."""


def rows_of_pixels(pattern: Pooled, rows: int) -> int:
    """What `rows` of the result look at."""
    return (rows - 1) * pattern.stride[0] + pattern.kernel[0]


def schedule(problem: Problem[CUDAModel], knobs: StemKnobs) -> Kernel | NotApplicable:
    """`knobs.rows` are those of the result."""
    pattern = problem.pattern
    if not isinstance(pattern, Pooled):
        return NotApplicable("no pooling of a convolution")
    found, pixels = front(pattern.front, problem), replace(knobs, rows=rows_of_pixels(pattern, knobs.rows))
    plan = found if isinstance(found, NotApplicable) else found.plan(pixels, problem.device.sms, in_place=False)
    if isinstance(plan, NotApplicable):
        return plan
    store = plan.store
    if store.first is not store.epilogue.value or store.dtype not in _LARGEST:
        return NotApplicable("the epilogue depends on the pixel")
    arg = problem.workload.args[-1]
    result = T.buffer(list(arg.shape), arg.dtype, align=16, buffer_name=arg.name)
    sink = PooledRows(plan, pattern, knobs, result)
    *inputs, _ = plan.buffers.values()
    return plan.kernel(sink, (*inputs, result), problem.device.sms)


@dataclass(frozen=True, slots=True)
class PooledRows:
    """See `stem.kernel.Sink`: the band's pixels are kept, and then pooled."""

    plan: Plan
    pattern: Pooled
    knobs: StemKnobs
    result: Any

    @property
    def store(self) -> Store:
        return self.plan.store

    @property
    def patches(self) -> int:
        return 1

    @property
    def bands(self) -> int:
        return ceil(self.pattern.out_size[0] / self.knobs.rows)

    @property
    def advance(self) -> int:
        return self.knobs.rows * self.pattern.stride[0]

    @property
    def above(self) -> int:
        return self.pattern.before[0]

    @property
    def _pitch(self) -> int:
        return self.plan.tiling.columns + _PAD

    @property
    def staging(self) -> tuple[int, str]:
        """In words; all pixels of all warpgroups, those beyond the band's as well."""
        at_once = 64 * self.knobs.groups
        pixels = ceil(self.plan.stem.rows * self.plan.stem.out_width / at_once) * at_once
        return pixels * self._pitch // 2, "uint32"

    def emit(
        self, sums: Any, staging: Any, band: tuple[Any, Any], first: Any, group: Any, lane: Any, of_columns: list[Any]
    ) -> None:
        """64 pixels, rounded, 16 rows and 16 columns of a warp at a time."""
        store, columns, pitch = self.plan.store, self.plan.tiling.columns, self._pitch
        corner = {g: tirx.const(0, "int32") for g in (*store.view.batch, *store.view.rows, store.view.n)}
        kept = store.dtype if dtype_bits(store.dtype) == 16 else "int16"
        for j in range(columns // 16):
            eight = T.alloc_local((8,), kept)
            for e in range(8):
                column = j * 16 + e // 4 * 8 + lane % 4 * 2 + e % 2
                value = store.staged(sums[j * 8 + e], corner, column, [there[column] for there in of_columns])
                T.buffer_store(eight, wide_of_byte(value).astype(kept), [e])
            words = eight.view("uint32")
            pixel = first + lane // 32 * 16 + lane % 16
            where = (pixel * pitch + j * 16 + lane % 32 // 16 * 8) // 2
            T.evaluate(T.ptx[STORE_MATRICES](staging.ptr_to([where]), *(words[i] for i in range(4))))

    # long: one piece of a kernel in TVMScript
    def finish(self, staging: Any, band: tuple[Any, Any], tid: Any) -> None:
        """The maxima of the band's windows."""
        p, knobs, plan = self.pattern, self.knobs, self.plan
        image, top = band
        channels = plan.tiling.columns
        across = channels // _VECTOR
        count, threads = knobs.rows * p.out_size[1] * across, 128 * knobs.groups
        words = _VECTOR // 2
        largest = T.ptx[_LARGEST[str(self.result.dtype)]]
        per_word = 32 // dtype_bits(str(self.result.dtype))
        total = plan.images * p.out_size[0] * p.out_size[1] * channels // per_word

        def nearest(index: Any, extent: int) -> Any:
            return tirx.max(tirx.min(index, extent - 1), 0)

        def place(row: Any, column: Any, c: Any, tap: int) -> Any:
            """The first word of what a window's tap reads; `row` and `column` of the result."""
            r = nearest(row * p.stride[0] + (tap // p.kernel[1] - p.before[0]), p.size[0]) - top
            x = nearest(column * p.stride[1] + (tap % p.kernel[1] - p.before[1]), p.size[1])
            return ((r * plan.stem.out_width + x) * self._pitch) // 2 + c * words

        def stored(best: Any, w: Any) -> Any:
            """A word of the result: of bytes, those of two words."""
            if per_word == 2:
                return best[w]
            return tirx.call_pure_extern(
                "uint32", "__byte_perm", best[2 * w], best[2 * w + 1], tirx.const(_BYTES, "int32")
            )

        # fmt: off
        @T.inline
        def body() -> None:
            out = T.decl_buffer((total,), "uint32", data=self.result.data)
            for turn in T.serial(-(-count // threads)):
                v: T.let[T.int32] = turn * threads + tid
                c: T.let[T.int32] = v % across
                column: T.let[T.int32] = v // across % p.out_size[1]
                within: T.let[T.int32] = v // (across * p.out_size[1])
                row: T.let[T.int32] = (top + p.before[0]) // p.stride[0] + within
                if tirx.all(within < knobs.rows, row < p.out_size[0]):
                    best = T.alloc_local((words,), "uint32")
                    other = T.alloc_local((words,), "uint32")
                    begin: T.let[T.int32] = place(row, column, c, 0)
                    for w in T.vectorized(words):
                        best[w] = staging[begin // words * words + w]
                    for tap in T.unroll(1, p.kernel[0] * p.kernel[1]):
                        at = T.meta_var(T.Bind(place(row, column, c, tap)))
                        for w in T.vectorized(words):
                            other[w] = staging[at // words * words + w]
                        for w in T.unroll(words):
                            largest(best[w], best[w], other[w])
                    to: T.let[T.int32] = ((image * p.out_size[0] + row) * p.out_size[1] + column) * across + c
                    for w in T.vectorized(_VECTOR // per_word):
                        out[to * (_VECTOR // per_word) + w] = stored(best, w)
            T.cuda.cta_sync()  # nobody reads these pixels any more
        # fmt: on

        body()

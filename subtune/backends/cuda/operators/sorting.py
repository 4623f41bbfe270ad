"""TopK, sorting and arg-sorting as kernels: who has a row, and whether rows are sorted or selected from.

Nothing is tuned: rows of up to `_SHORT` elements are a warp's; where few of a row are wanted they are selected, by
several blocks where rows are long and few; else a block sorts the row, or a part of it, in shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from tvm import tirx

from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.operators.kernels import NOTHING, Written, span, written
from subtune.backends.cuda.operators.selection_source import SELECTION
from subtune.backends.cuda.operators.sorting_source import SORTING
from subtune.backends.cuda.source.calls import address, called
from subtune.backends.cuda.source.emit import Code, const
from subtune.core.kernel import NotApplicable
from subtune.core.workload import dtype_bits

_SHORT, _WARPS = 128, 8
_MAX_THREADS, _MAX_ITEMS = 1024, 16
_MAX_SELECTED = 1024
_MAX_MERGED = 4096
"""Pairs in the static shared memory of a block."""
_PART, _SORTED_PART = 4096, 2048
"""Elements that are worth a block of their own, to select from and to sort."""
_MAX_PARTS = 8
"""Of a row that a block could sort: every element is searched for in all others."""
_RANKING = 256
"""Threads of a block that merges parts."""


@dataclass(frozen=True, slots=True)
class Sorted:
    """The first `count` of the `length` elements of every row of an array [outer, length, inner], in their order."""

    dtype: str
    outer: int
    length: int
    inner: int
    count: int
    largest: bool
    outputs: tuple[str, ...]
    """`values` and `places`, or one of them."""
    place_dtype: str

    @property
    def rows(self) -> int:
        return self.outer * self.inner


@dataclass(frozen=True, slots=True)
class Plan:
    """`threads` with `items` elements each, of a row or of one of its `parts`; `is_whole`: these are sorted."""

    threads: int
    items: int
    parts: int = 1
    is_whole: bool = False


def plan_of(op: Sorted, device: CUDAModel) -> Plan | NotApplicable:
    """Who sorts a row that is too long for a warp."""
    bits = max(32, dtype_bits(op.dtype))
    is_selected = op.count <= _MAX_SELECTED and 4 * op.count <= op.length and bits == 32
    if not is_selected:
        return _whole_plan(op, device, bits)
    wanted = max(1, min(2 * device.sms // op.rows, op.length // _PART, _MAX_MERGED // _power(op.count)))
    while (plan := _selecting(ceil(op.length / wanted))).items > _MAX_ITEMS:
        wanted += 1
    parts = ceil(op.length / (plan.threads * plan.items))
    if parts > 1 and parts * op.count > _MAX_MERGED:
        return NotApplicable(f"{op.count} of {op.length} elements are more than what parts of rows are merged from")
    return Plan(plan.threads, plan.items, parts)


def _whole_plan(op: Sorted, device: CUDAModel, bits: int) -> Plan | NotApplicable:
    """Parts where rows are few, or longer than what a block sorts."""
    few = min(2 * device.sms // op.rows, op.length // _SORTED_PART, _MAX_PARTS)
    for parts in range(max(1, few), 2 * _MAX_PARTS + 1):
        plan = _fitting(ceil(op.length / parts), is_whole=True)
        if plan.items <= _MAX_ITEMS and shared_bytes(plan, bits) <= device.shared_per_block_bytes:
            return replace(plan, parts=parts)
    return NotApplicable(f"rows of {op.length} elements are longer than what is merged from parts")


def _selecting(length: int) -> Plan:
    """Eight elements a thread, but rather sixteen than so many threads that barriers take longer than their work."""
    plan = _fitting(length, is_whole=False)
    if plan.threads == _MAX_THREADS and length <= _MAX_THREADS // 2 * _MAX_ITEMS:
        return _of_threads(_MAX_THREADS // 2, length, is_whole=False)
    return plan


def _fitting(length: int, is_whole: bool) -> Plan:
    """The fewest threads that have a row of `length` with eight elements each, if any have."""
    threads = 128
    while threads < _MAX_THREADS and threads * 8 < length:
        threads *= 2
    return _of_threads(threads, length, is_whole)


def _of_threads(threads: int, length: int, is_whole: bool) -> Plan:
    items = ceil(length / threads)
    return Plan(threads, items if items <= 8 else ceil(items / 4) * 4, is_whole=is_whole)


def shared_bytes(plan: Plan, bits: int) -> int:
    """Of a block that sorts a row: keys, numbers, counts of digits for every warp, and totals."""
    return plan.threads * plan.items * (bits // 8 + 2) + plan.threads // 32 * 512 + 1024


def sorted_kernels(op: Sorted, device: CUDAModel) -> Written | NotApplicable:
    """The function of the operator: its argument, then its outputs."""
    shape = (op.outer, op.length, op.inner)
    outputs = [((op.outer, op.count, op.inner), op.dtype if one == "values" else op.place_dtype) for one in op.outputs]
    if op.length <= _SHORT:
        return written([(shape, op.dtype)], outputs, lambda x, *made: ([_short(op, x, made)], []))
    plan = plan_of(op, device)
    if isinstance(plan, NotApplicable):
        return plan
    if plan.is_whole:
        return written([(shape, op.dtype)], outputs, lambda x, *made: _whole(op, plan, x, made))
    return written([(shape, op.dtype)], outputs, lambda x, *made: _selected(op, plan, x, made))


def _flags(op: Sorted) -> list[str]:
    return [str(one in op.outputs).lower() for one in ("values", "places")]


def _pointers(op: Sorted, x: Any, made: tuple[Any, ...]) -> list[Any]:
    """Of the input, the values and the places; of what is not wanted, any of the same type."""
    by_name = dict(zip(op.outputs, made, strict=True))
    values, places = by_name.get("values", x), by_name.get("places", made[0])
    return [address(buffer, const(0)) for buffer in (x, values, places)]


def _sizes(op: Sorted) -> list[Any]:
    return [const(op.length), const(op.count), const(op.inner)]


def _call(name: str, parameters: list[Any], arguments: list[Any]) -> Any:
    return called(f"subtune::{name}<{', '.join(map(str, parameters))}>", arguments, SORTING + SELECTION)


def _short(op: Sorted, x: Any, made: tuple[Any, ...]) -> Any:
    code = Code()
    code.thread("blockIdx.x", ceil(op.rows / _WARPS))
    code.thread("threadIdx.x", _WARPS * 32)
    parameters = [str(op.largest).lower(), _WARPS, ceil(op.length / 32), *_flags(op)]
    code.emit(_call("short_rows", parameters, [*_pointers(op, x, made), const(op.rows), *_sizes(op)]))
    return code.kernel()


def _whole(op: Sorted, plan: Plan, x: Any, made: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    bits, pointers = max(32, dtype_bits(op.dtype)), _pointers(op, x, made)
    keys = tirx.decl_buffer([const(op.rows * op.length)], f"uint{bits}", "keys")
    numbers = tirx.decl_buffer([const(op.rows * op.length)], "int32", "numbers")
    is_in_parts = plan.parts > 1
    between = [*span(keys), *span(numbers)] if is_in_parts else [*NOTHING, *NOTHING]
    sizes = [*_sizes(op), const(ceil(op.length / plan.parts))]
    code = Code()
    code.thread("blockIdx.x", op.rows * plan.parts)
    code.thread("threadIdx.x", plan.threads)
    shared = code.dynamic("uint8", shared_bytes(plan, bits))
    parameters = [str(op.largest).lower(), plan.threads, plan.items, plan.parts, *_flags(op)]
    code.emit(_call("sorted_rows", parameters, [*pointers, *between, *sizes, *span(shared)]))
    if not is_in_parts:
        return [code.kernel()], []
    merge = Code()
    merge.thread("blockIdx.x", ceil(op.rows * op.length / _RANKING))
    merge.thread("threadIdx.x", _RANKING)
    parameters = [_RANKING, plan.parts, *_flags(op)]
    merge.emit(_call("ranked_rows", parameters, [*pointers, *between, *sizes, const(op.rows)]))
    return [code.kernel(), merge.kernel()], [keys, numbers]


def _selected(op: Sorted, plan: Plan, x: Any, made: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    found = tirx.decl_buffer([const(op.rows * plan.parts * op.count)], "uint64", "found")
    size, pointers = _power(op.count), _pointers(op, x, made)
    pairs = span(found) if plan.parts > 1 else NOTHING
    code = Code()
    code.thread("blockIdx.x", op.rows * plan.parts)
    code.thread("threadIdx.x", plan.threads)
    parameters = [str(op.largest).lower(), plan.threads, plan.items, plan.parts, size, *_flags(op)]
    code.emit(_call("first_of_rows", parameters, [*pointers, *pairs, *_sizes(op)]))
    if plan.parts == 1:
        return [code.kernel()], []
    merge, size = Code(), _power(plan.parts * op.count)
    threads = max(32, min(_MAX_THREADS, size // 2))
    merge.thread("blockIdx.x", op.rows)
    merge.thread("threadIdx.x", threads)
    parameters = [threads, plan.parts, size, *_flags(op)]
    merge.emit(_call("merged_rows", parameters, [*pointers, *pairs, *_sizes(op)]))
    return [code.kernel(), merge.kernel()], [found]


def _power(count: int) -> int:
    """The least power of two that is not below `count`."""
    return 1 << (count - 1).bit_length()

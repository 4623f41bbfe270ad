"""Running sums and products as kernels: rows by blocks, columns by threads; in parts where they are long and few."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from tvm import tirx

from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.operators.kernels import NOTHING, Written, span, written
from subtune.backends.cuda.operators.scan_source import SCANS
from subtune.backends.cuda.source.calls import address, called
from subtune.backends.cuda.source.emit import Code, const

_ITEMS = 8  # elements of a thread at a time
_MIN_PART = 2048  # elements of a row that are worth a block
_MIN_COLUMN, _COLUMN_THREADS = 16, 128
_FILLS = 1024
"""Threads of a multiprocessor that hide its memory's latency."""
_MAX_PARTS = 256
_TYPES = {
    "float16": "float", "bfloat16": "float", "float32": "float", "float64": "double", "int32": "int",
    "int64": "long long", "uint32": "unsigned", "uint64": "unsigned long long", "int8": "int", "int16": "int",
    "uint8": "unsigned", "uint16": "unsigned",
}  # fmt: skip
"""In which C++ type totals are kept, by the output's."""


@dataclass(frozen=True, slots=True)
class Scan:
    """The running totals along the middle axis of an array [outer, length, inner]."""

    dtype: str
    out_dtype: str
    outer: int
    length: int
    inner: int
    is_product: bool
    is_exclusive: bool


def parts_of(op: Scan, device: CUDAModel) -> int:
    """Into how many parts of a line: so many that they occupy the device."""
    if op.inner == 1:
        wanted, most = 4 * device.sms // max(op.outer, 1), op.length // _MIN_PART
    else:
        wanted, most = _FILLS * device.sms // (op.outer * op.inner), op.length // _MIN_COLUMN
    return max(1, min(wanted, most, _MAX_PARTS))


def scan_kernels(op: Scan, device: CUDAModel) -> Written:
    """The function of the operator: its argument, then its output."""
    shape = (op.outer, op.length, op.inner)
    make = _rows if op.inner == 1 else _columns
    return written([(shape, op.dtype)], [(shape, op.out_dtype)], lambda x, y: make(op, parts_of(op, device), x, y))


def _rows(op: Scan, parts: int, x: Any, y: Any) -> tuple[list[Any], list[Any]]:
    threads = 32
    while threads < 512 and threads * _ITEMS < op.length:
        threads *= 2
    length = ceil(op.length / parts)
    scanned = [threads, min(_ITEMS, ceil(length / threads)), parts]
    return _kernels(op, parts, (op.outer * parts, threads), ("row_parts", [threads, parts], "scan_rows", scanned), x, y)


def _columns(op: Scan, parts: int, x: Any, y: Any) -> tuple[list[Any], list[Any]]:
    threads, columns = _COLUMN_THREADS, op.outer * op.inner
    size = ceil(columns * parts / threads), threads
    return _kernels(
        op, parts, size, ("column_parts", [threads, parts], "scan_columns", [threads, parts]), x, y,
        const(op.inner), const(columns),
    )  # fmt: skip


def _kernels(
    op: Scan, parts: int, size: tuple[int, int], calls: tuple[str, list[int], str, list[int]], x: Any, y: Any,
    *more: Any,
) -> tuple[list[Any], list[Any]]:  # fmt: skip
    """The scan, and before it, where there are parts, their totals. `size` is blocks and threads."""
    lines = op.outer * op.inner
    first, first_numbers, second, second_numbers = calls
    total_dtype = {"float": "float32", "double": "float64"}.get(_TYPES[op.out_dtype], op.out_dtype)
    total_dtype = {"int": "int32", "unsigned": "uint32"}.get(_TYPES[op.out_dtype], total_dtype)
    totals = tirx.decl_buffer([const(lines * parts)], total_dtype, "totals")
    of = [f"subtune::{'Product' if op.is_product else 'Sum'}", _TYPES[op.out_dtype]]
    extents = [const(op.length), const(-(-op.length // parts)), *more]
    kernels = []
    if parts > 1:
        arguments = [address(x, const(0)), *span(totals), *extents]
        kernels.append(_kernel(size, first, [*of, *first_numbers], arguments))
    given = span(totals) if parts > 1 else NOTHING
    numbers = [*of, *second_numbers, str(op.is_exclusive).lower()]
    kernels.append(_kernel(size, second, numbers, [address(x, const(0)), address(y, const(0)), *given, *extents]))
    return kernels, [totals] if parts > 1 else []


def _kernel(size: tuple[int, int], name: str, parameters: list[Any], arguments: list[Any]) -> Any:
    code = Code()
    code.thread("blockIdx.x", size[0])
    code.thread("threadIdx.x", size[1])
    code.emit(called(f"subtune::{name}<{', '.join(map(str, parameters))}>", arguments, SCANS))
    return code.kernel()

"""How the tiles of an epilogue are stored: what is staged, and what goes 16 bytes at a time."""

from __future__ import annotations

from typing import Any

import tvm_ffi

from subtune.backends.cuda.families.wgmma.epilogue import STORED, Epilogue, loads_beside, narrowest, split
from subtune.backends.cuda.families.wgmma.store import Store
from subtune.backends.cuda.families.wgmma.walk import Walk
from subtune.core.kernel import NotApplicable
from subtune.core.workload import dtype_bits
from subtune.tir.expressions import distinct, loads, variables

_VECTOR_BYTES = 16
_FETCHED_BITS = 32
_MAX_FETCHED = 3


def store_of(
    epilogue: Epilogue, walk: Walk, buffers: dict[Any, Any], fetches_late: bool = False
) -> Store | NotApplicable:
    """Decide how the tiles of an epilogue are stored, or say why they cannot be.

    Args:
        fetches_late: the columns' operands behind the exchange are fetched, not loaded anew for every row.
    """
    view = walk.view
    rows = {epilogue.axes[axis] for g in view.rows for axis in view.groups[g].axes}
    first = split(epilogue.value, epilogue.acc, rows)
    if first is not epilogue.value:
        first = narrowest(first, epilogue.acc)  # it changes threads in shared memory: a rounding's result is smaller
    dtype = str(first.ty.dtype)
    if dtype not in STORED:
        return NotApplicable(f"the epilogue goes through {dtype}")
    (column,) = (epilogue.axes[axis] for axis in view.groups[view.n].axes)
    size = max(dtype_bits(dtype), dtype_bits(epilogue.dtype)) // 8
    vector = _aligned(epilogue.out, epilogue.indices, column, _VECTOR_BYTES // size)
    wide: list[Any] = []
    late: list[Any] = []
    if first is not epilogue.value:
        rest = [load for load in loads_beside(epilogue.value, first) if column in variables(list(load.indices))]
        fitting = [_VECTOR_BYTES * 8 // dtype_bits(str(load.source.dtype)) for load in rest]
        vector = min([vector, *fitting])
        if fetches_late:
            late = distinct([load for load in rest if not variables(list(load.indices)) & rows])
            rest = [load for load in rest if variables(list(load.indices)) & rows]
        for load in rest:
            fits = _aligned(load.source, load.indices, column, vector) == vector
            if vector > 1 and fits and not any(tvm_ffi.structural_equal(load, known) for known in wide):
                wide.append(load)
    fetched = distinct([
        load for load in loads(first)
        if column in variables(list(load.indices)) and dtype_bits(str(load.source.dtype)) <= _FETCHED_BITS
    ])  # fmt: skip
    found = [*fetched, *late][:_MAX_FETCHED]
    count = max(0, len(found) - len(fetched))
    return Store(epilogue, first, dtype, vector, tuple(wide), tuple(found), walk, buffers, count, copies=())


def _aligned(buffer: Any, indices: Any, column: Any, most: int) -> int:
    """Elements along `column` that one access may take."""
    *others, last = indices
    if not last.same_as(column) or column in variables(others):
        return 1
    while int(buffer.shape[-1]) % most:
        most //= 2
    return most

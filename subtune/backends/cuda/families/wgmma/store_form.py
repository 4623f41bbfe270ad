"""How the tiles of an epilogue are stored: what is staged, and what goes 16 bytes at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from subtune.backends.cuda.families.wgmma.byte_floats import floats_of_rounded
from subtune.backends.cuda.families.wgmma.epilogue import STORED, Epilogue, loads_beside, narrowest, split
from subtune.backends.cuda.families.wgmma.exchange import Exchange, WarpExchange
from subtune.backends.cuda.families.wgmma.in_place import InPlace
from subtune.backends.cuda.families.wgmma.store import Store
from subtune.backends.cuda.families.wgmma.tiling import chunk_columns
from subtune.backends.cuda.families.wgmma.transposed import TransposedExchange
from subtune.backends.cuda.families.wgmma.walk import Walk
from subtune.core.kernel import NotApplicable
from subtune.core.workload import dtype_bits
from subtune.tir.expressions import distinct, loads, variables

_VECTOR_BYTES = 16
_FETCHED_BITS = 32
MAX_FETCHED = 3


def store_of(
    epilogue: Epilogue, walk: Walk, buffers: dict[Any, Any], fetches_late: bool = False, in_place: bool = False
) -> Store | NotApplicable:
    """Decide how the tiles of an epilogue are stored, or say why they cannot be.

    Args:
        fetches_late: the columns' operands behind the exchange are fetched, not loaded anew for every row.
        in_place: B could be packed so that a thread's sums are neighbours. Where that is of use, the store's
            `exchange` is `InPlace`, and it has to be.
    """
    view = walk.view
    rows = {epilogue.axes[axis] for g in view.rows for axis in view.groups[g].axes}
    (column,) = (epilogue.axes[axis] for axis in view.groups[view.n].axes)
    if in_place and (found := _in_place(epilogue, walk, buffers, (rows, column))) is not None:
        return found
    first = split(epilogue.value, epilogue.acc, rows)
    if first is not epilogue.value:
        first = narrowest(first, epilogue.acc)  # it changes threads in shared memory: a rounding's result is smaller
    dtype = str(first.ty.dtype)
    if dtype not in STORED:
        return NotApplicable(f"the epilogue goes through {dtype}")
    size = max(dtype_bits(dtype), dtype_bits(epilogue.dtype)) // 8
    vector = _aligned(epilogue.out, epilogue.indices, column, _VECTOR_BYTES // size)
    rest = _of_column(loads_beside(epilogue.value, first), epilogue, column)
    vector = min([vector, *(_VECTOR_BYTES * 8 // dtype_bits(str(load.source.dtype)) for load in rest)])
    if not walk.tiling.swapped:  # 16 rows are at least a vector for each thread of a warp
        vector = min(vector, max(1, chunk_columns(walk.tiling.stored_columns, dtype) // 2))
    late = _without(rows, rest) if fetches_late else []
    rest = _with(rows, rest) if fetches_late else rest
    wide = [one for one in rest if vector > 1 and _aligned(one.source, one.indices, column, vector) == vector]
    exchange = (TransposedExchange if walk.tiling.swapped else WarpExchange)(walk.tiling, dtype, vector)
    return _store(epilogue, first, exchange, (wide, _fetched(first, epilogue, column), late), walk, buffers)


def _in_place(epilogue: Epilogue, walk: Walk, buffers: dict[Any, Any], axes: tuple[set[Any], Any]) -> Store | None:
    """Where a thread's neighbours are whole vectors of all that is stored, and loaded of rows."""
    rows, column = axes
    epilogue = replace(epilogue, value=floats_of_rounded(epilogue.value))
    first = split(epilogue.value, epilogue.acc, rows)
    exchange = InPlace(walk.tiling, str(first.ty.dtype))
    rest = _of_column(loads_beside(epilogue.value, first), epilogue, column)
    wide, late = _with(rows, rest), _without(rows, rest)
    stored = ((epilogue.out, epilogue.indices), *((load.source, load.indices) for load in wide))
    are_bytes = all(dtype_bits(str(buffer.dtype)) == 8 for buffer, _ in stored)
    if not are_bytes or any(_aligned(*one, column, exchange.vector) != exchange.vector for one in stored):
        return None
    return _store(epilogue, first, exchange, (wide, _fetched(first, epilogue, column), late), walk, buffers)


def _store(
    epilogue: Epilogue, first: Any, exchange: Exchange, read: tuple[list[Any], list[Any], list[Any]], walk: Walk,
    buffers: dict[Any, Any],
) -> Store:  # fmt: skip
    wide, early, late = read
    fetched = distinct([*early, *late])[:MAX_FETCHED]
    count = max(0, len(fetched) - len(early))
    dtype = str(first.ty.dtype)
    return Store(epilogue, first, dtype, exchange.vector, exchange, tuple(distinct(wide)), tuple(fetched), walk,
                 buffers, count, copies=())  # fmt: skip


def _of_column(found: list[Any], epilogue: Epilogue, column: Any) -> list[Any]:
    """Those of the loads that are of a column, and of no sum, as of a table."""
    read = [(load, variables(list(load.indices))) for load in found]
    return [load for load, used in read if column in used and epilogue.acc not in used]


def _with(rows: set[Any], found: list[Any]) -> list[Any]:
    return [load for load in found if variables(list(load.indices)) & rows]


def _without(rows: set[Any], found: list[Any]) -> list[Any]:
    return distinct([load for load in found if not variables(list(load.indices)) & rows])


def _fetched(first: Any, epilogue: Epilogue, column: Any) -> list[Any]:
    read = _of_column(loads(first), epilogue, column)
    return distinct([load for load in read if dtype_bits(str(load.source.dtype)) <= _FETCHED_BITS])


def _aligned(buffer: Any, indices: Any, column: Any, most: int) -> int:
    """Elements along `column` that one access may take."""
    *others, last = indices
    if not last.same_as(column) or column in variables(others):
        return 1
    while int(buffer.shape[-1]) % most:
        most //= 2
    return most

"""A tile of sums on its way to memory: the epilogue on registers, an exchange in shared memory, 16-byte stores.

    per warp, 16 rows and 128 bytes of columns at once:
        staged = first(sum, column)             on the registers of the multiplication: bias, scale, activation
        out[...] = rest(staged, row, column)    after the exchange, 16 bytes of a row to a thread: residual and the like

The split is `epilogue.split`'s. `staged` has the dtype that the model's own TIR has there, so nothing is rounded that
the model does not round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.script import tirx as T

from subtune.anchor import variables
from subtune.gemm_view import GemmView
from subtune.kernel import NotApplicable
from subtune.templates.cuda.wgmma_epilogue import NARROW, STORED, Epilogue, Rebuild, loads_beside, split
from subtune.wgmma_tiling import Tiling, chunk_columns, chunk_pitch
from subtune.workload import dtype_bits

_VECTOR_BYTES = 16
_MATRICES = "stmatrix.sync.aligned.m8n8.x4.shared.b16"


@dataclass(frozen=True, slots=True)
class Store:
    """How a tile is stored: `first` of the epilogue is staged as `dtype`; `vector` elements of a row go at once.

    `wide`: loads of the rest that a thread does as one vector. `buffers`: the kernel's, for each of the workload's.
    """

    epilogue: Epilogue
    first: Any
    dtype: str
    vector: int
    wide: tuple[Any, ...]
    view: GemmView
    tiling: Tiling
    buffers: dict[Any, Any]

    def shared_elements(self) -> int:
        return self.tiling.consumers * 4 * 16 * chunk_pitch(self.tiling.columns, self.dtype)

    def env(self, at: dict[int, Any]) -> dict[Any, Any]:
        """The anchor's axes from the index into each group of them."""
        values = {var: tirx.const(0, "int32") for var in self.epilogue.axes}
        for g, index in at.items():
            group = self.view.groups[g]
            for axis, extent in reversed(list(zip(group.axes, group.extents, strict=True))):
                last = axis == group.axes[0]
                values[self.epilogue.axes[axis]] = index if last else index % extent
                index = index if last else index // extent
        return values

    def staged(self, total: Any, at: dict[int, Any], column: Any) -> Any:
        """`first` of one sum."""
        n = self.view.n
        if self.view.extent(n) % self.tiling.columns:
            column = tirx.min(column, self.view.extent(n) - 1)  # what is loaded beyond is not stored
        known = {g: at[g] for g in self.view.batch} | {n: column}
        if str(total.ty.dtype) == "uint32":  # registers of an integer multiplication
            total = tirx.reinterpret("int32", total)
        value = Rebuild(self.env(known), {self.epilogue.acc: total}, self.buffers)(self.first)
        return value.astype(self.dtype)

    def stored(self, value: Any, at: dict[int, Any], loaded: dict[Any, Any]) -> Any:
        """What is stored for one element."""
        value = value.astype("float32") if self.dtype in NARROW else value
        found = Rebuild(self.env(at), {self.first: value, **loaded}, self.buffers)(self.epilogue.value)
        return found.astype(self.epilogue.dtype)

    def index(self, indices: Any, at: dict[int, Any]) -> list[Any]:
        return [Rebuild(self.env(at))(i) for i in indices]

    def emit(
        self, sums: Any, staging: Any, corner: dict[int, Any], first: Any, consumer: Any, lane: Any, m64: int
    ) -> None:
        """Store `m64` times 64 rows of the tile at `corner`, from `first` on; `lane`: the consumer's thread of 128."""
        t, view, vector = self.tiling, self.view, self.vector
        width, pitch = chunk_columns(t.columns, self.dtype), chunk_pitch(t.columns, self.dtype)
        n, out = view.n, self.buffers[self.epilogue.out]
        per_row, count = width // vector, t.columns // 2
        is_16 = dtype_bits(self.dtype) == 16
        is_plain = self.first is self.epilogue.value
        columns = view.extent(n)
        # codegen vectorises a load only where it sees in the index itself that it is aligned
        aligned = corner[n] // vector * vector

        def of_row(row: Any) -> dict[int, Any]:
            at = dict(corner)
            for g, rows in reversed(list(zip(view.rows, t.rows, strict=True))):
                at[g] = corner[g] + (row % rows if g != view.rows[0] else row)
                row = row // rows
            return at

        def inside(at: dict[int, Any], column: Any) -> Any:
            """True, or the condition under which the elements are the tile's own."""
            ragged = [
                at[g] < view.groups[g].extent
                for g, rows in zip(view.rows, t.rows, strict=True)
                if view.groups[g].extent % rows
            ]
            ragged += [column < columns] if columns % t.columns else []
            return tirx.all(*ragged) if ragged else True

        def first_of(j: Any, h: Any) -> Any:
            """Column of the first of two sums: h is half of the 16 columns, then half of the 16 rows."""
            return j * 16 + h // 2 * 8 + lane % 4 * 2

        def placed(at: dict[int, Any], column: Any) -> dict[int, Any]:
            return {**at, n: column}

        def indices(at: dict[int, Any], column: Any) -> list[Any]:
            return self.index(self.epilogue.indices, placed(at, column))

        def load_wide(others: list[Any], at: dict[int, Any], column: Any) -> None:
            for load, local in zip(self.wide, others, strict=True):
                with T.vectorized(vector) as v:
                    source = self.buffers[load.source]
                    value = tirx.BufferLoad(source, self.index(load.indices, placed(at, column + v)))
                    T.buffer_store(local, value, [v])

        def loaded(others: list[Any], v: Any) -> dict[Any, Any]:
            return {
                load: local[v].astype("float32") if str(load.source.dtype) in NARROW else local[v]
                for load, local in zip(self.wide, others, strict=True)
            }

        # fmt: off
        @T.inline
        def body() -> None:
            base: T.let[T.int32] = (consumer * 4 + lane // 32) * (16 * pitch)
            own: T.let[T.int32] = lane % 32
            eight = T.alloc_local((8,), self.dtype)
            values = T.alloc_local((vector,), self.dtype)
            others = T.meta_var([T.alloc_local((vector,), str(load.source.dtype)) for load in self.wide])
            results = T.alloc_local((vector,), self.epilogue.dtype)
            for m in T.unroll(m64):
                for chunk in T.unroll(t.columns // width):
                    for j in T.unroll(width // 16):
                        for e in T.unroll(8):
                            total = T.meta_var(sums[m * count + chunk * (width // 2) + j * 8 + e])
                            at_n = T.meta_var(corner[n] + chunk * width + first_of(j, e // 2) + e % 2)
                            eight[e] = self.staged(total, corner, at_n)
                        if is_16:
                            words = eight.view("uint32")
                            where = T.meta_var(base + lane % 16 * pitch + j * 16 + own // 16 * 8)
                            T.ptx[_MATRICES](staging.ptr_to([where]), words[0], words[1], words[2], words[3])
                        else:
                            for h in T.unroll(4):
                                for v in T.vectorized(2):
                                    row = T.meta_var(own // 4 + h % 2 * 8)
                                    staging[base + row * pitch + first_of(j, h) + v] = eight[h * 2 + v]
                    T.cuda.warp_sync()
                    for turn in T.unroll(16 * per_row // 32):
                        r: T.let[T.int32] = (turn * 32 + own) // per_row
                        c: T.let[T.int32] = (turn * 32 + own) % per_row * vector
                        at = T.meta_var(bound(of_row(first + m * 64 + lane // 32 * 16 + r)))
                        column = T.meta_var(aligned + chunk * width + c)
                        if inside(at, column):
                            for v in T.vectorized(vector):
                                values[v] = staging[base + r * pitch + c + v]
                            if is_plain:
                                for v in T.vectorized(vector):
                                    T.buffer_store(out, values[v], indices(at, column + v))
                            else:
                                load_wide(others, at, column)
                                for v in T.unroll(vector):
                                    results[v] = self.stored(values[v], placed(at, column + v), loaded(others, v))
                                for v in T.vectorized(vector):
                                    T.buffer_store(out, results[v], indices(at, column + v))
                    T.cuda.warp_sync()
        # fmt: on

        body()


def store_of(epilogue: Epilogue, view: GemmView, tiling: Tiling, buffers: dict[Any, Any]) -> Store | NotApplicable:
    """Decide how the tiles of an epilogue are stored, or say why they cannot be."""
    rows = {epilogue.axes[axis] for g in view.rows for axis in view.groups[g].axes}
    first = split(epilogue.value, epilogue.acc, rows)
    dtype = str(first.ty.dtype)
    if dtype not in STORED:
        return NotApplicable(f"the epilogue goes through {dtype}")
    (column,) = (epilogue.axes[axis] for axis in view.groups[view.n].axes)
    size = max(dtype_bits(dtype), dtype_bits(epilogue.dtype)) // 8
    vector = _aligned(epilogue.out, epilogue.indices, column, _VECTOR_BYTES // size)
    wide: list[Any] = []
    if first is not epilogue.value:
        rest = [load for load in loads_beside(epilogue.value, first) if column in variables(list(load.indices))]
        narrowest = [_VECTOR_BYTES * 8 // dtype_bits(str(load.source.dtype)) for load in rest]
        vector = min([vector, *narrowest])
        for load in rest:
            fits = _aligned(load.source, load.indices, column, vector) == vector
            if vector > 1 and fits and not any(tvm_ffi.structural_equal(load, known) for known in wide):
                wide.append(load)
    return Store(epilogue, first, dtype, vector, tuple(wide), view, tiling, buffers)


def _aligned(buffer: Any, indices: Any, column: Any, most: int) -> int:
    """Elements along `column` that one access may take."""
    *others, last = indices
    if not last.same_as(column) or column in variables(others):
        return 1
    while int(buffer.shape[-1]) % most:
        most //= 2
    return most


def bound(at: dict[int, Any]) -> dict[int, Any]:
    """The indices as variables of the kernel, computed once."""
    return {g: T.Bind(index) for g, index in at.items()}


def unravel(view: GemmView, index: Any, groups: tuple[int, ...]) -> dict[int, Any]:
    """The index into each group, the last one fastest."""
    at = {}
    for g in reversed(groups):
        extent = view.groups[g].extent
        at[g] = index % extent if g != groups[0] else index
        index = index // extent
    return at

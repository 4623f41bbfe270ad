"""Writing CUDA kernels statement by statement: threads, registers, shared memory, loops; then a PrimFunc of them.

    code = Code()
    bx, tx = code.thread("blockIdx.x", 1024), code.thread("threadIdx.x", 256)
    x = code.local("float16", 8)
    with code.unrolled(8) as v:
        code.store(x, v, ...)
    prim_func(workload.func, [code.kernel()])

Memory-bound kernels are written and not scheduled, as who holds which element in registers is their whole point.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym.analyzer import Analyzer
from tvm.tirx import PrimFunc
from tvm.tirx.op import tvm_storage_sync

FULL_WARP = 0xFFFFFFFF
_MIN_BLOCKS = "tirx.launch_bounds_min_blocks_per_sm"


def const(value: int) -> Any:
    return tirx.const(value, "int64")


class Code:
    """One kernel while it is written. `analyzer` knows the range of every variable that was made here.

    `exact`: every operation rounds as the model says; else quotients and exponentials may take the fast instructions.
    """

    def __init__(self, exact: bool = False) -> None:
        self.exact = exact
        self.analyzer = Analyzer()
        self._threads: list[tuple[Any, str, int]] = []
        self._buffers: list[Any] = []
        self._open: list[list[Any]] = [[]]
        self._count = 0

    def thread(self, tag: str, extent: int) -> Any:
        var = tirx.Var(tag.replace(".", "_"), "int64")
        self._threads.append((var, tag, extent))
        self.analyzer.bind(var, ir.Range(const(0), const(extent)))
        return var

    def local(self, dtype: str, size: int, name: str = "r") -> Any:
        """Registers of one thread; every index must be known once loops are unrolled."""
        return self._buffer(dtype, size, name, "local")

    def shared(self, dtype: str, size: int, name: str = "s") -> Any:
        return self._buffer(dtype, size, name, "shared")

    def dynamic(self, dtype: str, size: int, name: str = "s") -> Any:
        """Shared memory of a size known at launch: more than 48 KB are allowed."""
        return self._buffer(dtype, size, name, "shared.dyn")

    def _buffer(self, dtype: str, size: int, name: str, scope: str) -> Any:
        buffer = tirx.decl_buffer([const(size)], dtype, self._name(name), scope=scope)
        self._buffers.append(buffer)
        return buffer

    def _name(self, name: str) -> str:
        self._count += 1
        return f"{name}{self._count}"

    def emit(self, stmt: tirx.Stmt) -> None:
        self._open[-1].append(stmt)

    def store(self, buffer: Any, index: Any, value: Any) -> None:
        """`buffer[index] = value`, the index counted over all dims of the buffer."""
        self.emit(tirx.BufferStore(buffer, value, flat_indices(buffer, index)))

    def variable(self, name: str, extent: int) -> Any:
        """A variable below `extent` that is only substituted, never defined."""
        var = tirx.Var(name, "int64")
        self.analyzer.bind(var, ir.Range(const(0), const(extent)))
        return var

    def bind(self, name: str, value: Any, extent: int) -> Any:
        """A variable for `value`, which is below `extent`."""
        var = tirx.Var(self._name(name), "int64")
        self.emit(tirx.Bind(var, value))
        self.analyzer.bind(var, ir.Range(const(0), const(extent)))
        return var

    def sync(self) -> None:
        self.emit(tirx.Evaluate(tvm_storage_sync("shared")))

    def unrolled(self, extent: int, name: str = "v") -> Any:
        return self._loop(extent, name, tirx.ForKind.UNROLLED)

    def serial(self, extent: int, name: str = "k") -> Any:
        return self._loop(extent, name, tirx.ForKind.SERIAL)

    @contextmanager
    def counted(self, extent: Any, most: int, name: str = "k") -> Iterator[Any]:
        """A loop of so many rounds as `extent` says on the device, `most` of them at the most."""
        var = tirx.Var(self._name(name), "int32")
        self.analyzer.bind(var, ir.Range(tirx.const(0, "int32"), tirx.const(most, "int32")))
        self._open.append([])
        yield var
        if body := self._open.pop():
            self.emit(tirx.For(var, tirx.const(0, "int32"), extent, tirx.ForKind.SERIAL, _seq(body)))

    @contextmanager
    def _loop(self, extent: int, name: str, kind: Any) -> Iterator[Any]:
        var = tirx.Var(self._name(name), "int64")
        self.analyzer.bind(var, ir.Range(const(0), const(extent)))
        self._open.append([])
        yield var
        if body := self._open.pop():
            self.emit(tirx.For(var, const(0), const(extent), kind, _seq(body)))

    @contextmanager
    def when(self, condition: Any | None) -> Iterator[None]:
        """`if condition:`; always where that is None."""
        self._open.append([])
        yield
        body = self._open.pop()
        if condition is None:
            self._open[-1] += body
        elif body:
            self.emit(tirx.IfThenElse(condition, _seq(body), None))

    def kernel(self, blocks: int = 0) -> Any:
        """The statement: thread extents round the buffers and the code.

        Args:
            blocks: what registers must leave room for on a multiprocessor; 0 leaves that to the compiler.
        """
        assert len(self._open) == 1, "a loop is still open"
        body = _seq([*(tirx.AllocBuffer(buffer) for buffer in self._buffers), *self._open[0]])
        if blocks:
            body = tirx.AttrStmt(tirx.const(0, "int32"), _MIN_BLOCKS, tirx.const(blocks, "int32"), body)
        for var, tag, extent in reversed(self._threads):
            it = tirx.IterVar(ir.Range(const(0), const(extent)), var, tirx.IterVar.ThreadIndex, tag)
            body = tirx.AttrStmt(it, "thread_extent", const(extent), body)
        return body


def prim_func(func: PrimFunc, kernels: Sequence[Any], workspaces: Sequence[Any] = ()) -> PrimFunc:
    """`func` with the kernels, launched in order, as its body; `workspaces` are buffers between them."""
    flat = {w: tirx.decl_buffer([const(prod(int(d) for d in w.shape))], str(w.dtype), w.name) for w in workspaces}
    body = _seq([*(tirx.AllocBuffer(buffer) for buffer in flat.values()), *(_flattened(k, flat) for k in kernels)])
    block = SBlock([], [], [], "root", body)
    return tirx.PrimFunc(func.params, SBlockRealize([], True, block), func.ret_type, func.attrs)


def _flattened(kernel: Any, flat: dict[Any, Any]) -> Any:
    """Workspaces as buffers of one dim: TVM shrinks an allocation to what it takes for its dims' ranges."""

    def loaded(expr: Any) -> Any:
        return tirx.BufferLoad(flat[expr.source], [expr.indices[-1]]) if expr.source in flat else expr

    def stored(stmt: tirx.Stmt) -> Any:
        found = flat.get(stmt.buffer)
        return stmt if found is None else tirx.BufferStore(found, stmt.value, [stmt.indices[-1]])

    if not flat:
        return kernel
    return tvm_ffi.structural_map(tvm_ffi.structural_map(kernel, (ir.TensorLoad, loaded)), (tirx.BufferStore, stored))


def ramp(base: Any, lanes: int) -> Any:
    return tirx.Ramp(base, const(1), lanes) if lanes > 1 else base


def flat_indices(buffer: Any, index: Any) -> list[Any]:
    """Indices that address element `index`, counted over all dims: it runs along the last dim, past that dim's end."""
    return [*[const(0)] * (len(buffer.shape) - 1), index] if len(buffer.shape) else []


def load(buffer: Any, index: Any) -> Any:
    return tirx.BufferLoad(buffer, flat_indices(buffer, index))


def _seq(stmts: list[Any]) -> Any:
    return stmts[0] if len(stmts) == 1 else tirx.SeqStmt(stmts)

"""bfloat16 made explicit in a scheduled kernel: stored as uint16, computed in float32, rounded where it is stored.

    y[i] = cast(bf16, max(cast(f32, x[i]), 0))
->  y[i] = reinterpret(bf16, round(max(reinterpret(f32, uint32(reinterpret(u16, x[i])) << 16), 0)))

Left to itself TVM 0.27 widens every bfloat16 buffer inside a kernel to float32, which doubles its bytes and leaves out
its rounding, and cannot vectorise stores of bfloat16 constants. Parameters keep their type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import PrimFunc

from subtune.backends.cpu.math.bf16_ops import rounded, with_instructions
from subtune.tir.expressions import variables
from subtune.tir.shuffle import lanes_of
from subtune.tir.substitute import substitute
from subtune.tir.walk import found

_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max)
_BITS = (ir.TensorLoad, ir.Var, tirx.Shuffle, tirx.FloatImm, tirx.Select)
"""What has the bits of another bfloat16, as they are."""
_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)


class _Unsupported(Exception):
    """An expression of bfloat16 that is not rewritten here: TVM's own legalisation is correct, and slow."""


def explicit_bfloat16(func: PrimFunc, has_instruction: bool) -> PrimFunc:
    """`func`, a scheduled PrimFunc, without arithmetic on bfloat16; unchanged where it has none.

    Args:
        has_instruction: the processor rounds to bfloat16 itself (`avx512bf16`), denormals to zero; integer
            arithmetic rounds them as any other number.
    """
    inner = _inner_buffers(func)
    is_param = any(_is_bf16(param.dtype) for param in func.params if hasattr(param, "dtype"))
    if not inner and not is_param and not any(_is_bf16(cast.ty) for cast in found(func.body, tirx.Cast)):
        return func
    rewriter = _Rewriter(inner, rounded if has_instruction else _rounded_by_integers)
    try:
        callbacks = [(tirx.BufferStore, rewriter.store), (tirx.Bind, rewriter.bind)]
        body = tvm_ffi.structural_map(func.body, callbacks, order="pre")
    except _Unsupported:
        return func
    body = tvm_ffi.structural_map(substitute(body, inner), (tirx.For, _serial_if_constant))
    return with_instructions(func.with_body(body))


def _serial_if_constant(loop: Any) -> Any:
    """A vectorised loop that stores one bfloat16 for all its lanes -> a serial one: TVM cannot broadcast bfloat16."""
    if int(loop.kind) != int(tirx.ForKind.VECTORIZED):
        return loop
    varying = {loop.loop_var}
    constant: list[Any] = []

    def realize(node: Any) -> None:
        pairs = zip(node.block.iter_vars, node.iter_values, strict=True)
        varying.update(iv.var for iv, value in pairs if variables(value) & varying)

    def store(node: Any) -> None:
        if _is_bf16(node.buffer.dtype) and not variables(node.value) & varying:
            constant.append(node)

    tvm_ffi.structural_walk(loop.body, [(SBlockRealize, realize), (tirx.BufferStore, store)], order="pre")
    if not constant:
        return loop
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)


def _inner_buffers(func: PrimFunc) -> dict[Any, Any]:
    """Every bfloat16 buffer that `func` allocates -> the same of uint16."""
    explicit: dict[Any, Any] = {}

    def visit(block: Any) -> None:
        for buffer in block.alloc_buffers:
            if _is_bf16(buffer.dtype):
                explicit[buffer] = tirx.decl_buffer(buffer.shape, "uint16", buffer.name, scope=buffer.scope())

    tvm_ffi.structural_walk(func.body, (SBlock, visit))
    return explicit


def _is_bf16(dtype: Any) -> bool:
    return str(dtype).startswith("bfloat16")


def _like(dtype: Any, element: str) -> str:
    """`element` with as many lanes as `dtype`: ("bfloat16x2", "uint16") -> "uint16x2"."""
    lanes = str(dtype).partition("x")[2]
    return f"{element}x{lanes}" if lanes else element


class _Rewriter:
    """Expressions of bfloat16 as their bits (uint16) or as their value (float32); others with both inside them."""

    def __init__(self, inner: dict[Any, Any], rounding: Callable[[Any], Any]) -> None:
        self._inner = inner
        self._named: dict[Any, Any] = {}
        self._round = rounding
        self._callbacks = [
            (tirx.Cast, self._cast),
            (_COMPARISONS, self._comparison),
            (ir.Call, self._call),
        ]

    def store(self, store: tirx.BufferStore) -> tirx.BufferStore:
        buffer = self._inner.get(store.buffer, store.buffer)
        if not _is_bf16(store.buffer.dtype):
            return tirx.BufferStore(buffer, self.other(store.value), store.indices)
        bits = self.bits(store.value)
        if buffer.same_as(store.buffer):  # a parameter
            bits = tirx.reinterpret(_like(bits.ty, "bfloat16"), bits)
        return tirx.BufferStore(buffer, bits, store.indices)

    def bind(self, bind: tirx.Bind) -> tirx.Bind:
        """A named value: what a reduction of several values keeps, such as an ArgMax; or a vector that is turned."""
        if _is_bf16(bind.var.ty):
            if lanes_of(bind.var) == 1:
                raise _Unsupported(f"{bind.var.name} is a bfloat16 by name")
            bits = self._named[bind.var] = tirx.Var(bind.var.name, _like(bind.var.ty, "uint16"))
            return tirx.Bind(bits, self.bits(bind.value))
        return tirx.Bind(bind.var, self.other(bind.value))

    def bits(self, e: Any) -> Any:
        """The uint16 of `e`, which is of type bfloat16."""
        if isinstance(e, ir.TensorLoad):
            if (buffer := self._inner.get(e.source)) is not None:
                return tirx.BufferLoad(buffer, list(e.indices))
            return tirx.reinterpret(_like(e.ty, "uint16"), e)
        if e in self._named:
            return self._named[e]
        if isinstance(e, tirx.Shuffle):
            return tirx.Shuffle([self.bits(vector) for vector in e.vectors], list(e.indices))
        if isinstance(e, tirx.FloatImm):
            return tirx.const(_bfloat16_bits(float(e.value)), "uint16")
        if isinstance(e, tirx.Select):
            return tirx.Select(self.other(e.condition), self.bits(e.true_value), self.bits(e.false_value))
        if _name(e) == "if_then_else":
            return tirx.if_then_else(self.other(e.args[0]), self.bits(e.args[1]), self.bits(e.args[2]))
        if _name(e) == "reinterpret":
            return self.other(e.args[0])  # of uint16
        return self._round(self.value(e))

    def value(self, e: Any) -> Any:
        """`e`, which is of type bfloat16, in float32. What arithmetic gives is not rounded in between."""
        if isinstance(e, _BITS) or _name(e) in ("if_then_else", "reinterpret"):
            return _widened(self.bits(e))
        if isinstance(e, tirx.Cast):
            inner = self.other(e.value)
            return inner if str(inner.ty) == "float32" else tirx.Cast("float32", inner)
        if isinstance(e, _ARITHMETIC):
            return type(e)(self.value(e.a), self.value(e.b))
        if isinstance(e, ir.Call) and all(_is_bf16(arg.ty) for arg in e.args):
            return ir.Call(e.op, [self.value(arg) for arg in e.args], ret_ty=ir.PrimType("float32"))
        raise _Unsupported(f"{type(e).__name__} {_name(e)}")

    def other(self, e: Any) -> Any:
        """`e`, which is not of type bfloat16, with the bfloat16 expressions inside it made explicit."""
        return tvm_ffi.structural_map(e, self._callbacks, order="pre")

    def _cast(self, e: Any) -> Any:
        if _is_bf16(e.ty) or not _is_bf16(e.value.ty):
            return e
        value = _widened(self.bits(e.value))
        return value if str(e.ty) == "float32" else tirx.Cast(str(e.ty), value)

    def _comparison(self, e: Any) -> Any:
        return type(e)(self.value(e.a), self.value(e.b)) if _is_bf16(e.a.ty) else e

    def _call(self, e: Any) -> Any:
        if _is_bf16(e.ty) or not any(_is_bf16(arg.ty) for arg in e.args):
            return e
        if _name(e) == "reinterpret":
            bits = self.bits(e.args[0])
            return bits if str(bits.ty) == str(e.ty) else tirx.reinterpret(str(e.ty), bits)
        return ir.Call(e.op, [self.value(arg) if _is_bf16(arg.ty) else arg for arg in e.args], ret_ty=e.ty)


def _name(e: Any) -> str:
    """The operator that `e` calls, without its dialect; "" when it calls none."""
    is_call = isinstance(e, ir.Call) and isinstance(e.op, ir.Op)
    return str(e.op.name).rpartition(".")[2] if is_call else ""


def _widened(bits: Any) -> Any:
    """The float32 whose upper half is `bits`: exact."""
    wide = tirx.Cast(_like(bits.ty, "uint32"), bits)
    return tirx.reinterpret(_like(bits.ty, "float32"), wide << tirx.const(16, "uint32"))


def _rounded_by_integers(x: Any) -> tirx.Select:
    """What `rounded` gives, in integer arithmetic. NaN becomes the quiet NaN."""
    u = tirx.reinterpret("uint32", x)
    half = tirx.const(0x7FFF, "uint32") + ((u >> tirx.const(16, "uint32")) & tirx.const(1, "uint32"))
    upper = tirx.Cast("uint16", (u + half) >> tirx.const(16, "uint32"))
    # `isnan` is a call that no vector goes through
    return tirx.Select(x <= tirx.infinity("float32"), upper, tirx.const(0x7FC0, "uint16"))


def _bfloat16_bits(value: float) -> int:
    """Rounded to nearest, ties to even, from float64 through float32 as every cast in a kernel is."""
    (u,) = np.array([value], np.float32).view(np.uint32)
    if np.isnan(value):
        return 0x7FC0
    return (int(u) + 0x7FFF + (int(u) >> 16 & 1)) >> 16 & 0xFFFF

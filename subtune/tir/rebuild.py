"""Expressions written anew: over other variables and buffers, in 32 bits where the model has 64 or 16."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock
from tvm.tirx import PrimFunc

from subtune.tir.blocks import is_reduction, nest, root_stages, stage_block, with_stages
from subtune.tir.expressions import function_name, is_same

NARROW = ("float16", "bfloat16")
BINARY: dict[Any, Callable[[Any, Any], Any]] = {
    tirx.Add: lambda a, b: a + b,
    tirx.Sub: lambda a, b: a - b,
    tirx.Mul: lambda a, b: a * b,
    tirx.Div: tirx.div,
    tirx.FloorDiv: tirx.floordiv,
    tirx.FloorMod: tirx.floormod,
    tirx.Min: tirx.min,
    tirx.Max: tirx.max,
    tirx.EQ: tirx.EQ,
    tirx.NE: tirx.NE,
    tirx.LT: tirx.LT,
    tirx.LE: tirx.LE,
    tirx.GT: tirx.GT,
    tirx.GE: tirx.GE,
    tirx.And: tirx.And,
    tirx.Or: tirx.Or,
}
_CALLS = frozenset(
    "exp exp2 log log2 tanh erf sigmoid sqrt rsqrt fabs floor ceil round nearbyint trunc pow sin cos "
    "subtune_fma subtune_quotient if_then_else reinterpret shift_left shift_right bitwise_and bitwise_or bitwise_xor "
    "q_multiply_shift "
    "isnan isinf isfinite".split()
)


class ForeignError(Exception):
    """An expression has a node that cannot be rebuilt."""


class Rebuild:
    """An expression over other variables: integers of 64 bits in 32, floats of 16 bits in 32.

    Args:
        env: what takes the place of each variable.
        parts: what takes the place of each of these subexpressions (found by structure), before anything else.
        buffers: the buffer to read instead of each one.
    """

    def __init__(
        self,
        env: Mapping[Any, Any],
        parts: Mapping[Any, Any] | None = None,
        buffers: Mapping[Any, Any] | None = None,
    ) -> None:
        self._env, self._parts, self._buffers = env, list((parts or {}).items()), buffers or {}

    def __call__(self, node: Any) -> Any:
        for part, by in self._parts:
            if type(part) is type(node) and is_same(part, node):
                return by
        if isinstance(node, tirx.IntImm):
            return tirx.const(int(node.value), "int32") if str(node.ty.dtype) == "int64" else node
        if isinstance(node, tirx.FloatImm):
            return tirx.const(float(node.value), _wide(str(node.ty.dtype)))
        if isinstance(node, ir.Var):
            return self._env[node]
        if isinstance(node, ir.TensorLoad):
            buffer = self._buffers.get(node.source, node.source)
            load = tirx.BufferLoad(buffer, [self(i) for i in node.indices])
            return load.astype("float32") if str(buffer.dtype) in NARROW else load
        if isinstance(node, tirx.Cast):
            value, dtype = self(node.value), _wide(str(node.ty.dtype))
            return value if str(value.ty.dtype) == dtype else tirx.Cast(dtype, value)
        if isinstance(node, tirx.Not):
            return tirx.Not(self(node.a))
        if isinstance(node, tirx.Select):
            return tirx.Select(self(node.condition), self(node.true_value), self(node.false_value))
        if isinstance(node, ir.Call):
            name = function_name(node)
            if name not in _CALLS:
                raise ForeignError(f"it calls {name}")
            if name == "reinterpret" and any(str(one.ty.dtype) in NARROW for one in (node, *node.args)):
                raise ForeignError("it looks at the bits of a half")
            arguments = [self(argument) for argument in node.args]
            return tirx.call_intrin(_wide(str(node.ty.dtype)), node.op, *arguments)
        if type(node) in BINARY:
            return BINARY[type(node)](self(node.a), self(node.b))
        raise ForeignError(f"it has a {type(node).__name__}")


def _wide(dtype: str) -> str:
    return "float32" if dtype in NARROW else dtype


class _InFloat32(Rebuild):
    """Over the same variables, with integers as they are."""

    def __call__(self, node: Any) -> Any:
        return node if isinstance(node, tirx.IntImm | ir.Var) else super().__call__(node)


def in_float32(func: PrimFunc) -> PrimFunc:
    """`func` with all it computes in float32: halves are loaded from parameters and stored to them, nowhere else.

    A function without halves comes back as it is. Access regions are left out: the function is for reading.

    Raises:
        ForeignError: an expression has a node that cannot be rebuilt.
    """
    root = func.body.block
    made: list[Any] = []
    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, made.append), order="pre")
    if not any(str(buffer.dtype) in NARROW for buffer in (*(store.buffer for store in made), *func.params)):
        return func
    # a parameter that a reduction writes is rounded once, after it
    summed = [b.body.buffer for stage in root_stages(func) if is_reduction(b := stage_block(stage))]
    sums = [buffer for buffer in summed if any(buffer.same_as(p) for p in func.params)]
    wide = {
        buffer: tirx.decl_buffer(list(buffer.shape), "float32", f"{buffer.name}_float32")
        for buffer in (*root.alloc_buffers, *sums)
        if str(buffer.dtype) in NARROW
    }
    rebuild = _InFloat32({}, None, wide)

    def stored(store: tirx.BufferStore) -> Any:
        buffer, value = wide.get(store.buffer, store.buffer), rebuild(store.value)
        value = value if str(value.ty.dtype) == str(buffer.dtype) else value.astype(str(buffer.dtype))
        return tirx.BufferStore(buffer, value, list(store.indices))

    def of_block(block: Any) -> Any:
        if not isinstance(block.body, tirx.BufferStore):
            return block
        init = stored(block.init) if isinstance(block.init, tirx.BufferStore) else block.init
        return SBlock(block.iter_vars, [], [], block.name_hint, stored(block.body), init)

    found: list[Any] = []  # rebuilt out here: what a callback of the walk raises loses its type
    tvm_ffi.structural_walk(root.body, (SBlock, found.append), order="pre")
    blocks = {block: of_block(block) for block in found}
    stages = [tvm_ffi.structural_map(stage, (SBlock, lambda b: blocks[b])) for stage in root_stages(func)]
    stages += [_rounding(buffer, wide[buffer]) for buffer in sums if buffer in wide]
    return with_stages(
        func, stages, [wide.get(b, b) for b in (*root.alloc_buffers, *sums) if b in wide or b not in sums]
    )


def _rounding(buffer: Any, wide: Any) -> Any:
    """The stage that stores `wide` as what `buffer` holds."""
    spans = [ir.Range(tirx.const(0, "int64"), dim) for dim in buffer.shape]
    axes = [tirx.IterVar(span, tirx.Var(f"a{i}", "int64"), tirx.IterVar.DataPar) for i, span in enumerate(spans)]
    at = [axis.var for axis in axes]
    value = tirx.Cast(str(buffer.dtype), tirx.BufferLoad(wide, at))
    return nest(f"{buffer.name}_rounded", axes, {}, tirx.BufferStore(buffer, value, at), None)

"""Neighbouring elements of a subgraph in one thread: operands in 16-byte loads, arithmetic in registers.

A thread computes `lanes` neighbouring elements; `lane` is the variable that runs over them. How a load depends on it
decides how it is made:

    contiguous  x[q * 8 + lane]           16-byte loads into registers
    repeated    x[(q * 8 + lane) // 2]    the same, each element used twice (packed int4 weights)
    constant    x[q]                      one scalar
    else        x[(q * 8 + lane) % 3]     a scalar for every lane, where it is used

Loads below a condition (padding, concatenation) are made below that condition, provided it is the same for all lanes.
Arithmetic on float16 and bfloat16 is done in float32 and rounded once, where it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from subtune.backends.cuda.source.axes import BINARY, Axes, alike, dtype_of, is_global, loads_in, substituted
from subtune.backends.cuda.source.calls import address, called
from subtune.backends.cuda.source.emit import Code, const, load, ramp
from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload, dtype_bits
from subtune.tir.expressions import is_zero_padding, variables

_NARROW = ("float16", "bfloat16")
_COMPARED = {tirx.LE: (True, True), tirx.GT: (False, True), tirx.GE: (True, False)}
ACCESS_BYTES = 16
_MANTISSA = 1 << 23
_MAGIC_BITS = 0x4B000000  # of the float32 2**23: a smaller whole number in its last bits is added to it
_MOVE_BYTES = r"""
#ifndef SUBTUNE_MOVE_BYTES
#define SUBTUNE_MOVE_BYTES
namespace subtune {
template <int COUNT> __device__ __forceinline__ void move_bytes(void* to, const void* from) {
  if constexpr (COUNT == 16) *(uint4*)to = *(const uint4*)from;
  else if constexpr (COUNT == 8) *(uint2*)to = *(const uint2*)from;
  else if constexpr (COUNT == 4) *(unsigned*)to = *(const unsigned*)from;
  else *(unsigned short*)to = *(const unsigned short*)from;
}
}  // namespace subtune
#endif
"""


class Unsupported(Exception):
    """An expression that cannot be computed in lanes; templates make a NotApplicable of it."""


class Lanes:
    """Computes expressions for `width` lanes in one thread of `code`; operands already read are not read again.

    `known` are buffers that live in registers: a function from a load's indices (already in this kernel's variables)
    to the value that stands for it, or None. `zeroed`: what a condition does not read is zeros, not chosen afterwards.
    """

    def __init__(self, code: Code, lane: Any, width: int, known: Any = None, zeroed: bool = False) -> None:
        self.code, self.lane, self.width, self._zeroed = code, lane, width, zeroed
        self._known = known or (lambda source, indices: None)
        self._read: dict[Any, Any] = {}

    def compute(self, expr: Any, axes: dict[Any, Any] | Axes) -> Any:
        """`expr` with `axes` substituted, for lane `lane`; the loads that it needs are emitted now."""
        return self._value(substituted(expr, axes), None)

    def _value(self, expr: Any, guard: Any) -> Any:
        if isinstance(expr, ir.TensorLoad):
            return self._load(expr, guard)
        if isinstance(expr, tirx.FloatImm):
            return widened_constant(expr)
        if isinstance(expr, tirx.IntImm | ir.Var):
            return expr
        if isinstance(expr, tirx.Cast):
            return self._cast(expr, self._value(expr.value, guard))
        if isinstance(expr, tirx.Not):
            return tirx.Not(self._value(expr.a, guard))
        if isinstance(expr, tirx.Div) and not self.code.exact and wide(dtype_of(expr)) == "float32":
            return self._quotient(expr, self._value(expr.a, guard), self._value(expr.b, guard))
        if isinstance(expr, BINARY):
            return type(expr)(*alike(self._value(expr.a, guard), self._value(expr.b, guard)))
        if isinstance(expr, tirx.Select):
            return tirx.Select(*(self._value(e, guard) for e in (expr.condition, expr.true_value, expr.false_value)))
        if isinstance(expr, ir.Call):
            return self._call(expr, guard)
        raise Unsupported(f"an expression of {type(expr).__name__}")

    def _call(self, expr: Any, guard: Any) -> Any:
        name = expr.op.name if isinstance(expr.op, ir.Op) else str(expr.op)
        if name.endswith("if_then_else"):
            condition = self.condition(expr.args[0], guard)
            if isinstance(condition, tirx.IntImm):
                return self._value(expr.args[1] if int(condition) else expr.args[2], guard)
            yes = self._value(expr.args[1], _both(guard, condition))
            if self._zeroed and self.lane not in variables(condition) and is_zero_padding(expr):
                return yes
            no = self._value(expr.args[2], _both(guard, tirx.Not(condition)))
            return tirx.if_then_else(condition, yes, no)
        args = [self._value(arg, guard) for arg in expr.args]
        if "reinterpret" in name and any(dtype_of(arg) in _NARROW for arg in expr.args):
            raise Unsupported("the bits of a 16-bit float")
        if name == "tirx.exp" and dtype_of(expr) in _NARROW and not self.code.exact:
            return tirx.call_pure_extern("float32", "__expf", args[0])
        return ir.Call(expr.op, args, expr.attrs, ret_ty=wide(dtype_of(expr)))

    def _cast(self, expr: Any, value: Any) -> Any:
        """A small whole number becomes a float by its bits: the conversion instruction has a quarter of the rate."""
        dtype, source = wide(dtype_of(expr)), dtype_of(expr.value)
        if dtype == "float32" and source.startswith(("int", "uint")) and not self.code.exact:
            bound = self.code.analyzer.const_int_bound(expr.value)
            if loads_in(expr.value) and bound.min_value >= 0 and bound.max_value <= _MANTISSA - 1:
                bits = tirx.bitwise_or(tirx.Cast("int32", value), tirx.const(_MAGIC_BITS, "int32"))
                number = tirx.call_pure_extern("float32", "__int_as_float", bits)
                return number - tirx.FloatImm("float32", float(_MANTISSA))
        return tirx.Cast(dtype, value)

    def _quotient(self, expr: Any, a: Any, b: Any) -> Any:
        """`a / b`; a product with the reciprocal where all lanes divide by one number: ten times as fast."""
        is_one = isinstance(expr.a, tirx.FloatImm)
        if not is_one and not isinstance(b, tirx.FloatImm) and self.lane not in variables(b):
            key = ("reciprocal", tvm_ffi.StructuralKey(b))
            if key not in self._read:
                self._read[key] = registers = self.code.local("float32", 1, "reciprocal")
                self.code.store(registers, const(0), tirx.FloatImm("float32", 1.0) / b)
            return a * load(self._read[key], const(0))
        if dtype_of(expr) in _NARROW:
            return tirx.call_pure_extern("float32", "__fdividef", a, b)
        return a / b

    def condition(self, expr: Any, guard: Any = None) -> Any:
        """The condition, simplified so that it names the lane only where it differs between lanes."""
        if isinstance(expr, tirx.And | tirx.Or):
            return self.simplify(type(expr)(self.condition(expr.a, guard), self.condition(expr.b, guard)))
        if isinstance(expr, tirx.Not):
            return self.simplify(tirx.Not(self.condition(expr.a, guard)))
        if loads_in(expr):
            return self._value(expr, guard)
        for kind, (negated, swapped) in _COMPARED.items():  # the simplifier knows `x * 8 + lane < c` best
            if isinstance(expr, kind):
                a, b = (expr.b, expr.a) if swapped else (expr.a, expr.b)
                less = self.simplify(tirx.LT(a, b))
                return self.simplify(tirx.Not(less)) if negated else less
        return self.simplify(expr)

    def simplify(self, expr: Any) -> Any:
        return self.code.analyzer.simplify(expr)

    def _load(self, expr: Any, guard: Any) -> Any:
        buffer = expr.source
        indices = [self._value(index, guard) if loads_in(index) else index for index in expr.indices]
        if (known := self._known(buffer, indices)) is not None:
            return known
        dtype = dtype_of(expr)
        if not is_global(buffer):  # the template's own: registers or shared memory
            return widened(load(buffer, indices[-1]), dtype)
        flat = self.flat(buffer, indices)
        at_first = self.simplify(_substitute(flat, self.lane, const(0)))
        is_apart = loads_in(flat) or (guard is not None and self.lane in variables(guard))
        if is_apart or (repeat := self._repeat(flat, at_first)) is None:
            one, zero = widened(load(buffer, flat), dtype), tirx.const(0, wide(dtype))
            return one if guard is None or not self._zeroed else tirx.if_then_else(guard, one, zero)
        count = 1 if repeat == 0 else self.width // repeat
        registers = self._registers(buffer, dtype, at_first, count, guard)
        return widened(load(registers, const(0) if repeat == 0 else tirx.floordiv(self.lane, const(repeat))), dtype)

    def flat(self, buffer: Any, indices: list[Any]) -> Any:
        """The element's number in the buffer."""
        result: Any = const(0)
        for index, extent in zip(indices, buffer.shape, strict=True):
            result = result * extent + index.astype("int64")
        return self.code.analyzer.simplify(self.code.analyzer.canonical_simplify(result))

    def _repeat(self, flat: Any, at_first: Any) -> int | None:
        """How many neighbouring lanes share an element: 1 contiguous, 0 all of them, None neither."""
        if self.lane not in variables(flat):
            return 0
        repeat = 1
        while repeat < self.width:
            if self.is_zero(flat - at_first - tirx.floordiv(self.lane, const(repeat))):
                return repeat
            repeat *= 2
        return None

    def is_zero(self, expr: Any) -> bool:
        analyzer = self.code.analyzer
        for value in (analyzer.simplify(expr), analyzer.canonical_simplify(expr)):
            if isinstance(value, tirx.IntImm):
                return int(value) == 0
        return False

    def _registers(self, buffer: Any, dtype: str, at: Any, count: int, guard: Any) -> Any:
        """Registers with `count` elements from `at` on; read now, unless they were read before."""
        key = (buffer, count, tvm_ffi.StructuralKey(at))
        below = None if guard is None else tvm_ffi.StructuralKey(guard)
        for condition in (None, below):  # what was read unconditionally is there under every condition
            if (key, condition) in self._read:
                return self._read[key, condition]
        registers = self.code.local(dtype, count, f"{buffer.name}_")
        if self._zeroed and guard is not None:
            with self.code.unrolled(count) as v:
                self.code.store(registers, v, tirx.const(0, dtype))
        with self.code.when(guard):
            self.read_run(registers, buffer, dtype, at, count)
        self._read[key, below] = registers
        return registers

    def write(self, buffer: Any, indices: list[Any], value: Any) -> None:
        """`buffer[indices] = value` for all lanes, in 16-byte stores where lanes are neighbours."""
        dtype = str(buffer.dtype)
        flat = self.flat(buffer, indices)
        at = self.simplify(_substitute(flat, self.lane, const(0)))
        if not self.is_zero(flat - at - self.lane):
            with self.code.unrolled(self.width) as v:
                self.code.store(buffer, self.at(flat, v), rounded(self.at(value, v), dtype))
            return
        result = self.code.local(dtype, self.width, "y")
        with self.code.unrolled(self.width) as v:
            self.code.store(result, v, rounded(self.at(value, v), dtype))
        for start, piece in self.pieces(dtype, at, self.width):
            self._move(buffer, at + const(start), result, const(start), piece)

    def at(self, value: Any, lane: Any) -> Any:
        """`value` for another lane than `self.lane`."""
        return _substitute(value, self.lane, lane)

    def read_run(self, registers: Any, buffer: Any, dtype: str, at: Any, count: int) -> None:
        """`registers[0..count] = buffer[at..at + count]`, in the widest accesses that are aligned."""
        for start, piece in self.pieces(dtype, at, count):
            self._move(registers, const(start), buffer, at + const(start), piece)

    def _move(self, to: Any, index: Any, source: Any, at: Any, count: int) -> None:
        """`to[index..index + count] = source[at..at + count]` in one access."""
        if count > 1 and str(to.dtype) == "bool":  # no vectors of these are in TVM's CUDA
            ends = address(to, index), address(source, at)
            self.code.emit(called(f"subtune::move_bytes<{count}>", ends, _MOVE_BYTES))
        else:
            self.code.store(to, ramp(index, count), load(source, ramp(at, count)))

    def pieces(self, dtype: str, at: Any, count: int) -> list[tuple[int, int]]:
        """(first element, elements) of every access to a run of `count` elements that begins at `at`."""
        known = self.code.analyzer.modular_set(at)
        aligned = gcd(int(known.coeff), int(known.base)) or count
        width = gcd(gcd(count, aligned), max(1, ACCESS_BYTES * 8 // dtype_bits(dtype)))
        width &= -width  # a power of two
        return [(start, width) for start in range(0, count, width)]


def decoded(number: Any, shape: Sequence[int], analyzer: Any) -> list[Any]:
    """The indices of element `number` of an array of `shape`, row by row."""
    result = []
    stride = prod(shape)
    for i, extent in enumerate(shape):
        stride //= extent
        index = tirx.floordiv(number, const(stride))
        result.append(analyzer.simplify(tirx.floormod(index, const(extent)) if i else index))
    return result


def wide(dtype: str) -> str:
    return "float32" if dtype in _NARROW else dtype


def widened(value: Any, dtype: str) -> Any:
    return tirx.Cast("float32", value) if dtype in _NARROW else value


def rounded(value: Any, dtype: str) -> Any:
    """`value` as it is stored in a buffer of `dtype`."""
    return value if dtype_of(value) == dtype else tirx.Cast(dtype, value)


def widened_constant(value: Any) -> Any:
    """A number, in float32 where it is of a 16-bit type."""
    return tirx.FloatImm(wide(dtype_of(value)), value.value) if isinstance(value, tirx.FloatImm) else value


def vector_lanes(workload: Workload, extent: int, widest: int = ACCESS_BYTES) -> int:
    """Lanes that make 16-byte accesses of the narrowest operand's elements and divide `extent`."""
    narrowest = min(dtype_bits(arg.dtype) for arg in workload.args)
    lanes = widest * 8 // max(8, narrowest)
    while extent % lanes:
        lanes //= 2
    return lanes


def not_applicable(error: Exception) -> NotApplicable:
    return NotApplicable(str(error).strip().splitlines()[-1])


def _both(a: Any, b: Any) -> Any:
    return b if a is None else tirx.And(a, b)


def _substitute(expr: Any, old: Any, new: Any) -> Any:
    return tvm_ffi.structural_map(expr, (ir.Var, lambda var: new if var.same_as(old) else var))

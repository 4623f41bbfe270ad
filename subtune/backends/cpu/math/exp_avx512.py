"""exp in float32 for AVX-512: ten instructions on sixteen elements, where the polynomial of `vector_math` has fourteen.

exp(x) = 2**n * 2**f with n a multiple of 1/32: the powers of its fractions are a table in two registers, which one
permutation looks up, so that a polynomial of degree 2 is enough for f, and `vscalefps` multiplies by the whole power,
denormal results and infinities included. 1.8 ulp at worst (tests/backends/cpu/test_vector_math.py).

It is an operator of TIR that vectorises; what it means is written out when vectors are what they will be.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import ir, tirx

from subtune.tir.operators import register
from subtune.tir.shuffle import lanes_of, shuffled

FEATURE = "avx512f"
"""The processor feature, in LLVM's spelling, without which the operator cannot be lowered."""

EXP = "tirx.exp_avx512"
_LANES = 16

_ENTRIES = 32
_ROUNDS = 1.5 * 2**23 / _ENTRIES
"""A float32 near it has multiples of 1/32 for its last bits, so that adding it rounds, and the last five are f's."""
_LOG2_E = float(np.float32(math.log2(math.e)))
_LOG2_E_REST = math.log2(math.e) - _LOG2_E
_FARTHEST = math.log(2) / (2 * _ENTRIES)
"""What is left of x at most: |f| / log2(e)."""
_SLOPE = math.log(2) * (1 + _FARTHEST**2 / 8)
"""The cubic term's best linear share on that interval: Chebyshev's x**3 = 3/4 x over [-1, 1], and r**3 / 6 of it."""
_SMALLEST = -104.0
"""Its exp is 0. Far below it there are no multiples of 1/32 left to round to."""


def exp(x: Any) -> Any:
    """exp of the float32 `x`."""
    return ir.Call(ir.Op.get(EXP), [x], ret_ty=ir.PrimType("float32"))


def _lowered(call: Any) -> Any:
    x = call.args[0]
    lanes = lanes_of(x)
    if lanes == _LANES:
        return _of_sixteen(x)
    if lanes == 1:
        return shuffled([_of_sixteen(tirx.Broadcast(x, _LANES))], [0])
    named, vectors = tirx.Var("x", x.ty), []
    repeated = [named] * math.ceil(_LANES / lanes)  # a shuffle gives no more elements than it takes
    for first in range(0, lanes, _LANES):
        vectors.append(_of_sixteen(shuffled(repeated, [min(first + i, lanes - 1) for i in range(_LANES)])))
    return tirx.Let(named, x, shuffled(vectors, range(lanes)))


def _of_sixteen(x: Any) -> Any:
    def let(value: Any, body: Any) -> Any:
        var = tirx.Var("t", value.ty)
        return tirx.Let(var, value, body(var))

    def scaled(x: Any) -> Any:
        rounded = _fma(x, _all(_LOG2_E), _all(_ROUNDS))
        return let(rounded, lambda rounded: let(rounded - _all(_ROUNDS), lambda n: power(x, rounded, n)))

    def power(x: Any, rounded: Any, n: Any) -> Any:
        f = _fma(x, _all(_LOG2_E_REST), _fma(x, _all(_LOG2_E), _all(-0.0) - n))
        entry = _intrinsic("vpermi2var.ps.512", _table(0), tirx.reinterpret(_INTEGERS, rounded), _table(_LANES))
        return let(f, lambda f: let(entry, lambda entry: _scaled(_fma(entry * f, polynomial(f), entry), n)))

    def polynomial(f: Any) -> Any:
        return _fma(f, _all(math.log(2) ** 2 / 2), _all(_SLOPE))

    def above_smallest(x: Any) -> Any:
        # NaN compares with nothing, and stays. What is masked out, minus infinity, computes as 0 does and is 0 by
        # choice: a result that underflows takes some processors two hundred cycles
        is_zero, zeros = x < _all(_SMALLEST), _all(0.0)
        return tirx.Select(is_zero, zeros, let(tirx.Select(is_zero, zeros, x), scaled))

    return let(x, above_smallest)


_FLOATS = f"float32x{_LANES}"
_INTEGERS = f"int32x{_LANES}"


def _scaled(x: Any, n: Any) -> Any:
    """x * 2**floor(n), rounded once."""
    every, nearest = tirx.const(-1, "int16"), tirx.const(4, "int32")
    return _intrinsic("mask.scalef.ps.512", x, n, x, every, nearest)


def _intrinsic(name: str, *args: Any) -> Any:
    return tirx.call_llvm_pure_intrin(_FLOATS, f"llvm.x86.avx512.{name}", *args)


def _fma(a: Any, b: Any, c: Any) -> Any:
    """Rounded once: of the difference of near numbers nothing else would be left."""
    return tirx.call_llvm_pure_intrin(_FLOATS, "llvm.fma", a, b, c)


def _all(value: float) -> Any:
    return tirx.const(value, _FLOATS)


def _table(first: int) -> Any:
    powers = [tirx.const(2.0 ** ((first + i) / _ENTRIES), "float32") for i in range(_LANES)]
    return shuffled(powers, range(_LANES))


register(EXP, _lowered)

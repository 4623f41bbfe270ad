"""exp, log, log1p, tanh, erf, sigmoid, some powers and small functions in float32 as arithmetic that vectorises.

LLVM lowers a vector `exp` to one libm call per lane. These use only arithmetic that it keeps in vectors. Worst
errors over the whole range, against float64 (tests/backends/cpu/test_vector_math.py): exp 2 ulp (results
below 1.7e-38 become 0), tanh and erf 5e-7 relative, sigmoid 3 ulp, log 2 ulp, log1p 4 ulp, x**y for a constant y with
0 < |y| < 1 8e-6 relative at the ends of the range. NaN and infinities are kept.
Sources: Cephes (expf, logf), Eigen's rational approximations of tanh and erf.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import PrimFunc

from subtune.backends.cpu.math import exp_avx512
from subtune.tir.expressions import function_name, loads, variables


def vectorize_math(func: PrimFunc, features: Collection[str] = ()) -> PrimFunc:
    """`func` with the float32 calls of the functions above replaced by vectorisable arithmetic.

    Args:
        func: a PrimFunc.
        features: the processor's, in LLVM's spelling; AVX-512 has an exp of its own (`exp_avx512`).
    """
    exp = exp_avx512.exp if exp_avx512.FEATURE in features else _exp

    def name(call: Any) -> str:
        if not call.args or str(getattr(call.args[0].ty, "dtype", "")) != "float32":  # an address has no dtype
            return ""
        return call.op.name.rpartition(".")[2] if isinstance(call.op, ir.Op) else ""

    def rewrite(call: Any) -> Any:
        short = name(call)
        if short == "pow":
            return _pow(call)
        replacement = _REPLACEMENTS.get(short)
        return call if replacement is None else replacement(call.args[0])

    body = tvm_ffi.structural_map(func.body, (ir.Call, rewrite))
    body = tvm_ffi.structural_map(body, (ir.Call, lambda call: exp(call.args[0]) if name(call) == "exp" else call))
    return func if body.same_as(func.body) else func.with_body(body)


def multiply_by_reciprocals(func: PrimFunc) -> PrimFunc:
    """x[i, j] / s[i] as x[i, j] * (1 / s[i]): LLVM takes the division out of the loop over j, where it took most time.

    Half a unit in the last place more error; a divisor below 3e-39 counts as zero. Functions that round to whole
    numbers are left alone: there the last place decides.
    """
    rounds: list[Any] = []

    def see(node: Any) -> None:
        if isinstance(node, tirx.Cast) or function_name(node) in _TO_WHOLE_NUMBERS:
            rounds.append(node)

    tvm_ffi.structural_walk(func.body, [(tirx.Cast, see), (ir.Call, see)])
    if rounds:
        return func

    def rewrite(division: Any) -> Any:
        over, under = division.a, division.b
        if str(over.ty.dtype) != "float32" or not loads(under) or not _indices(under) < _indices(over):
            return division
        return over * (_f(1.0) / under)

    body = tvm_ffi.structural_map(func.body, (tirx.Div, rewrite))
    return func if body.same_as(func.body) else func.with_body(body)


_TO_WHOLE_NUMBERS = ("round", "nearbyint", "floor", "ceil", "trunc")


def _indices(expr: Any) -> set[Any]:
    """The variables by which an expression's loads are indexed."""
    return {var for load in loads(expr) for var in variables(list(load.indices))}


def _f(value: float) -> Any:
    return tirx.const(value, "float32")


def _let(value: Any, body: Callable[[Any], Any], dtype: str = "float32") -> Any:
    """Name `value`, so that the expression tree stays linear in size."""
    var = tirx.Var("t", dtype)
    return tirx.Let(var, value, body(var))


def _horner(x: Any, coefficients: Sequence[float]) -> Any:
    """Coefficients from the highest power down."""
    result = _f(coefficients[0])
    for c in coefficients[1:]:
        result = result * x + _f(c)
    return result


def _clamped(x: Any, low: float, high: float, body: Callable[[Any], Any]) -> Any:
    """`body` of x between two bounds; NaN, which compares with nothing, stays NaN on the way."""
    not_below = tirx.Select(x < _f(low), _f(low), x)
    return _let(not_below, lambda x: _let(tirx.Select(x > _f(high), _f(high), x), body))


_EXP = (1.3814596459e-3, 8.3687128499e-3, 4.1668388993e-2, 1.6666521132e-1, 4.9999994040e-1, 1.0, 1.0)
"""Fitted for the least relative error, 4e-9, where |r| <= log(2) / 2."""
_EXP_SMALLEST = -126 * math.log(2)
_EXP_LARGEST = 89.0  # its exp is no float32
_WHOLE = 12582912.0
"""1.5 * 2**23: a float32 near it has whole numbers for its last bits, so that adding it rounds."""
_BIAS = 126
"""Of the exponent of 2**(n - 1), whose bits are (n + _BIAS) << 23: 0.0 for n = -126."""


def _exp(x: Any) -> Any:
    """x = n * log(2) + r: twice the polynomial of r, times 2**(n - 1), which is a float32 for every n there is.

    Between the bounds the product becomes 0 and infinity by itself.
    """

    def of(x: Any) -> Any:
        def scaled(shifted: Any) -> Any:
            def polynomial(n: Any) -> Any:
                r = x - n * _f(0.693359375) - n * _f(-2.12194440e-4)
                power = tirx.reinterpret("float32", tirx.reinterpret("int32", shifted) << _i(23))
                return _let(r, lambda r: _horner(r, [2.0 * c for c in _EXP]) * power)

            return _let(shifted - _f(_WHOLE + _BIAS), polynomial)

        return _let(x * _f(1.44269504088896341) + _f(_WHOLE + _BIAS), scaled)

    return _let(x, lambda x: _clamped(x, _EXP_SMALLEST, _EXP_LARGEST, of))


def _rational(x: Any, limit: float, numerator: Sequence[float], denominator: Sequence[float]) -> Any:
    """x * P(x^2) / Q(x^2) of x clamped to [-limit, limit]."""

    def of(c: Any) -> Any:
        return _let(c * c, lambda s: c * _horner(s, numerator) / _horner(s, denominator))

    return _let(x, lambda x: _clamped(x, -limit, limit, of))


_TANH_IS_ONE, _ERF_IS_ONE = 8.078094482421875, 3.8325181007385254
"""Where the quotient is 1.0 to the last bit, with fused multiply-adds and without: below -_ERF_IS_ONE a GELU is then
-0.0, and not the 2**-25 of x that one unit in the last place would leave."""


def _tanh(x: Any) -> Any:
    return _rational(
        x,
        _TANH_IS_ONE,
        (
            -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
            1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03,
        ),
        (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03),
    )  # fmt: skip


def _erf(x: Any) -> Any:
    return _rational(
        x,
        _ERF_IS_ONE,
        (
            -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
            -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
        ),
        (
            -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
            -1.42647390514189e-02,
        ),
    )  # fmt: skip


def _sigmoid(x: Any) -> Any:
    return _f(1.0) / (_f(1.0) + tirx.exp(_f(0.0) - x))


_LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
_SQRT_HALF_BITS = 0x3F3504F3
_ONE_BITS = 0x3F800000
_SMALLEST_NORMAL = 1.17549435e-38


def _i(value: int) -> Any:
    return tirx.const(value, "int32")


def _log(x: Any) -> Any:
    """x = m * 2**e with m between sqrt(1/2) and sqrt(2); log(m) as a polynomial in m - 1."""

    def of(x: Any) -> Any:
        is_tiny = x < _f(_SMALLEST_NORMAL)  # not normal: scaled by 2**23 first

        def split(bits: Any) -> Any:
            e = tirx.Cast("float32", (bits >> _i(23)) - _i(127)) - tirx.Select(is_tiny, _f(23.0), _f(0.0))
            m = tirx.reinterpret("float32", (bits & _i(0x007FFFFF)) + _i(_SQRT_HALF_BITS))

            def polynomial(f: Any) -> tirx.Select:
                square = f * f
                tail = f * square * _horner(f, _LOG) + e * _f(-2.12194440e-4) - _f(0.5) * square
                value = f + tail + e * _f(0.693359375)
                value = tirx.Select(x == _f(0.0), _f(-math.inf), value)
                value = tirx.Select(x < _f(0.0), _f(math.nan), value)
                return tirx.Select(x < _f(math.inf), value, x)

            return _let(m - _f(1.0), polynomial)

        scaled = tirx.Select(is_tiny, x * _f(8388608.0), x)
        return _let(tirx.reinterpret("int32", scaled) + _i(_ONE_BITS - _SQRT_HALF_BITS), split, "int32")

    return _let(x, of)


def _log1p(x: Any) -> Any:
    def of(x: Any) -> Any:
        def corrected(u: Any) -> tirx.Select:
            value = _log(u) * (x / (u - _f(1.0)))
            return tirx.Select(tirx.any(u == _f(1.0), u == _f(math.inf)), x, value)

        return _let(_f(1.0) + x, corrected)

    return _let(x, of)


def _pow(call: Any) -> Any:
    """Small whole exponents as products, roots by exp and log; other powers need more digits than these have."""
    base, exponent = call.args
    if not isinstance(exponent, tirx.FloatImm):
        return call
    y = float(exponent.value)
    if y == 2.0:
        return _let(base, lambda x: x * x)
    if y == 3.0:
        return _let(base, lambda x: x * x * x)
    if 0.0 < abs(y) < 1.0:
        return _let(
            base,
            lambda x: tirx.Select(
                tirx.abs(x) == _f(math.inf), _f(math.inf if y > 0 else 0.0), tirx.exp(_f(y) * _log(x))
            ),
        )
    return call


def _nearbyint(x: Any) -> Any:
    return tirx.call_llvm_pure_intrin("float32", "llvm.nearbyint", x)


def _is_inf(x: Any) -> Any:
    return _let(x, lambda x: tirx.any(x == _f(math.inf), x == _f(-math.inf)))


_REPLACEMENTS: dict[str, Callable[[Any], Any]] = {
    "log": _log,
    "log1p": _log1p,
    "tanh": _tanh,
    "erf": _erf,
    "sigmoid": _sigmoid,
    "rsqrt": lambda x: _f(1.0) / tirx.sqrt(x),
    "nearbyint": _nearbyint,
    "isinf": _is_inf,
    "isnan": lambda x: (tirx.reinterpret("int32", x) & _i(0x7FFFFFFF)) > _i(0x7F800000),  # TVM takes x != x for false
}

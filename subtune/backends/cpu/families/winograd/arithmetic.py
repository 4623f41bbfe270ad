"""What Winograd's algorithm computes in: float32, or integers, exactly.

In integers the input's transform is in int16, the products are of pairs of int16 with sums of int32, and the output's
transform wraps round: its sums are multiples of the result, which comes out of them by an inverse modulo 2^32 and a
shift. Four times fewer multiplications at half of the rate of bytes' make a convolution up to twice as fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from subtune.backends.algorithms.winograd import (
    INTEGER_FACTORS,
    TRANSFORMS,
    ZERO_OF_BYTES,
    Matrix,
    WinogradWeights,
    WinogradWords,
)
from subtune.backends.cpu.math import int16_ops
from subtune.patterns.contraction import Contraction

Row = Callable[[int, Any, list[Any]], Any]
"""m, a row of a transform's matrix (a loop variable that will be unrolled), what it multiplies -> its sum."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How the stages compute.

    Attributes:
        element, weight, acc: types of transformed activations, of packed weights and of products.
        count: elements of a word, which the products are summed over.
        pixel: an element of the input -> what its transform reads.
        input_row, output_row: the rows of B^T and of A^T.
        result: an element of A^T M A, its place in the tile, and the weights' last row -> the convolution's element.
        weights: the convolution, m, nr -> the weights' transform.
    """

    element: str
    weight: str
    acc: str
    count: int
    pixel: Callable[[Any], Any]
    input_row: Row
    output_row: Row
    result: Callable[[Any, Any, Any, Callable[[], Any]], Any]
    weights: Callable[[Contraction, int, int], WinogradWeights | WinogradWords]


def arithmetic_of(info: Contraction) -> Arithmetic:
    return INTEGERS if info.acc_dtype == "int32" else FLOATS


def _element(matrix: Matrix, row: Any, column: Any) -> Any:
    """`matrix[row][column]` for loop variables that will be unrolled: folds to a literal, and x * 0 vanishes."""
    return _chosen(row, [tirx.const(float(values[column]), "float32") for values in matrix])


def _chosen(row: Any, values: Sequence[Any]) -> Any:
    """`values[row]` for a loop variable that will be unrolled."""
    result = values[-1]
    for r in reversed(range(len(values) - 1)):
        result = tirx.Select(row == tirx.const(r, "int64"), values[r], result)
    return result


def _sum(terms: list[Any]) -> Any:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _float_pixel(value: Any) -> Any:
    return value if str(value.dtype) == "float32" else value.astype("float32")


def _float_input(m: int, row: Any, values: list[Any]) -> Any:
    return _sum([value * _element(TRANSFORMS[m][0], row, r) for r, value in enumerate(values)])


def _float_output(m: int, row: Any, values: list[Any]) -> Any:
    return _sum([value * _element(TRANSFORMS[m][2], row, r) for r, value in enumerate(values)])


def _as_it_is(y: Any, i: Any, j: Any, last: Callable[[], Any]) -> Any:
    return y


def _weights(info: Contraction, m: int, nr: int) -> WinogradWeights:
    return WinogradWeights(m, nr, info.n.extent, info.b.shape[-1])


FLOATS = Arithmetic(
    "float32",
    "float32",
    "float32",
    1,
    _float_pixel,
    _float_input,
    _float_output,
    _as_it_is,
    _weights,
)


def _byte_pixel(value: Any) -> Any:
    zero = ZERO_OF_BYTES[str(value.dtype)]
    return value.astype("int16") - tirx.const(zero, "int16") if zero else value.astype("int16")


def _int16_input(m: int, row: Any, values: list[Any]) -> Any:
    """B^T of `INTEGER_TRANSFORMS`: rows 1 and 2, and 3 and 4, differ in the sign of odd columns, and share two sums."""
    x = values

    def times(factor: int, value: Any) -> Any:
        return value * tirx.const(factor, "int16")

    even, odd = x[4] - times(4, x[2]), x[3] - times(4, x[1])
    near, far = x[4] - x[2], times(2, x[3] - x[1])
    first, last = near + times(4, x[0] - x[2]), x[5] - x[3] - times(4, x[3] - x[1])
    return _chosen(row, [first, even + odd, even - odd, near + far, near - far, last])


def _wrapping_output(m: int, row: Any, values: list[Any]) -> Any:
    """A^T: columns 1 and 2, and 3 and 4, differ in their signs alone, and rows share their sums and differences."""
    x = values
    add = int16_ops.wrap_add

    def times(factor: int, value: Any) -> Any:
        return int16_ops.wrap_mul(value, tirx.const(factor, "int32"))

    def minus(a: Any, b: Any) -> Any:
        return add(a, times(-1, b))

    near, far = add(x[1], x[2]), add(x[3], x[4])
    near_odd, far_odd = minus(x[1], x[2]), minus(x[3], x[4])
    first = add(add(x[0], far), times(4, near))
    last = add(add(near_odd, x[5]), times(2, far_odd))
    return _chosen(row, [first, add(times(2, near_odd), far_odd), add(near, far), last])


_SHIFTS = tuple((factor & -factor).bit_length() - 1 for factor in INTEGER_FACTORS)
(_ODD,) = {factor >> shift for factor, shift in zip(INTEGER_FACTORS, _SHIFTS, strict=True)}
_INVERSE = pow(_ODD * _ODD, -1, 1 << 32)


def _exact(y: Any, i: Any, j: Any, last: Callable[[], Any]) -> Any:
    scaled = int16_ops.wrap_mul(y, tirx.const(_INVERSE, "int32"))
    of_row, of_column = (_chosen(v, [tirx.const(shift, "int32") for shift in _SHIFTS]) for v in (i, j))
    return tirx.shift_right(scaled, of_row + of_column) + last()


def _words(info: Contraction, m: int, nr: int) -> WinogradWords:
    return WinogradWords(nr, info.n.extent, info.b.shape[-1], ZERO_OF_BYTES[info.a.dtype])


INTEGERS = Arithmetic("int16", "int32", "int32", 2, _byte_pixel, _int16_input, _wrapping_output, _exact, _words)

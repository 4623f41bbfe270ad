"""What a product of integers multiplies: bytes that stand for scale * (values - zero), read where a product reads them.

Of floats that is what was dequantised, of int32 bytes that were widened, minus a zero point. The second operand is int8
for the kernels (`subtune.backends.cpu.math.words`); bytes of uint8 become int8 where they are made:

    q uint8, zero          ->  q - 128 int8, zero - 128            of constants
    quantize(x, s, z)      ->  quantize(x, s, z - 128)             of activations, through what only moves them
    q                      ->  astype(q ^ 128, int8)               of everything else
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import relax

from subtune.core.kernel import NotApplicable
from subtune.core.numerics import BYTES, FLOAT8
from subtune.passes.exprs import Expr, array_of, dtype_of, make_const, op_name, shape_of
from subtune.passes.rewriter import Walk

VIEWS = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")
COPIES = (*VIEWS, "relax.permute_dims", "relax.strided_slice", "relax.take")
"""What only moves elements of its first operand."""
MOVED = (*COPIES, "relax.nn.max_pool1d", "relax.nn.max_pool2d", "relax.nn.max_pool3d")
"""The same, and what takes the largest of a window."""
SIGN = 128
"""Between a byte without a sign and the one with it that has the same bits but the first."""


@dataclass(frozen=True, slots=True)
class Quantised:
    """scale * (values - zero), along `axis` where they are vectors."""

    values: Expr
    scale: np.ndarray
    zero: np.ndarray
    axis: int

    @property
    def is_whole(self) -> bool:
        """Whether one scale and one zero point are all."""
        return self.scale.size == 1 and self.zero.size == 1

    def again(self, values: Expr, axis: int = 0) -> Expr:
        """`values` with the same meaning."""
        scale, zero = make_const(self.scale), make_const(self.zero)
        return relax.op.dequantize(values, scale, zero, axis=axis, out_dtype="float32")


def quantises(mod: tvm.IRModule) -> bool:
    """Whether anything is quantised: to walk all of a model for what it has not takes longer than this look."""
    return any(
        op_name(binding.value) == "relax.quantize" for block in mod["main"].body.blocks for binding in block.bindings
    )


def quantised(walk: Walk, expr: Expr) -> Quantised | None:
    """What `expr` stands for, where it is a float32 of integers with constant scales."""
    found = read_quantised(walk, expr)
    return None if isinstance(found, NotApplicable) else found


def read_quantised(walk: Walk, expr: Expr) -> Quantised | NotApplicable:
    """The same; or why `expr` is none, as the predicate of a sentence."""
    call = walk.defined_by(expr, "relax.dequantize")
    if call is None or dtype_of(call) != "float32":
        made = walk.definition(expr)
        while op_name(made) in MOVED:
            made = walk.definition(made.args[0])
        is_quantised = op_name(made) == "relax.dequantize" and dtype_of(made) == "float32"
        return NotApplicable("has a scale for each block" if is_quantised else "is not quantised")
    scale, zero = array_of(call.args[1]), array_of(call.args[2])
    shape = shape_of(call)
    if scale is None or zero is None or shape is None:
        return NotApplicable("has a scale or zero point that is not constant")
    if scale.dtype != np.float32:
        return NotApplicable(f"has scales of {scale.dtype}")
    axis = int(call.attrs.axis)
    return Quantised(call.args[0], scale, zero, axis % len(shape) if shape else 0)


@dataclass(frozen=True, slots=True)
class Operand:
    """scale * (values - zero) of a product.

    Attributes:
        values: of int8 or uint8.
        zero: int32, with as many dims as `values` or none; one number along every axis that is summed. None means 0.
        scale: float32, one, or one for each position of `axis`, which is not summed.
    """

    values: Expr
    zero: Expr | None
    scale: np.ndarray
    axis: int = 0

    @property
    def bits(self) -> np.ndarray | None:
        """The values, of a constant."""
        return array_of(self.values)

    @property
    def zero_array(self) -> np.ndarray | None:
        """The zero point where it is known."""
        return np.zeros((), np.int32) if self.zero is None else array_of(self.zero)


_ONE = np.ones((), np.float32)


def operand(walk: Walk, expr: Expr, dtype: str, summed: tuple[int, ...]) -> Operand | NotApplicable:
    """`expr`, which a product of `dtype` sums along the axes `summed`; a reason is a sentence's predicate."""
    if dtype == "float32":
        known = read_quantised(walk, expr)
        return known if isinstance(known, NotApplicable) else _of_floats(known, summed)
    if dtype != "int32" or dtype_of(expr) != "int32":
        return NotApplicable(f"is {dtype_of(expr)}")
    numbers = array_of(expr)
    if numbers is not None:
        return _of_numbers(numbers, summed, _ONE, 0)
    shifted = walk.defined_by(expr, "relax.subtract")
    values = _bytes(walk, expr if shifted is None else shifted.args[0])
    if values is None:
        return NotApplicable("is int32 that was never a byte")
    zero = None if shifted is None else _aligned(shifted.args[1], len(shape_of(values) or ()), summed)
    return zero if isinstance(zero, NotApplicable) else Operand(values, zero, _ONE)


def _bytes(walk: Walk, wide: Expr) -> Expr | None:
    """What was widened to int32, or a constant that might have been."""
    numbers = array_of(wide)
    if numbers is not None:
        held = next((of for of in sorted(BYTES) if np.array_equal(numbers.astype(of), numbers)), None)
        return None if held is None else make_const(numbers.astype(held))
    cast = walk.defined_by(wide, "relax.astype")
    return cast.args[0] if cast is not None and dtype_of(cast.args[0]) in BYTES else None


def _of_floats(known: Quantised, summed: tuple[int, ...]) -> Operand | NotApplicable:
    values, shape = known.values, shape_of(known.values) or ()
    if dtype_of(values) == FLOAT8:
        return NotApplicable(f"is {FLOAT8}, which no product of bytes takes")
    if known.scale.size > 1 and known.axis in summed:
        return NotApplicable("has scales along the axis that is summed")
    if known.zero.size > 1 and known.axis in summed:
        return NotApplicable("has zero points along the axis that is summed")
    dims = [-1 if axis == known.axis else 1 for axis in range(len(shape))]
    zero = known.zero.astype(np.int32).reshape(dims if known.zero.size > 1 else ())
    numbers = array_of(values)
    if numbers is not None:
        return _of_numbers(numbers.astype(np.int32) - zero, summed, known.scale, known.axis)
    if dtype_of(values) not in BYTES:
        return NotApplicable(f"is {dtype_of(values)}, and products are of bytes")
    return Operand(values, make_const(zero) if np.any(zero) else None, known.scale, known.axis)


def _of_numbers(numbers: np.ndarray, summed: tuple[int, ...], scale: np.ndarray, axis: int) -> Operand | NotApplicable:
    """Constants as int8: themselves, or minus what brings all of them, or all that are summed, into its range.

    Rows of a product, which `summed` tells from columns, stay uint8 where they are that.
    """
    if not numbers.size:
        return NotApplicable("is empty")
    if summed == (numbers.ndim - 1,) and numbers.min() >= 0 and numbers.max() < 2 * SIGN:
        return Operand(make_const(numbers.astype(np.uint8)), None, scale, axis)
    shift = np.zeros((), np.int32)
    for along in (None, summed):
        low, high = numbers.min(along, keepdims=True), numbers.max(along, keepdims=True)
        if along is None and low.min() >= -SIGN and high.max() < SIGN:
            break
        if (high.astype(np.int64) - low < 2 * SIGN).all():
            shift = (low if along else low.reshape(())) + SIGN
            break
    else:
        return NotApplicable("has numbers too far apart for 8 bits")
    zero = None if not np.any(shift) else make_const((-shift).astype(np.int32))
    return Operand(make_const((numbers - shift).astype(np.int8)), zero, scale, axis)


def _aligned(zero: Expr, rank: int, summed: tuple[int, ...]) -> Expr | NotApplicable | None:
    """A zero point in int32 that is one number along what is summed; None where it is 0."""
    known, shape = array_of(zero), shape_of(zero)
    if shape is None or dtype_of(zero) != "int32" or len(shape) > rank:
        return NotApplicable("has a zero point of another shape than its values")
    if known is not None and not np.any(known):
        return None
    if int(np.prod(shape)) == 1:
        return relax.op.reshape(zero, ()) if shape else zero
    dims = (1,) * (rank - len(shape)) + shape
    if any(dims[axis] != 1 for axis in summed):
        return NotApplicable("has zero points along the axis that is summed")
    return zero if dims == shape else relax.op.reshape(zero, dims)


def signed(walk: Walk, given: Operand) -> Operand:
    """The same operand of int8."""
    if dtype_of(given.values) == "int8":
        return given
    known = given.zero_array
    if known is not None:
        moved = known.astype(np.int32) - SIGN
        zero = make_const(moved) if np.any(moved) else None
    else:
        zero = relax.op.subtract(given.zero, make_const(np.array(SIGN, np.int32)))
    return replace(given, values=_signed(walk, given.values), zero=zero)


def _signed(walk: Walk, values: Expr) -> Expr:
    """uint8 minus 128, as int8."""
    bits = array_of(values)
    if bits is not None:
        return make_const(np.asarray(bits ^ np.uint8(SIGN)).view(np.int8))
    made = walk.definition(values)
    if op_name(made) in MOVED:
        return tvm.ir.Call(made.op, [_signed(walk, made.args[0]), *list(made.args)[1:]], made.attrs, made.ty_args)
    if op_name(made) == "relax.quantize":
        x, scale, zero = made.args
        return relax.op.quantize(x, scale, _signed(walk, zero), axis=int(made.attrs.axis), out_dtype="int8")
    return flipped(values)


def flipped(values: Expr, given: str = "uint8") -> Expr:
    """uint8 -> int8, 128 less: q ^ 128; and with `given` int8 -> uint8, 128 more."""
    sign = make_const(np.array(SIGN, np.uint8).view(given))
    return relax.op.astype(relax.op.bitwise_xor(values, sign), "int8" if given == "uint8" else "uint8")

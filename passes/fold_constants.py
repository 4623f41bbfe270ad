"""Constant folding with numpy.

TVM's FoldConstant builds every operator it folds with LLVM (14 s on ResNet-50); the constants of a network are
reshaped, permuted, cast and combined by a few dozen operators that numpy computes at once. An operator outside of the
table is left alone, and so is whatever numpy would not compute exactly as Relax defines it.

This is about weights, of any size, by Relax's definitions and rounded once. What decides shapes is known before there
is Relax, by the definitions of the model's own operators: `frontends.shape_arithmetic`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm.ir import Call, TupleGetItem

from subtune.passes.exprs import Expr, array_of, dtype_of, make_const, op_name, type_shape
from subtune.passes.fold_table import TABLE, NotFolded
from subtune.passes.opkind import MOVEMENTS
from subtune.passes.rewriter import Rules, Walk, rewrite

MAX_GROWTH_BYTES = 64 * 1024
"""A fold may make its result this much larger than its constant operands: a broadcast of a scalar to a whole
activation stays an operator, which fuses and costs nothing."""
MAX_MADE_BYTES = 16 << 20
"""What is computed of more than single numbers (a mask of two ranges) may grow to this: 2048 x 2048 in float32."""
_FILLS = frozenset(("relax.full", "relax.zeros", "relax.ones", "relax.broadcast_to"))
"""Of one number, what these make is known without being made."""


def fold(walk: Walk, call: Call) -> Expr | None:
    """The rule: a call of constants -> its value."""
    function = TABLE.get(op_name(call))
    if function is None or not isinstance(call.ty, tvm.relax.TensorType):
        return None
    shape = type_shape(call.ty)
    if shape is None:
        return None
    operands = [operand_of(walk, arg) for arg in call.args]
    if any(operand is None for operand in operands):
        return None
    is_copy = op_name(call) == "relax.dequantize" or op_name(call).removeprefix("relax.") in MOVEMENTS
    if _grows_too_much(shape, dtype_of(call), operands, is_copy):
        return None
    value = evaluated(function, call, operands)
    if value is None:
        return None
    assert value.shape == shape, f"folding {op_name(call)}: shape {value.shape} is not {shape}"
    assert str(value.dtype) == dtype_of(call), f"folding {op_name(call)}: {value.dtype} is not {dtype_of(call)}"
    return make_const(value)


def fold_but_integers(walk: Walk, call: Call) -> Expr | None:
    """The rule while products of integers are looked for: those that stand for floats are still to be multiplied."""
    return None if op_name(call) == "relax.dequantize" else fold(walk, call)


def fold_projection(walk: Walk, projection: TupleGetItem) -> Expr | None:
    """`split(constant)[i]` -> a constant."""
    call = walk.definition(projection.tuple_value)
    function = TABLE.get(op_name(call))
    if function is None or op_name(call) != "relax.split":
        return None
    array = array_of(call.args[0])
    if array is None:
        return None
    parts = evaluated(function, call, [array])
    return None if parts is None else make_const(parts[int(projection.index)])


def evaluated(function: Callable[..., Any], call: Call, operands: list[Any]) -> Any:
    """What `function` of the table makes of a call's operands; None where it leaves that to the compiler."""
    try:
        with np.errstate(all="ignore"):
            return function(call, *operands)
    except NotFolded:
        return None


def operand_of(walk: Walk, arg: Expr) -> Any:
    """A constant as an array, a tuple of constants as a list, a shape or a number as it is; None if it varies."""
    if isinstance(arg, tvm.ir.GenericConst):
        return array_of(arg)
    if isinstance(arg, tvm.ir.Var):
        found = walk.definition(arg)
        if op_name(found) == "relax.shape_of":
            return type_shape(found.args[0].ty)
        if op_name(found) in _FILLS:
            return _filled(walk, found)
        return operand_of(walk, found) if isinstance(found, tvm.ir.Tuple | tvm.relax.ShapeExpr) else None
    if isinstance(arg, tvm.ir.Tuple):
        parts = [operand_of(walk, part) for part in arg.fields]
        return None if any(part is None for part in parts) else parts
    if isinstance(arg, tvm.relax.ShapeExpr):
        dims = [int(d.value) for d in arg.values if isinstance(d, tvm.tirx.IntImm)]
        return tuple(dims) if len(dims) == len(arg.values) else None
    if isinstance(arg, tvm.tirx.IntImm | tvm.tirx.FloatImm):
        return arg.value
    return None


def _filled(walk: Walk, call: Call) -> Any:
    """One number seen as a whole tensor, in no more memory than its own; None where it is not one number."""
    shape = type_shape(call.ty)
    numbers = [part for arg in call.args if isinstance(part := operand_of(walk, arg), np.ndarray)]
    known = {"relax.zeros": 0, "relax.ones": 1}.get(op_name(call))
    if shape is None or (known is None and (len(numbers) != 1 or _distinct(numbers[0]) != 1)):
        return None
    value = known if known is not None else numbers[0].reshape(-1)[0]
    return np.broadcast_to(np.asarray(value).astype(dtype_of(call)), shape)


def _distinct(array: np.ndarray) -> int:
    """Elements, of which those that are one in memory count once."""
    sizes = (size for size, stride in zip(array.shape, array.strides, strict=True) if stride)
    return int(np.prod(list(sizes), dtype=np.int64))


def _grows_too_much(shape: tuple[int, ...], dtype: str, operands: list[Any], is_copy: bool) -> bool:
    size = int(np.prod(shape, dtype=np.int64)) * _itemsize(dtype)
    if size == 0:  # TVM cannot store a constant without elements
        return True
    given, most = 0, 0
    for operand in operands:
        for part in operand if isinstance(operand, list) else [operand]:
            count = _distinct(part) if isinstance(part, np.ndarray) else 0
            given += count * part.itemsize if count else 0
            most = max(most, count)
    if most > 1 and not is_copy and size <= MAX_MADE_BYTES:
        return False
    return size > given + MAX_GROWTH_BYTES


def _itemsize(dtype: str) -> int:
    return 1 if dtype == "bool" else max(1, tvm.DataType(dtype).itemsize)


FOLD: Rules = {"*": (fold,), "tuple_get_item": (fold_projection,)}
FOLD_BUT_INTEGERS: Rules = {"*": (fold_but_integers,), "tuple_get_item": (fold_projection,)}


def fold_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """Every sub-expression of constants whose operator is in the table -> one constant."""
    return rewrite(mod, FOLD)

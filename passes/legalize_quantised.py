"""quantize and dequantize as ONNX means them: halves are rounded to even, and no number is converted out of range."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.ir import Call

from subtune.passes.exprs import dims_of, literal

_BEYOND = 1e6
"""More than any of these integers, and held exactly by float32: what is clamped to it first is converted safely."""


def legalize_quantize(bb: Any, call: Call) -> Any:
    """saturate(round(x / scale) + zero)"""
    limits, to, axis = np.iinfo(str(call.ty.dtype)), str(call.ty.dtype), int(call.attrs.axis)

    def te_quantize(x: Any, scale: Any, zero: Any) -> Any:
        def one(*index: Any) -> Any:
            step, value = _at(scale, index, axis), x(*index)
            ratio = value if _is_one(step) else value / step
            most = tirx.const(_BEYOND, "float32")
            whole = tirx.max(tirx.min(tirx.nearbyint(ratio), most), -most).astype("int32")
            whole = whole + _at(zero, index, axis).astype("int32")
            low, high = (tirx.const(int(limit), "int32") for limit in (limits.min, limits.max))
            return tirx.max(tirx.min(whole, high), low).astype(to)

        return te.compute(dims_of(call), one, name="quantize")

    return bb.call_te(te_quantize, call.args[0], *map(literal, call.args[1:]), primfunc_name_hint="quantize")


def legalize_dequantize(bb: Any, call: Call) -> Any:
    """scale * (x - zero)"""
    axis, to = int(call.attrs.axis), str(call.ty.dtype)

    def te_dequantize(x: Any, scale: Any, zero: Any) -> Any:
        def one(*index: Any) -> Any:
            whole = x(*index).astype("int32") - _at(zero, index, axis).astype("int32")
            return whole.astype(to) * _at(scale, index, axis).astype(to)

        return te.compute(dims_of(call), one, name="dequantize")

    return bb.call_te(te_dequantize, call.args[0], *map(literal, call.args[1:]), primfunc_name_hint="dequantize")


def _at(value: Any, index: tuple[Any, ...], axis: int) -> Any:
    """A number, or the one of a vector along `axis`."""
    if not isinstance(value, te.Tensor):
        return value
    return value(index[axis]) if len(value.shape) else value()


def _is_one(value: Any) -> bool:
    return isinstance(value, tirx.FloatImm) and float(value) == 1.0

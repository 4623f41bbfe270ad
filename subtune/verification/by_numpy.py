"""Products and convolutions of the untuned build, by NumPy.

TVM legalises them to loops that nobody has scheduled: a large product then takes half a minute, and comparing a model
takes longer than tuning it did. NumPy's products are another's, and as far from ours as those loops are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm_ffi
from tvm import relax
from tvm.ir import Call, Op

_WIDENED = {"float64": "float64", **dict.fromkeys(("float32", "float16", "bfloat16"), "float32")}
"""In which type NumPy is to compute products of a type: by itself it sums halves in halves, as no model means it."""
_INTEGERS = frozenset({"int8", "uint8", "int32"})
"""Their products are computed in float64, which holds all sums of int32, and for which NumPy has a fast library."""
_NAME = "subtune.verification"


def legalizations() -> dict[str, Callable[[Any, Call], Any]]:
    """For `relax.transform.LegalizeOps`; what NumPy does not do is legalised as TVM does it."""
    convolutions = [f"relax.nn.conv{rank}d" for rank in (1, 2, 3)]
    return {"relax.matmul": _legalize_product, **dict.fromkeys(convolutions, _legalize_convolution)}


def _legalize_product(bb: Any, call: Call) -> Any:
    return _called("matmul", multiplied, call) if _is_plain(call) else _by_tvm(bb, call)


def _legalize_convolution(bb: Any, call: Call) -> Any:
    attrs = call.attrs
    data, kernel = str(attrs.data_layout), str(attrs.kernel_layout)
    is_named = {len(data), len(kernel)} == {call.args[0].ty.ndim} and str(attrs.out_layout) == data
    if not is_named or not _is_plain(call):
        return _by_tvm(bb, call)
    strides, padding, dilation = ([int(n) for n in given] for given in (attrs.strides, attrs.padding, attrs.dilation))
    groups = int(attrs.groups)

    def convolve(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        spatial = "".join(letter for letter in data if letter not in "NC")
        first = _ordered(x, data, "NC" + spatial)
        result = convolved(first, _ordered(w, kernel, "OI" + spatial), strides, padding, dilation, groups)
        return _ordered(result, "NC" + spatial, data)

    return _called(f"conv({data},{kernel},{strides},{padding},{dilation},{groups})", convolve, call)


def multiplied(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """x @ w; NumPy multiplies the matrices of `x` by one `w` one after the other, which takes six times as long.

    >>> multiplied(np.ones((2, 3, 4)), np.ones((4, 5))).shape
    (2, 3, 5)
    """
    if w.ndim != 2:
        return np.matmul(x, w)
    return np.matmul(x.reshape(-1, x.shape[-1]), w).reshape(*x.shape[:-1], w.shape[1])


def convolved(
    x: np.ndarray,
    w: np.ndarray,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
) -> np.ndarray:
    """The convolution of `x` (N, C, ...) with `w` (O, C / groups, ...), padded with zeros.

    Args:
        padding: elements before the first of every spatial axis, and then those behind the last.

    >>> convolved(np.ones((1, 1, 3), "float32"), np.ones((1, 1, 2), "float32"), [1], [1, 0], [1])
    array([[[1., 2., 2.]]], dtype=float32)
    """
    rank = len(strides)
    around = [(0, 0), (0, 0), *zip(padding[:rank], padding[rank:], strict=True)]
    reach = [d * (extent - 1) + 1 for d, extent in zip(dilation, w.shape[2:], strict=True)]
    views = np.lib.stride_tricks.sliding_window_view(np.pad(x, around), reach, tuple(range(2, 2 + rank)))
    windows = views[(slice(None), slice(None), *(slice(None, None, step) for step in (*strides, *dilation)))]
    outs, ins = w.shape[0] // groups, w.shape[1]
    result = np.empty((x.shape[0], w.shape[0], *windows.shape[2 : 2 + rank]), x.dtype)
    axes = (tuple(range(1, 2 + rank)), (0, *range(1 + rank, 1 + 2 * rank)))
    for image, of_image in zip(result, windows, strict=True):  # one after the other: the windows are copied
        for group in range(groups):
            own = slice(group * outs, (group + 1) * outs)
            image[own] = np.tensordot(w[own], of_image[group * ins : (group + 1) * ins], axes)
    return result


def _ordered(array: np.ndarray, layout: str, wanted: str) -> np.ndarray:
    return array.transpose([layout.index(letter) for letter in wanted])


def _is_plain(call: Call) -> bool:
    """Whether both operands are of one floating-point type, and the result is of the one it is computed in; or all are
    integers."""
    first, second, result = (str(one.ty.dtype) for one in (*call.args, call))
    if result == "int32":
        return {first, second} <= _INTEGERS
    return first == second and _WIDENED.get(first) == result


def _called(what: str, function: Callable[..., np.ndarray], call: Call) -> Any:
    types, result = "_".join(str(arg.ty.dtype) for arg in call.args), str(call.ty.dtype)
    computed = "float64" if result == "int32" else _WIDENED[str(call.args[0].ty.dtype)]

    def run(*tensors: Any) -> None:
        *given, out = tensors
        found = function(*(tensor.numpy().astype(computed, copy=False) for tensor in given))
        out.copyfrom(np.ascontiguousarray(found.astype(out.numpy().dtype, copy=False)))

    name = f"{_NAME}.{what}.{types}.{result}"
    tvm_ffi.register_global_func(name, run, override=True)
    return relax.call_dps_packed(name, list(call.args), call.ty)


def _by_tvm(bb: Any, call: Call) -> Any:
    legalize: Callable[[Any, Call], Any] = Op.get(call.op.name).get_attr("FLegalize")
    return legalize(bb, call)

"""How fast what a workload computes grows with its inputs: three factors of 1e18 overflow, and two do not."""

from __future__ import annotations

from typing import Any

from subtune.core.workload import Workload

_BOUNDED = frozenset({"cos", "erf", "exp", "exp2", "sigmoid", "sin", "tanh"})
"""Of the exponential, whose infinity is right at any magnitude: it is not the product's fault."""
_INVERTING = frozenset({"rsqrt"})
"""What they give is as large as their argument is small."""


def degree(workload: Workload) -> int:
    """The most factors that are multiplied into one number, those of an input's elements counting one each.

    Constants of the program count nothing, and neither does what a function bounds; a divisor, or what a root is
    divided by, counts one. At least 1.
    """
    import tvm_ffi
    from tvm import tirx

    degrees: dict[Any, int] = {}

    def stored(store: Any) -> None:
        degrees[store.buffer] = max(degrees.get(store.buffer, 0), _of(store.value, degrees, store.buffer))

    tvm_ffi.structural_walk(workload.func.body, (tirx.BufferStore, stored))
    return max(1, *degrees.values())


def _of(value: Any, degrees: dict[Any, int], own: Any) -> int:
    """Of a value that is stored to `own`, whose elements so far are a part of the same sum or product."""
    from tvm import ir, tirx

    if isinstance(value, ir.TensorLoad):
        is_float = "float" in str(value.source.dtype)
        return degrees.get(value.source, 0 if value.source.same_as(own) else 1) if is_float else 0
    if isinstance(value, tirx.Mul):
        return _of(value.a, degrees, own) + _of(value.b, degrees, own)
    if isinstance(value, tirx.Div):
        return _of(value.a, degrees, own) + min(1, _of(value.b, degrees, own))
    if isinstance(value, ir.Call):
        name = str(getattr(value.op, "name", "")).rpartition(".")[2]
        inner = max((_of(arg, degrees, own) for arg in value.args), default=0)
        return 0 if name in _BOUNDED else min(1, inner) if name in _INVERTING else inner
    if isinstance(value, tirx.Cast):
        return _of(value.value, degrees, own)
    if isinstance(value, tirx.Select):
        return max(_of(value.true_value, degrees, own), _of(value.false_value, degrees, own))
    sides = [getattr(value, name) for name in ("a", "b") if hasattr(value, name)]
    return max((_of(side, degrees, own) for side in sides), default=0)

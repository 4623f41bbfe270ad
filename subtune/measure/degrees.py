"""How fast what a workload computes grows with its inputs: three factors of 1e18 overflow, and two do not."""

from __future__ import annotations

from collections.abc import Mapping
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
        so_far = degrees.setdefault(store.buffer, 0)  # what is added to it, or multiplied by it, is read as no factor
        degrees[store.buffer] = max(so_far, _of(store.value, degrees))

    tvm_ffi.structural_walk(workload.func.body, (tirx.BufferStore, stored))
    return max(1, *degrees.values())


def _of(value: Any, degrees: Mapping[Any, int]) -> int:
    """Of a value, by the `degrees` of the buffers that were computed before; others are inputs."""
    from tvm import ir, tirx

    from subtune.tir.expressions import choice_of, function_name

    if isinstance(value, ir.TensorLoad):
        return degrees.get(value.source, 1) if "float" in str(value.source.dtype) else 0
    if choice := choice_of(value):
        return max(_of(one, degrees) for one in choice[1:])
    if isinstance(value, tirx.Mul):
        return _of(value.a, degrees) + _of(value.b, degrees)
    if isinstance(value, tirx.Div):
        return _of(value.a, degrees) + min(1, _of(value.b, degrees))
    if isinstance(value, ir.Call):
        name = function_name(value)
        inner = max((_of(arg, degrees) for arg in value.args), default=0)
        return 0 if name in _BOUNDED else min(1, inner) if name in _INVERTING else inner
    if isinstance(value, tirx.Cast):
        return _of(value.value, degrees)
    sides = [getattr(value, name) for name in ("a", "b") if hasattr(value, name)]
    return max((_of(side, degrees) for side in sides), default=0)

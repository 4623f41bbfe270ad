"""Whether a model itself is the same at several instances, whatever form its subgraphs are given at each.

Which form that is may depend on an extent: few rows are multiplied as whole numbers and not as bytes, a narrow image
has its channels last. Such choices of small instances say nothing about the model. A slice that ends before the last
row does: it has other sizes there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tvm import relax
from tvm.ir import IRModule

from subtune.core.dims import Dim
from subtune.dynamic.fit import Fitter
from subtune.dynamic.workload import DIVISORS
from subtune.passes.exprs import op_name


def are_alike(mods: Sequence[IRModule], points: Sequence[Mapping[str, int]], sums: Sequence[Dim] = ()) -> bool:
    """Whether imported modules, one at each of `points`, have the same operators, and sizes that are polynomials."""
    names = [[op_name(value) for _, value in _values(mod)] for mod in mods]
    if any(one != names[0] for one in names):
        return False
    sizes = [[size for ty, _ in _values(mod) for size in _sizes(ty)] for mod in mods]
    if len({len(one) for one in sizes}) > 1:
        return False
    fitter = Fitter(points, DIVISORS, sums)
    return all(fitter.fit(of_points) is not None for of_points in set(zip(*sizes, strict=True)))


def _values(mod: IRModule) -> Iterator[tuple[Any, Any]]:
    """What `main` binds, each with its type."""
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            yield binding.var.ty, binding.value


def _sizes(ty: Any) -> Iterator[int]:
    if isinstance(ty, relax.TupleType):
        for field in ty.fields:
            yield from _sizes(field)
    elif isinstance(ty, relax.TensorType):
        yield len(ty.shape)
        yield from map(int, ty.shape)

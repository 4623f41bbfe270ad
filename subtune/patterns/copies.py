"""Results that are copies of another tensor's elements: cut out, in another order, of halves perhaps as float32.

out[axes]  =  source[index map of the axes]
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import ir, sym, tirx
from tvm.sym.pattern import detect_linear_equation

from subtune.core.kernel import NotApplicable
from subtune.core.numerics import HALVES
from subtune.patterns.chain import as_stored
from subtune.patterns.reductions import Blocks, Scope


@dataclass(frozen=True, slots=True)
class Copy:
    """The parameter `out`, which holds `load`, of another parameter, at `axes`: of halves maybe as float32."""

    out: Any
    axes: tuple[Any, ...]
    load: Any


@dataclass(frozen=True, slots=True)
class Walked:
    """Dimension `dim` of a copy: its `extent` elements are `step` elements apart in the source."""

    dim: int
    step: int
    extent: int


def copy_of(blocks: Blocks, out: Any) -> Copy | NotApplicable:
    """What the parameter `out` is a copy of, a parameter of the same blocks."""
    block = blocks.made.get(out)
    if block is None:
        return NotApplicable("a result that is not written")
    scope = Scope(blocks, sym.Analyzer())
    scope.enter(block)
    value = scope.expand(block.body.value)
    is_widened = str(out.dtype) == "float32" and str(as_stored(value).ty.dtype) in HALVES
    load = as_stored(value) if is_widened else value
    if not isinstance(load, ir.TensorLoad) or not blocks.is_param(load.source):
        return NotApplicable("a result is more than moved")
    return Copy(out, tuple(block.body.indices), load)


def walked(copy: Copy) -> tuple[int, tuple[Walked, ...]] | None:
    """Where a copy's first element lies in its source, and the dims longer than one; None unless steps are constant."""
    read, written = ([int(d) for d in buffer.shape] for buffer in (copy.load.source, copy.out))
    analyzer = sym.Analyzer()
    for axis, extent in zip(copy.axes, written, strict=True):
        analyzer.bind(axis, ir.Range(tirx.const(0, "int64"), tirx.const(extent, "int64")))
    flat: Any = tirx.const(0, "int64")
    for d, index in enumerate(copy.load.indices):
        flat = flat + index * prod(read[d + 1 :])
    dims = [dim for dim, extent in enumerate(written) if extent > 1]
    found = [analyzer.simplify(c)
             for c in detect_linear_equation(analyzer.simplify(flat), [copy.axes[dim] for dim in dims])]  # fmt: skip
    if len(found) != len(dims) + 1 or not all(isinstance(c, tirx.IntImm) for c in found):
        return None
    *steps, first = (int(c) for c in found)
    return first, tuple(Walked(dim, step, written[dim]) for dim, step in zip(dims, steps, strict=True))

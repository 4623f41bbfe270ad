"""Lanes of a vector in one run of memory are seen to be: quotients that all of them have in common lose the lane.

    (k + v) // c    ->   k // c            for vectors of v = 0 .. n - 1, where k and c are multiples of n
    (k + v) % c     ->   k % c + v

Where a tile of k is deeper than an image has channels, the tap of a window is such a quotient. TVM's simplifier leaves
it where k is a sum, and a condition that seems to differ between lanes makes 16 copies of one of 16 bytes.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.sym import Analyzer

from subtune.tir.expressions import variables


@tvm.transform.module_pass(opt_level=0, name="subtune.UniformLanes")  # type: ignore[untyped-decorator]
def uniform_lanes(mod: IRModule, _context: PassContext) -> IRModule:
    """Run before VectorizeLoop."""
    result = tvm.IRModule({}, attrs=mod.attrs)
    for var, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            func = func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, _without_lane)))
        result[var] = func
    return result


def _without_lane(loop: Any) -> Any:
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(loop.extent, tirx.IntImm) or int(loop.min) != 0:
        return loop
    analyzer, lane, lanes = Analyzer(), loop.loop_var, int(loop.extent)

    def first(node: Any) -> Any | None:
        """The numerator in lane 0, where the quotient is the same in all of them."""
        if not isinstance(node.b, tirx.IntImm) or int(node.b) % lanes or lane not in variables(node.a):
            return None
        start = analyzer.simplify(node.a - lane)
        if lane in variables(start):
            return None
        known = analyzer.modular_set(start)
        return start if known.coeff % lanes == 0 and known.base % lanes == 0 else None

    def divided(node: Any) -> Any:
        start = first(node)
        return node if start is None else tirx.floordiv(start, node.b)

    def remaining(node: Any) -> Any:
        start = first(node)
        return node if start is None else tirx.floormod(start, node.b) + lane

    body = tvm_ffi.structural_map(loop.body, [(tirx.FloorDiv, divided), (tirx.FloorMod, remaining)])
    return tirx.For(
        lane, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations, loop.step, loop.span
    )

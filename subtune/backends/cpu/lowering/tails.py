"""Vectors that reach past an axis's end: whole ones are taken as such, and the last one has as many lanes as are left.

    for lane < 16 (vectorised):  if rows and n + lane < 197:  c[n + lane] = ...          n a multiple of 16
->  if rows:  if n + 15 < 197:  c[n : n + 16] = ...     else if n < 197:  c[n : n + 5] = ...

and so for `c[n + lane] = ... if n + lane < 197 else 0`, and for `c[lane] += ... if n + lane < 197 else 0`. TVM takes a
vector apart into scalars where lanes differ in a condition, in every iteration of the loops around it, and the
registers that it is stored from are none then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.sym.analyzer import Analyzer
from tvm.tirx import PrimFunc

from subtune.backends.cpu.math.bf16_ops import ROUND
from subtune.tir.expressions import conjuncts, is_same, variables
from subtune.tir.substitute import substitute


def whole_vectors() -> Any:
    """A pass over functions whose buffers are flat, before their loops are vectorised."""

    @tirx.transform.prim_func_pass(opt_level=0)
    def run(func: PrimFunc, _mod: IRModule, _ctx: PassContext) -> PrimFunc:
        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, _divided)))

    return run


_FOREIGN = ("subtune", "llvm", "extern")


@dataclass(frozen=True, slots=True)
class _Tail:
    """`first + lane < end` for the lanes of a vector that begins at `first`, a multiple of its width."""

    first: Any
    end: int
    left: int

    def divide(self, whole: Any, rest: Any) -> tirx.IfThenElse:
        """`whole` where all lanes are inside, `rest` where some are."""
        end = tirx.const(self.end, self.first.ty.dtype)
        return tirx.IfThenElse(self.first < end - self.left, whole, tirx.IfThenElse(self.first < end, rest, None))


def _divided(loop: Any) -> Any:
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(loop.extent, tirx.IntImm) or not _is_of_any_width(loop):
        return loop
    body = loop.body
    if isinstance(body, tirx.IfThenElse) and body.else_case is None:
        return _conditional(loop, body)
    if isinstance(body, tirx.BufferStore):
        return _choosing(loop, body)
    return loop


def _choosing(loop: Any, store: Any) -> Any:
    """A store of what depends on a choice of lanes: those inside take the one operand, those outside the other.

    It may be made several times: what is left of a float32 by a bfloat16 names the float32 again.
    """
    choices: list[Any] = []

    def is_of_lanes(call: Any) -> bool:
        return _is_choice(call) and loop.loop_var in variables(call.args[0])

    tvm_ffi.structural_walk(store.value, (ir.Call, lambda call: choices.append(call) if is_of_lanes(call) else None))
    first = choices[0] if choices else None
    if first is None or any(not is_same(one.args[0], first.args[0]) for one in choices[1:]):
        return loop
    tail = _tail(first.args[0], loop)
    if tail is None or any(loop.loop_var in variables(one.args[2]) for one in choices):
        return loop

    def taking(operand: int) -> Any:
        chosen = (ir.Call, lambda call: call.args[operand] if is_of_lanes(call) else call)
        return tirx.BufferStore(store.buffer, tvm_ffi.structural_map(store.value, chosen), list(store.indices))

    inside, outside = taking(1), _lanes(loop, taking(2))
    if first.same_as(store.value):
        rest = tirx.SeqStmt([outside, _lanes(loop, inside, tail.left)])
    else:  # which may read what it stores
        width = int(loop.extent)
        rest = tirx.SeqStmt([_lanes(loop, inside, tail.left), _lanes(loop, taking(2), width - tail.left, tail.left)])
    return tirx.IfThenElse(tail.first < tail.end, tail.divide(_lanes(loop, inside), rest), outside)


def _conditional(loop: Any, body: Any) -> Any:
    conditions = conjuncts(body.condition)
    of_lanes = [c for c in conditions if loop.loop_var in variables(c)]
    tail = _tail(of_lanes[0], loop) if len(of_lanes) == 1 else None
    if tail is None:
        return loop
    found = tail.divide(_lanes(loop, body.then_case), _lanes(loop, body.then_case, tail.left))
    rest = [c for c in conditions if c is not of_lanes[0]]
    return tirx.IfThenElse(tirx.all(*rest), found, None) if rest else found


def _tail(condition: Any, loop: Any) -> _Tail | None:
    """What a condition says of the lanes; None where it is of another form."""
    if not isinstance(condition, tirx.LT) or not isinstance(condition.b, tirx.IntImm):
        return None
    analyzer, width, end = Analyzer(), int(loop.extent), int(condition.b)
    zero = tirx.const(0, loop.loop_var.ty.dtype)
    first = analyzer.simplify(substitute(condition.a, {loop.loop_var: zero}))
    rest = analyzer.canonical_simplify(condition.a - first - loop.loop_var)
    if not isinstance(rest, tirx.IntImm) or int(rest) != 0 or end % width == 0:
        return None
    known = analyzer.modular_set(first)
    if int(known.coeff) % width or int(known.base) % width:
        return None
    return _Tail(first, end, end % width)


def _lanes(loop: Any, body: Any, count: int = 0, first: int = 0) -> tirx.For:
    """The loop with another body, over a variable of its own; over `count` lanes from `first` on, if that is not 0."""
    lane = tirx.Var(loop.loop_var.name, loop.loop_var.ty)
    extent = tirx.const(count, lane.ty.dtype) if count else loop.extent
    kind = tirx.ForKind.SERIAL if count == 1 else loop.kind
    return tirx.For(lane, loop.min, extent, kind, substitute(body, {loop.loop_var: lane + first}))


def _is_of_any_width(loop: Any) -> bool:
    """Whether what the loop calls are TVM's operators on elements: LLVM's, and ours, are of certain widths."""
    names: list[str] = []
    tvm_ffi.structural_walk(loop.body, (ir.Call, lambda call: names.append(str(getattr(call.op, "name", "")))))
    return not any(foreign in name for name in names if name != ROUND for foreign in _FOREIGN)


def _is_choice(value: Any) -> bool:
    return isinstance(value, ir.Call) and str(getattr(value.op, "name", "")).endswith("if_then_else")

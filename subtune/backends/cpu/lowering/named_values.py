"""Named parts of a stored value as elements of small buffers, where there are many.

    a[i] = let t = f(x) in g(t)     ->     t[0] = f(x);  a[i] = g(t[0])

TVM's code generator simplifies what a name stands for, and what the names in it stand for, wherever a choice asks for
it anew: seconds for a chain of three activations, minutes for more. It asks nothing of a buffer, and LLVM makes
registers of these.

This comes after TVM's passes: they know how to make vectors of a `let`.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx import PrimFunc

from subtune.tir.expressions import choice_of, variables
from subtune.tir.shuffle import lanes_of
from subtune.tir.substitute import substitute

_MANY = 4
"""Names: those of one GELU take no time."""


def many_in_buffers() -> Any:
    @tirx.transform.prim_func_pass(opt_level=0)
    def run(func: PrimFunc, _mod: IRModule, _ctx: PassContext) -> PrimFunc:
        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.BufferStore, _before)))

    return run


def _before(store: Any) -> Any:
    named: dict[Any, Any] = {}

    def name(let: Any) -> Any:
        named[let.var] = let.value
        return let.body

    hidden, choices = _without_choices(store.value)
    value = substitute(tvm_ffi.structural_map(hidden, (tirx.Let, name)), choices)
    if len(named) <= _MANY:
        return store
    named = {var: substitute(of, choices) for var, of in named.items()}
    places = {var: _Place(var) for var in named}
    reads = {var: place.read for var, place in places.items()}
    buffers = [tirx.AllocBuffer(place.buffer) for place in places.values()]
    puts = [places[var].put(substitute(named[var], reads)) for var in _in_order(named)]
    last = tirx.BufferStore(store.buffer, substitute(value, reads), list(store.indices))
    return tirx.SeqStmt([*buffers, *puts, last])


def _without_choices(value: Any) -> tuple[Any, dict[Any, Any]]:
    """`value` with a variable for every `if_then_else`, and what those stand for.

    What is named inside of a choice may be read under its condition only, and stays there.
    """
    choices: dict[Any, Any] = {}

    def hide(call: Any) -> Any:
        if choice_of(call) is None:
            return call
        var = tirx.Var(f"choice{len(choices)}", call.ty)
        choices[var] = substitute(call, choices)  # those inside of it came before
        return var

    return tvm_ffi.structural_map(value, (ir.Call, hide)), choices


class _Place:
    """A buffer of as many elements as a name's value has lanes."""

    def __init__(self, var: Any):
        lanes = lanes_of(var)
        dtype = str(var.ty.dtype).partition("x")[0]
        zero = tirx.const(0, "int32")
        self.buffer = tirx.decl_buffer([tirx.const(lanes, "int32")], dtype, var.name, scope="local")
        self._at = [tirx.Ramp(zero, tirx.const(1, "int32"), lanes) if lanes > 1 else zero]

    @property
    def read(self) -> Any:
        return tirx.BufferLoad(self.buffer, self._at)

    def put(self, value: Any) -> Any:
        return tirx.BufferStore(self.buffer, value, self._at)


def _in_order(named: dict[Any, Any]) -> list[Any]:
    """The names, each after those that its value reads."""
    reads = {var: variables(value) & named.keys() for var, value in named.items()}
    done: dict[Any, None] = {}
    while len(done) < len(named):
        ready = [var for var, read in reads.items() if var not in done and read <= done.keys()]
        assert ready, "a named value reads itself"
        done |= dict.fromkeys(ready)
    return list(done)

"""Twins of a straight line's `main` for a library of its own: the same steps, with the time of each, or one by one.

They are not in the model's library: a kernel that is called once is inlined there, and with a second caller it is not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import ir, tirx

from subtune.backends.host.traced import STEPS, TRACED

Names = Sequence[Sequence[str]]
"""Of the kernels in each step of a run."""

_TIME_BYTES = 16
"""Of C's `struct timespec`: seconds and nanoseconds, both in 64 bits."""


def timed(mod: tvm.IRModule, names: Names, clock: int) -> tvm.IRModule:
    """`mod` with a function `TRACED` instead of `main`, which writes down the time before each step and after the last.

    It takes what `main` takes, and then the address of an array of `struct timespec`, one more than there are steps.

    Args:
        clock: C's number of the clock, for `clock_gettime`.
    """
    times = tirx.Var("times", "int64")

    def stamp(index: int) -> Any:
        place = tirx.reinterpret("handle", times + tirx.const(_TIME_BYTES * index, "int64"))
        return tirx.Evaluate(tirx.call_extern("int32", "clock_gettime", tirx.const(clock, "int32"), place))

    body = [stamp(0)]
    for index, step in enumerate(_steps(mod, names), 1):
        body += [step, stamp(index)]
    return _twin(mod, names, body, times)


def stepwise(mod: tvm.IRModule, names: Names) -> tvm.IRModule:
    """`mod` with a function `TRACED` instead of `main`, which takes what that takes and which step to do."""
    index = tirx.Var("index", "int64")
    body = [tirx.IfThenElse(index == tirx.const(i, "int64"), step, None) for i, step in enumerate(_steps(mod, names))]
    return _twin(mod, names, body, index)


def _steps(mod: tvm.IRModule, names: Names) -> list[Any]:
    """The statements of `main` but for the last, which does nothing."""
    body = mod["main"].body
    found = list(body.seq)[:-1] if isinstance(body, tirx.SeqStmt) else []
    assert len(found) == len(names), f"{len(found)} steps and {len(names)} lists of names"
    return found


def _twin(mod: tvm.IRModule, names: Names, body: Sequence[Any], more: Any) -> tvm.IRModule:
    """`mod` with a function of `body` for `main`, which takes `more`, too, last; and with `STEPS`."""
    main, text, place = mod["main"], json.dumps(names), tirx.Var("place", "int64")
    nothing, size = tirx.Evaluate(tirx.const(0, "int32")), tirx.const(len(text), "int64")
    call = tirx.call_extern("handle", "memcpy", tirx.reinterpret("handle", place), ir.StringImm(text), size)
    copied = tirx.IfThenElse(place != tirx.const(0, "int64"), tirx.Evaluate(call), None)
    made = {
        TRACED: tirx.PrimFunc([*main.params, more], tirx.SeqStmt([*body, nothing]), main.ret_type, main.attrs),
        STEPS: tirx.PrimFunc([place], tirx.SeqStmt([copied, tirx.Return(size)]), ir.PrimType("int64"), main.attrs),
    }
    functions = {gvar: func for gvar, func in mod.functions_items() if gvar.name_hint != "main"}
    entries = {ir.GlobalVar(name): func.with_attr("global_symbol", name) for name, func in made.items()}
    return tvm.IRModule({**functions, **entries})

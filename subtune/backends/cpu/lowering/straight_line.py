"""A model that is a straight line of kernels as one function, which takes addresses and calls kernels with addresses.

Relax's VM takes tensors: making those of a small operator takes longer than its kernel does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import tvm
from tvm import ir, tirx

from subtune.backends.cpu.lowering.join_kernels import JOINED, by_address, flattened, join_kernels
from subtune.backends.cpu.lowering.launches import asserts, joined, may_fail
from subtune.backends.cpu.lowering.pipeline import FLAT
from subtune.backends.host.chooser import Chooser, calls_kernel, calls_of, checked
from subtune.core.memory_plan import Base, MemoryPlan, View
from subtune.core.variants import Variants
from subtune.runtime.triples import clock_of

TRACED = "traced"
"""The name of `main`'s twin, which writes down when each step begins."""
_FIRST_FIELD = 1
"""Of a struct of C: tirx's kDLTensorData."""
_TIME_BYTES = 16
"""Of C's `struct timespec`: seconds and nanoseconds, both in 64 bits."""


@dataclass(frozen=True, slots=True)
class StraightLine:
    """`steps` has the names of the kernels in each call of `main`, or none where the module has no `TRACED`."""

    mod: tvm.IRModule
    steps: tuple[tuple[str, ...], ...]


def straight_line(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    short: Collection[str],
    plan: MemoryPlan,
    offsets: Sequence[int],
    inputs: int,
    outputs: int,
    symbols: Sequence[str] = (),
    variants: Mapping[str, Variants] = MappingProxyType({}),
) -> StraightLine | None:
    """Kernels, and a `main` that is machine code, too; None if it does more than call kernels that cannot fail.

    Args:
        mod: with its memory planned: `main` takes the plan's arguments.
        short: names of kernels that are to be joined (`join_kernels`).
        offsets: of the weights, in bytes from the first.
        symbols, variants: as `Planned`.

    The new `main` takes integers: the bytes before the first field of an object, and the addresses of objects whose
    first field points to the weights, to the arena, to every input and to every output. Numpy's arrays are such. The
    values of a dynamic model's symbols come last.

    Where the target's system has a clock that can be called, the module has `TRACED`, too, which takes one more object,
    last: an array of a `struct timespec` for the time before each step, and for that after the last.
    """
    if plan.returned or not all(calls_kernel(mod, call) for call in calls_of(mod)):
        return None
    if not symbols:
        mod = join_kernels(mod, target, short)
    calls = calls_of(mod)
    static = {call.op: mod[call.op] for call in calls if call.op.name_hint not in variants}
    kernels = flattened(static, target)
    dynamic = Chooser({name: variants[name] for name in sorted({call.op.name_hint for call in calls} & set(variants))})
    if any(asserts(kernel) or may_fail(kernel.body) for kernel in (*kernels.values(), *dynamic.kernels)):
        return None
    functions = {gvar: func for gvar, func in mod.functions_items() if func.attrs and FLAT in func.attrs}  # in launches
    functions |= {gvar: _by_address(kernel) for gvar, kernel in kernels.items()}
    functions |= dynamic.functions(_by_address)

    def body(main: _Main) -> list[Any]:
        places = dict(zip(mod["main"].params, map(main.address, plan.arguments), strict=True))
        return [
            dynamic.step(call.op.name_hint, main.values, [places[arg] for arg in call.args])
            if call.op.name_hint in variants
            else checked(call.op, [places[arg] for arg in call.args])
            for call in calls
        ]

    main = _Main(inputs, outputs, offsets, symbols)
    functions[mod.get_global_var("main")] = main.function("main", body(main))
    steps: tuple[tuple[str, ...], ...] = ()
    if calls and (clock := clock_of(str(target.attrs["mtriple"]))) is not None:
        twin = _Main(inputs, outputs, offsets, symbols)
        functions[ir.GlobalVar(TRACED)] = twin.traced(body(twin), clock)
        steps = tuple(_names(mod[call.op], call.op.name_hint) for call in calls)
    return StraightLine(tvm.IRModule(functions), steps)


class _Main:
    """The parameters of a `main`, and where tensors lie by them."""

    def __init__(self, inputs: int, outputs: int, offsets: Sequence[int], symbols: Sequence[str]) -> None:
        self._header, *self._objects = [tirx.Var(f"arg{i}", "int64") for i in range(3 + inputs + outputs)]
        self.values = {name: tirx.Var(f"symbol{i}", "int64") for i, name in enumerate(symbols)}
        self._offsets = offsets
        self._first = {Base.WEIGHT: 0, Base.ARENA: 1, Base.INPUT: 2, Base.OUTPUT: 2 + inputs}

    def address(self, view: View) -> Any:
        if view.base is Base.INPUT or view.base is Base.OUTPUT:
            return _data(self._header, self._objects[self._first[view.base] + view.place], 0)
        offset = self._offsets[view.place] if view.base is Base.WEIGHT else view.place
        return _data(self._header, self._objects[self._first[view.base]], offset)

    def function(self, name: str, steps: Sequence[Any], *more: Any) -> Any:
        """Of `steps` in a row; `more` are its last parameters."""
        nothing = tirx.Evaluate(tirx.const(0, "int32"))
        body = tirx.SeqStmt([*steps, nothing]) if steps else nothing
        params = [self._header, *self._objects, *self.values.values(), *more]
        return tirx.PrimFunc(params, body).with_attr("global_symbol", name)

    def traced(self, steps: Sequence[Any], clock: int) -> Any:
        """With the time before every step and after the last."""
        times = tirx.Var("times", "int64")

        def stamp(index: int) -> Any:
            place = _data(self._header, times, _TIME_BYTES * index)
            return tirx.Evaluate(tirx.call_extern("int32", "clock_gettime", tirx.const(clock, "int32"), place))

        body = [stamp(0)]
        for index, step in enumerate(steps, 1):
            body += [step, stamp(index)]
        return self.function(TRACED, body, times)


def _names(func: Any, name: str) -> tuple[str, ...]:
    """The kernels that a function of `main` consists of."""
    joined_ones = func.attrs.get(JOINED) if func.attrs else None
    return tuple(map(str, joined_ones)) if joined_ones else (name,)


def _by_address(kernel: Any, numbers: int = 0) -> Any:
    """A flat kernel, whose first parameters are numbers, as a function of these and of addresses."""
    whole = joined(kernel)
    return by_address(whole, whole.body, list(whole.params)[:numbers])


def _data(header: Any, place: Any, offset: int) -> Any:
    start = tirx.tvm_struct_get(tirx.reinterpret("handle", place + header), 0, _FIRST_FIELD, "handle")
    return tirx.handle_add_byte_offset(start, tirx.const(offset, "int64")) if offset else start

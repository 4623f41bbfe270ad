"""A model that is a straight line of kernels as one function, which takes addresses and calls kernels with addresses.

Relax's VM takes tensors: making those of a small operator takes longer than its kernel does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import tvm
from tvm import tirx

from subtune.backends.cpu.lowering.join_kernels import JOINED, by_address, flattened, join_kernels
from subtune.backends.cpu.lowering.launches import asserts, joined, may_fail
from subtune.backends.cpu.lowering.pipeline import FLAT
from subtune.backends.host.chooser import Chooser, calls_kernel, calls_of, checked
from subtune.core.memory_plan import Base, MemoryPlan, View
from subtune.core.variants import Variants

_FIRST_FIELD = 1
"""Of a struct of C: tirx's kDLTensorData."""


@dataclass(frozen=True, slots=True)
class StraightLine:
    """`names` are those of the kernels in each step of `main`, which is a call."""

    mod: tvm.IRModule
    names: tuple[tuple[str, ...], ...]


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
    header, *objects = [tirx.Var(f"arg{i}", "int64") for i in range(3 + inputs + outputs)]
    values = {name: tirx.Var(f"symbol{i}", "int64") for i, name in enumerate(symbols)}
    first = {Base.WEIGHT: 0, Base.ARENA: 1, Base.INPUT: 2, Base.OUTPUT: 2 + inputs}

    def address(view: View) -> Any:
        if view.base is Base.INPUT or view.base is Base.OUTPUT:
            return _data(header, objects[first[view.base] + view.place], 0)
        offset = offsets[view.place] if view.base is Base.WEIGHT else view.place
        return _data(header, objects[first[view.base]], offset)

    places = dict(zip(mod["main"].params, map(address, plan.arguments), strict=True))
    steps = [
        dynamic.step(call.op.name_hint, values, [places[arg] for arg in call.args])
        if call.op.name_hint in variants
        else checked(call.op, [places[arg] for arg in call.args])
        for call in calls
    ]
    nothing = tirx.Evaluate(tirx.const(0, "int32"))
    body = tirx.SeqStmt([*steps, nothing]) if steps else nothing
    functions = {gvar: func for gvar, func in mod.functions_items() if func.attrs and FLAT in func.attrs}  # in launches
    functions |= {gvar: _by_address(kernel) for gvar, kernel in kernels.items()}
    functions |= dynamic.functions(_by_address)
    main = tirx.PrimFunc([header, *objects, *values.values()], body)
    functions[mod.get_global_var("main")] = main.with_attr("global_symbol", "main")
    return StraightLine(tvm.IRModule(functions), tuple(_names(mod[call.op], call.op.name_hint) for call in calls))


def _names(func: Any, name: str) -> tuple[str, ...]:
    """Of the kernels in a function that `main` calls."""
    kernels = func.attrs.get(JOINED) if func.attrs else None
    return tuple(map(str, kernels)) if kernels else (name,)


def _by_address(kernel: Any, numbers: int = 0) -> Any:
    """A flat kernel, whose first parameters are numbers, as a function of these and of addresses."""
    whole = joined(kernel)
    return by_address(whole, whole.body, list(whole.params)[:numbers])


def _data(header: Any, place: Any, offset: int) -> Any:
    start = tirx.tvm_struct_get(tirx.reinterpret("handle", place + header), 0, _FIRST_FIELD, "handle")
    return tirx.handle_add_byte_offset(start, tirx.const(offset, "int64")) if offset else start

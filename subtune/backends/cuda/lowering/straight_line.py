"""A dynamic model on a GPU as one function of the host, which launches the kernels that an instance wants.

It takes addresses and the values of the symbols: nothing is allocated, and all that is launched can be captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx

from subtune.backends.cuda.lowering.flat import FLAT, HOST
from subtune.backends.host.chooser import Chooser, calls_kernel, calls_of, checked
from subtune.backends.planned import Planned
from subtune.core.memory_plan import Base, View
from subtune.core.workload import dtype_bits
from subtune.tir.substitute import substitute

ALIGNMENT = 256
"""Of a kernel's own memory, in bytes."""
_OF_ENTRIES = ("global_symbol", "tirx.is_entry_func")
"""Attributes of functions that are called from without."""


def names_of(planned: Planned) -> list[tuple[str]]:
    """Of the kernel in each step of the `main` that `straight_line` makes."""
    return [(call.op.name_hint,) for call in calls_of(planned.calls)]


def straight_line(planned: Planned, flat: Callable[[Any], Any], target: Any) -> tuple[tvm.IRModule, int] | None:
    """A module whose `main` launches all kernels of a run; None if it does more than call kernels.

    Args:
        flat: lowers a scheduled PrimFunc so far.
        target: of the host.

    The new `main` takes addresses: of the weights, of the arena, of every input and of every output. The values of the
    symbols come last. Behind the planned arena it wants memory for what kernels write for themselves: the number is how
    many bytes the whole takes.
    """
    mod, variants = planned.calls, planned.variants
    calls = calls_of(mod)
    if planned.memory.returned or not all(calls_kernel(mod, call) for call in calls):
        return None
    of_inputs, of_outputs = planned.arrays
    weights, arena, *arrays = (tirx.Var(f"arg{i}", "int64") for i in range(2 + of_inputs + of_outputs))
    values = {name: tirx.Var(f"symbol{i}", "int64") for i, name in enumerate(planned.symbols)}

    def address(view: View) -> Any:
        if view.base is Base.WEIGHT:
            return weights + tirx.const(planned.offsets[view.place], "int64")
        if view.base is Base.ARENA:
            return arena + tirx.const(view.place, "int64")
        return arrays[view.place + (0 if view.base is Base.INPUT else of_inputs)]

    places = [tirx.reinterpret("handle", address(view)) for view in planned.memory.arguments]
    by_param = dict(zip(mod["main"].params, places, strict=True))
    called = {call.op.name_hint: call.op for call in calls}
    dynamic = Chooser({name: one for name, one in sorted(variants.items()) if name in called})
    whole = -(-planned.memory.arena_nbytes // ALIGNMENT) * ALIGNMENT
    memory = tirx.reinterpret("handle", arena + tirx.const(whole, "int64"))
    steps = []
    for call in calls:
        name, given = call.op.name_hint, [by_param[arg] for arg in call.args]
        step = dynamic.step(name, values, given, [memory]) if name in variants else checked(call.op, [*given, memory])
        steps.append(step)
    own = [0]

    def lowered(kernel: Any, numbers: int = 0) -> Any:
        made = flat(kernel)
        own.append(own_nbytes(made))
        return by_address(made, numbers)

    functions = {gvar: lowered(mod[gvar]) for name, gvar in sorted(called.items()) if name not in variants}
    functions |= dynamic.functions(lowered)
    params = [weights, arena, *arrays, *values.values()]
    main = tirx.PrimFunc(params, tirx.SeqStmt([*steps, tirx.Evaluate(tirx.const(0, "int32"))]))
    main = main.with_attrs({"global_symbol": "main", "target": target, HOST: True})
    return tvm.IRModule({**functions, mod.get_global_var("main"): main}), whole + max(own)


def own_nbytes(kernel: Any) -> int:
    """What a flat kernel allocates between its launches."""
    return sum(map(_nbytes, _own(kernel)))


def by_address(kernel: Any, numbers: int = 0) -> Any:
    """`(numbers, address of every argument, address of memory of its own)`: a flat kernel, whose first parameters are
    numbers, as a function to be called from within the module."""
    leading, buffers = list(kernel.params)[:numbers], list(kernel.params)[numbers:]
    seen = [tirx.decl_buffer(one.shape, one.dtype, one.name, data_alignment=one.data_alignment) for one in buffers]
    addresses = [tirx.Var(buffer.name, buffer.data.ty) for buffer in seen]
    memory = tirx.Var("own_memory", "handle")
    offsets: dict[Any, int] = {}
    for buffer in _own(kernel):
        offsets[buffer] = sum(_nbytes(before) for before in offsets)

    def declared(alloc: Any) -> Any:
        if alloc.buffer not in offsets:
            return alloc
        start = tirx.handle_add_byte_offset(memory, tirx.const(offsets[alloc.buffer], "int64"))
        return tirx.DeclBuffer(alloc.buffer, data=tirx.reinterpret(alloc.buffer.data.ty, start))

    body = tvm_ffi.structural_map(kernel.body, (tirx.AllocBuffer, declared)) if offsets else kernel.body
    body = substitute(body, dict(zip(buffers, seen, strict=True)))
    whole = [tirx.DeclBuffer(buffer, data=address) for buffer, address in zip(seen, addresses, strict=True)]
    func = tirx.PrimFunc(
        [*leading, *addresses, memory], tirx.SeqStmt([*whole, body]), ir.PrimType("int32"), kernel.attrs
    )
    for name in _OF_ENTRIES:
        func = func.without_attr(name)
    return func.with_attr(FLAT, True)


def _own(kernel: Any) -> list[Any]:
    found: list[Any] = []

    def look(alloc: Any) -> None:
        if alloc.buffer.scope() in ("", "global"):
            found.append(alloc.buffer)

    tvm_ffi.structural_walk(kernel.body, (tirx.AllocBuffer, look))
    return found


def _nbytes(buffer: Any) -> int:
    elements: Sequence[int] = [int(extent) for extent in buffer.shape]
    return -(-prod(elements) * dtype_bits(str(buffer.dtype)) // 8 // ALIGNMENT) * ALIGNMENT

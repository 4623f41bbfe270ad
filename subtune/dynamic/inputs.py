"""Which values of an outlined module are a caller's memory: behind its last row is memory of somebody else."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.ir import Call, Op


class CallersMemory:
    """The parameters of a module's `main`, and views of them; it is told of the bindings in their order."""

    def __init__(self, main: relax.Function) -> None:
        self._values: list[Any] = list(main.params)

    def __contains__(self, value: Any) -> bool:
        return any(value.same_as(one) for one in self._values)

    def follow(self, binding: Any) -> None:
        """A reshape, or another name, of a caller's memory is the same memory."""
        value = binding.value
        source = value.args[0] if isinstance(value, Call) and value.op == Op.get("relax.reshape") else value
        if source in self:
            self._values.append(binding.var)


def that_read_inputs(mod: Any) -> frozenset[str]:
    """Names of the PrimFuncs of an outlined module that are called on inputs of the model, or on views of them."""
    main, found = mod["main"], set()
    callers = CallersMemory(main)
    for block in main.body.blocks:
        for binding in block.bindings:
            value = binding.value
            args = value.args[1].fields if isinstance(value, Call) and _has_tuple(value) else ()
            if any(arg in callers for arg in args):
                found.add(value.args[0].name_hint)
            callers.follow(binding)
    return frozenset(found)


def _has_tuple(call: Call) -> bool:
    return len(call.args) > 1 and isinstance(call.args[1], relax.Tuple)

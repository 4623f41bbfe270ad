"""Calls of kernels from `main`: checked, and of a dynamic model's kernels the one that an instance wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import ir, relax, tirx

from subtune.core.dims import Dim, Quotient, quotient
from subtune.core.dispatch import Split, Tree
from subtune.core.variants import Variants


def checked(kernel: Any, arguments: Sequence[Any]) -> Any:
    """A call that ends the run where the kernel says that it failed."""
    called = ir.Call(kernel, list(arguments), ret_ty=ir.PrimType("int32"))
    message = ir.StringImm(f"the kernel {kernel.name_hint} failed")
    return tirx.AssertStmt(called == tirx.const(0, "int32"), ir.StringImm("RuntimeError"), [message])


class Chooser:
    """The functions of dynamic subgraphs, and statements that call one of them: comparisons in the machine code."""

    def __init__(self, variants: Mapping[str, Variants]) -> None:
        self._variants = variants
        self._gvars = {
            name: [ir.GlobalVar(f"{name}_of_{i}") for i in range(len(one.kernels))] for name, one in variants.items()
        }

    @property
    def kernels(self) -> list[Any]:
        return [kernel.func for one in self._variants.values() for kernel in one.kernels]

    def functions(self, by_address: Callable[[Any, int], Any]) -> dict[Any, Any]:
        """Of all kernels, to be called with numbers of tiles and addresses.

        Args:
            by_address: makes such a function of a flat kernel with so many leading parameters that are numbers.
        """
        return {
            gvar: by_address(kernel.func, kernel.leading)
            for name, one in self._variants.items()
            for gvar, kernel in zip(self._gvars[name], one.kernels, strict=True)
        }

    def step(self, name: str, symbols: Mapping[str, Any], addresses: Sequence[Any], more: Sequence[Any] = ()) -> Any:
        """A call of the subgraph `name`, by the values of the model's symbols; every kernel takes `more` last."""
        one = self._variants[name]
        extents = [expression(dim, symbols) for dim in one.extents]

        def chosen(tree: Tree) -> Any:
            if isinstance(tree, Split):
                question = extents[tree.extent] <= tirx.const(tree.at_most, "int64")
                return tirx.IfThenElse(question, chosen(tree.low), chosen(tree.high))
            kernel = one.kernels[tree.kernel]
            tiles = [
                _divided(extent, Quotient(dim, granule, True)) if granule > 1 else extent
                for extent, dim, granule in zip(extents, one.extents, kernel.granules, strict=True)
            ]
            numbers = [*tiles, *extents] if kernel.knows_extents else tiles
            return checked(self._gvars[name][tree.kernel], [*numbers, *(addresses[i] for i in kernel.arguments), *more])

        return chosen(one.tree)


def calls_of(mod: Any) -> list[Any]:
    """The values that `main` binds, but for the last, its result."""
    return [binding.value for block in mod["main"].body.blocks for binding in block.bindings][:-1]


def calls_kernel(mod: Any, value: Any) -> bool:
    """Whether a value that `main` binds is a call of a PrimFunc on tensors alone."""
    return (
        isinstance(value, ir.Call)
        and isinstance(value.op, ir.GlobalVar)
        and isinstance(mod[value.op], tirx.PrimFunc)
        and all(isinstance(arg, relax.Var) for arg in value.args)
        and all(isinstance(param.ty, tirx.BufferType) for param in mod[value.op].params)
    )


def expression(dim: Dim, symbols: Mapping[str, Any]) -> Any:
    """A dim in int64, by the expressions of its symbols."""
    total = tirx.const(0, "int64")
    for monomial, factor in dim.terms:
        term = tirx.const(factor, "int64")
        for name in monomial:
            whole = quotient(name)
            term = term * (_divided(expression(whole.dividend, symbols), whole) if whole else symbols[name])
        total = total + term
    return total


def _divided(dividend: Any, whole: Quotient) -> Any:
    more = tirx.const(whole.divisor - 1 if whole.is_up else 0, "int64")
    return tirx.floordiv(dividend + more, tirx.const(whole.divisor, "int64"))

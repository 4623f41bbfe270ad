"""What is copied, once a run, before it is read: corners of constants, and inputs that are read past their end.

Constants may be larger for larger instances: position numbers, masks of a causal attention, what an importer computes
of the shapes. Instances read a corner of the greatest one's. A corner that lies together in memory is read in its
place.

Behind the last row of a caller's array is memory of somebody else, and kernels that compute whole tiles of rows may not
read it. A product of many columns wants them all the same: the copy is read once, and the weights many times.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tvm import relax, te
from tvm.ir import Call, IRModule, Op

from subtune.core.dims import Dim
from subtune.core.workload import Workload
from subtune.dynamic.workload import DynamicWorkload, has_free_rows
from subtune.passes.exprs import array_of

PREFIX = "copied"
"""Of the names of PrimFuncs that copy."""

Corner = tuple[tuple[Dim, ...], tuple[Dim, ...], str]
"""Dims of the whole, and of what an instance reads; dtype."""
_FLOPS_PER_BYTE = 8
"""Of what it reads and writes: for fewer, the copy counts."""


def lies_together(whole: Sequence[int], dims: Sequence[Dim]) -> bool:
    """Whether a corner is the beginning of the constant: nothing is left out behind an axis of more than one."""
    first = next((i for i, extent in enumerate(whole) if extent > 1), len(whole))
    return all(dim.constant == extent for extent, dim in list(zip(whole, dims, strict=True))[first + 1 :])


def corner(whole: Sequence[int], extents: Sequence[int], dtype: str) -> Workload:
    """The copy of `constant[:extents]`, as a workload."""
    source = te.placeholder(tuple(whole), dtype, "constant")
    copied = te.compute(tuple(extents), lambda *at: source(*at), name="corner")
    return Workload.of(te.create_prim_func([source, copied]), 1)


def multiplies_rows(workload: DynamicWorkload, extents: Sequence[int]) -> bool:
    """Whether its kernels may compute whole tiles of rows, and it does much with each."""
    if not has_free_rows(workload):
        return False
    greatest = workload.at(extents)
    return greatest.flops >= _FLOPS_PER_BYTE * sum(arg.nbytes for arg in greatest.args if not arg.is_constant)


def with_corners(
    mod: IRModule, dims_of: Mapping[str, Sequence[Sequence[Dim]]], multiply_rows: Collection[str] = ()
) -> tuple[IRModule, dict[str, Corner]]:
    """An outlined module that copies the corners of its constants where they do not lie together, and some inputs.

    Args:
        dims_of: of the arguments of each PrimFunc, by its name.
        multiply_rows: names of the PrimFuncs whose inputs are copied.

    Returns the module, and what the new PrimFuncs copy, by their names.
    """
    writer = _Writer(mod, dims_of, multiply_rows)
    main = mod["main"]
    blocks = [
        type(block)([new for binding in block.bindings for new in writer.rewritten(binding)])
        for block in main.body.blocks
    ]
    if not writer.corners:
        return mod, {}
    made = writer.bb.get()
    body = relax.SeqExpr(blocks, main.body.body)
    function = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    made.update_func(made.get_global_var("main"), function)
    return made, writer.corners


class _Writer:
    """Bindings of `main`, with copies before those that need them."""

    def __init__(
        self, mod: IRModule, dims_of: Mapping[str, Sequence[Sequence[Dim]]], multiply_rows: Collection[str]
    ) -> None:
        self.bb = relax.BlockBuilder(mod)
        self.corners: dict[str, Corner] = {}
        self._params, self._dims_of, self._multiply_rows = list(mod["main"].params), dims_of, multiply_rows
        self._copies: dict[Any, Any] = {}

    def rewritten(self, binding: Any) -> list[Any]:
        value = binding.value
        is_call = isinstance(value, Call) and value.op == Op.get("relax.call_tir")
        dims_of_args = self._dims_of.get(value.args[0].name_hint) if is_call else None
        if dims_of_args is None:
            return [binding]
        before: list[Any] = []
        reads = self._input if value.args[0].name_hint in self._multiply_rows else self._constant
        args = [reads(arg, dims, before) for arg, dims in zip(value.args[1].fields, dims_of_args, strict=False)]
        call = Call(value.op, [value.args[0], relax.Tuple(args)], value.attrs, value.ty_args, ret_ty=value.ty)
        return [*before, relax.VarBinding(binding.var, call)]

    def _input(self, arg: Any, dims: Sequence[Dim], before: list[Any]) -> Any:
        """As `_constant`; of an input its copy."""
        if not any(arg.same_as(param) for param in self._params) or all(dim.constant is not None for dim in dims):
            return self._constant(arg, dims, before)
        return self._copied(arg, tuple(map(int, arg.ty.shape)), dims, dims, before)

    def _constant(self, arg: Any, dims: Sequence[Dim], before: list[Any]) -> Any:
        """The argument, or the copy of its corner, which may have to be made `before`."""
        if isinstance(arg, relax.Var) or all(dim.constant is not None for dim in dims):
            return arg
        array = array_of(arg)
        if array is None or lies_together(array.shape, dims):
            return arg
        return self._copied(arg, array.shape, tuple(map(Dim.number, array.shape)), dims, before)

    def _copied(
        self, arg: Any, shape: tuple[int, ...], whole: Sequence[Dim], dims: Sequence[Dim], before: list[Any]
    ) -> Any:
        """`shape`: of the greatest instance's."""
        key = (arg, tuple(dims))
        if key not in self._copies:
            name, dtype = f"{PREFIX}_{len(self.corners)}", str(arg.ty.dtype)
            self.corners[name] = (tuple(whole), tuple(dims), dtype)
            copy = corner(shape, shape, dtype).func.without_attr("global_symbol")
            ty = relax.TensorType(shape, dtype)
            self._copies[key] = relax.DataflowVar(name, ty)
            call = relax.call_tir(self.bb.add_func(copy, name), relax.Tuple([arg]), ty)
            before.append(relax.VarBinding(self._copies[key], call))
        return self._copies[key]

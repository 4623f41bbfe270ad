"""Constants that are larger for larger instances: the greatest one's, of which others read a corner.

Position numbers, masks of a causal attention: what an importer computes of the shapes. A corner that lies together in
memory is read in its place; any other is copied out, once a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax, te
from tvm.ir import Call, IRModule, Op

from subtune.core.dims import Dim
from subtune.core.workload import Workload
from subtune.passes.exprs import array_of

PREFIX = "corner_of_constant"
"""Of the names of PrimFuncs that copy."""

Corner = tuple[tuple[int, ...], tuple[Dim, ...], str]
"""Shape of the whole constant, the dims of what an instance reads, dtype."""


def lies_together(whole: Sequence[int], dims: Sequence[Dim]) -> bool:
    """Whether a corner is the beginning of the constant: nothing is left out behind an axis of more than one."""
    first = next((i for i, extent in enumerate(whole) if extent > 1), len(whole))
    return all(dim.constant == extent for extent, dim in list(zip(whole, dims, strict=True))[first + 1 :])


def corner(whole: Sequence[int], extents: Sequence[int], dtype: str) -> Workload:
    """The copy of `constant[:extents]`, as a workload."""
    source = te.placeholder(tuple(whole), dtype, "constant")
    copied = te.compute(tuple(extents), lambda *at: source(*at), name="corner")
    return Workload.of(te.create_prim_func([source, copied]), 1)


def with_corners(mod: IRModule, dims_of: Mapping[str, Sequence[Sequence[Dim]]]) -> tuple[IRModule, dict[str, Corner]]:
    """An outlined module that copies the corners of its constants where they do not lie together.

    Args:
        dims_of: of the arguments of each PrimFunc, by its name.

    Returns the module, and what the new PrimFuncs copy, by their names.
    """
    writer = _Writer(mod, dims_of)
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

    def __init__(self, mod: IRModule, dims_of: Mapping[str, Sequence[Sequence[Dim]]]) -> None:
        self.bb = relax.BlockBuilder(mod)
        self.corners: dict[str, Corner] = {}
        self._dims_of = dims_of
        self._copies: dict[Any, Any] = {}

    def rewritten(self, binding: Any) -> list[Any]:
        value = binding.value
        is_call = isinstance(value, Call) and value.op == Op.get("relax.call_tir")
        dims_of_args = self._dims_of.get(value.args[0].name_hint) if is_call else None
        if dims_of_args is None:
            return [binding]
        before: list[Any] = []
        args = [self._read(arg, dims, before) for arg, dims in zip(value.args[1].fields, dims_of_args, strict=False)]
        call = Call(value.op, [value.args[0], relax.Tuple(args)], value.attrs, value.ty_args, ret_ty=value.ty)
        return [*before, relax.VarBinding(binding.var, call)]

    def _read(self, arg: Any, dims: Sequence[Dim], before: list[Any]) -> Any:
        """The argument, or the copy of its corner, which may have to be made `before`."""
        if isinstance(arg, relax.Var) or all(dim.constant is not None for dim in dims):
            return arg
        array = array_of(arg)
        if array is None or lies_together(array.shape, dims):
            return arg
        key = (arg, tuple(dims))
        if key not in self._copies:
            name, dtype = f"{PREFIX}_{len(self.corners)}", str(arg.ty.dtype)
            self.corners[name] = (tuple(array.shape), tuple(dims), dtype)
            copy = corner(array.shape, array.shape, dtype).func.without_attr("global_symbol")
            ty = relax.TensorType(array.shape, dtype)
            self._copies[key] = relax.DataflowVar(name, ty)
            call = relax.call_tir(self.bb.add_func(copy, name), relax.Tuple([arg]), ty)
            before.append(relax.VarBinding(self._copies[key], call))
        return self._copies[key]

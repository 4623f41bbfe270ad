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
    call_tir = Op.get("relax.call_tir")
    bb = relax.BlockBuilder(mod)
    made: dict[str, Corner] = {}
    known: dict[Any, Any] = {}
    main = mod["main"]
    blocks = []
    for block in main.body.blocks:
        bindings: list[Any] = []
        for binding in block.bindings:
            value = binding.value
            if not isinstance(value, Call) or value.op != call_tir or value.args[0].name_hint not in dims_of:
                bindings.append(binding)
                continue
            args = []
            for arg, dims in zip(value.args[1].fields, dims_of[value.args[0].name_hint], strict=False):
                array = (
                    None if isinstance(arg, relax.Var) or all(d.constant is not None for d in dims) else array_of(arg)
                )
                if array is None or lies_together(array.shape, dims):
                    args.append(arg)
                    continue
                key = (arg, tuple(dims))
                if key not in known:
                    name, dtype = f"{PREFIX}_{len(made)}", str(arg.ty.dtype)
                    made[name] = (tuple(array.shape), tuple(dims), dtype)
                    gvar = bb.add_func(corner(array.shape, array.shape, dtype).func.without_attr("global_symbol"), name)
                    ty = relax.TensorType(array.shape, dtype)
                    call = relax.call_tir(gvar, relax.Tuple([arg]), ty)
                    known[key] = relax.DataflowVar(name, ty)
                    bindings.append(relax.VarBinding(known[key], call))
                args.append(known[key])
            bindings.append(
                relax.VarBinding(
                    binding.var,
                    Call(value.op, [value.args[0], relax.Tuple(args)], value.attrs, value.ty_args, ret_ty=value.ty),
                )
            )
        blocks.append(type(block)(bindings))
    if not made:
        return mod, {}
    out = bb.get()
    body = relax.SeqExpr(blocks, main.body.body)
    out.update_func(
        out.get_global_var("main"), relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    )
    return out, made

"""Splice: the tuned kernels take the place of their workloads, and constants the layout the kernels ask for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Call, GenericConst, IRModule, Op
from tvm.tirx import PrimFunc

from subtune.core.kernel import ConstantTransform, Kernel
from subtune.passes.exprs import array_of, make_const
from subtune.passes.outline_lower import OP_PATTERN_ATTR, OPAQUE_PATTERN


def splice(mod: IRModule, kernels: Mapping[str, Kernel]) -> IRModule:
    """Put `kernels` into an outlined module; what has no kernel stays as it is.

    Args:
        mod: what `outline` made.
        kernels: by the name of the GlobalVar whose PrimFunc they replace.

    `R.call_tir(f, (x, w))` -> `R.call_tir(f, (x, packed w))` for a kernel that packs its argument 1, and
    `R.call_tir(f, (x, packed w, w))` for one that takes it once `more` as it is.
    """
    old = {gvar.name_hint: (gvar, func) for gvar, func in mod.functions_items()}
    unknown = sorted(set(kernels) - set(old))
    assert not unknown, f"no PrimFunc called {', '.join(unknown)} in the module"
    if not kernels:
        return mod
    functions = {name: _linked(kernels[name].func) if name in kernels else func for name, (_, func) in old.items()}
    # a GlobalVar carries its function's type, and packing changes that: new ones for the kernels
    gvars = {name: _gvar(functions[name], name) if name in kernels else gvar for name, (gvar, _) in old.items()}
    functions["main"] = _rewrite_calls(functions["main"], kernels, gvars)
    attrs = {key: mod.attrs[key] for key in mod.attrs.keys()} if mod.attrs else {}  # noqa: SIM118
    return IRModule({gvars[name]: func for name, func in functions.items()}, attrs, mod.global_infos)


def _linked(func: PrimFunc) -> PrimFunc:
    """Private, so that the build names it after its GlobalVar; opaque, so that nothing fuses it any further."""
    func = func.without_attr("global_symbol") if func.attrs and "global_symbol" in func.attrs else func
    return func.with_attr("tirx.noalias", True).with_attr(OP_PATTERN_ATTR, OPAQUE_PATTERN)


def _gvar(func: Any, name: str) -> Any:
    return relax.BlockBuilder().add_func(func, name)


def _rewrite_calls(main: Any, kernels: Mapping[str, Kernel], gvars: Mapping[str, Any]) -> relax.Function:
    """`main` calling the new GlobalVars, on packed constants; equal constants packed alike become one."""
    call_tir = Op.get("relax.call_tir")
    cache: dict[tuple[bytes, str, tuple[int, ...], ConstantTransform], Any] = {}

    def packed(name: str, index: int, const: Any, packing: ConstantTransform) -> Any:
        assert isinstance(const, GenericConst), f"argument {index} of {name} is packed, but no constant: {const}"
        array = array_of(const)
        assert array is not None
        dtype = str(const.ty.dtype)
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        key = (hashlib.sha256(content.data).digest(), dtype, tuple(array.shape), packing)
        if key not in cache:
            cache[key] = make_const(packing(array))
        return cache[key]

    def rewrite(value: Any) -> Any:
        if not isinstance(value, Call) or value.op != call_tir or value.args[0].name_hint not in kernels:
            return value
        name = str(value.args[0].name_hint)
        wanted = dict(kernels[name].packings)
        given = list(value.args[1].fields)
        args = [packed(name, i, arg, wanted[i]) if i in wanted else arg for i, arg in enumerate(given)]
        args += [packed(name, i, given[i], form) if form else given[i] for i, form in kernels[name].more]
        return Call(value.op, [gvars[name], relax.Tuple(args)], value.attrs, value.ty_args, ret_ty=value.ty)

    blocks = [
        type(block)([relax.VarBinding(binding.var, rewrite(binding.value)) for binding in block.bindings])
        for block in main.body.blocks
    ]
    return relax.Function(main.params, relax.SeqExpr(blocks, main.body.body), main.ret_ty, main.is_pure, main.attrs)

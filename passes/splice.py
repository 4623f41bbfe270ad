"""Splice: the tuned kernels take the place of their workloads, and constants the layout the kernels ask for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call, GenericConst, IRModule, Op

from subtune.kernel import Kernel, Packing
from subtune.passes.outline_lower import OP_PATTERN_ATTR, OPAQUE_PATTERN


def splice(mod: IRModule, kernels: Mapping[str, Kernel]) -> IRModule:
    """Put `kernels` into an outlined module; what has no kernel stays as it is.

    Args:
        mod: what `outline` made.
        kernels: by the name of the GlobalVar whose PrimFunc they replace.

    `R.call_tir(f, (x, w))` -> `R.call_tir(f, (x, packed w))` for a kernel that packs its argument 1.
    """
    functions = {gvar.name_hint: (gvar, func) for gvar, func in mod.functions_items()}
    unknown = sorted(set(kernels) - set(functions))
    assert not unknown, f"no PrimFunc called {', '.join(unknown)} in the module"
    result = IRModule(
        {gvar: _linked(kernels[name].func) if name in kernels else func for name, (gvar, func) in functions.items()},
        attrs=mod.attrs,
        global_infos=mod.global_infos,
    )
    packings = {name: dict(kernel.packings) for name, kernel in kernels.items() if kernel.packings}
    if packings:
        gvar, main = functions["main"]
        fresh = {name: _retyped(result, functions[name][0]) for name in packings}
        result.update_func(gvar, _repack(main, packings, fresh))
    return result


def _retyped(mod: IRModule, old: Any) -> Any:
    """A GlobalVar of the same name in the place of `old`, whose type is that of a signature that packing changed."""
    func = mod[old]
    fresh = tvm.ir.GlobalVar(old.name_hint)
    relax.expr._update_type(fresh, func.ty)
    del mod[old]
    mod.update_func(fresh, func)
    return fresh


def _linked(func: Any) -> Any:
    """Private, so that the build names it after its GlobalVar; opaque, so that nothing fuses it any further."""
    func = func.without_attr("global_symbol") if func.attrs and "global_symbol" in func.attrs else func
    return func.with_attr("tirx.noalias", True).with_attr(OP_PATTERN_ATTR, OPAQUE_PATTERN)


def _repack(main: Any, packings: Mapping[str, Mapping[int, Packing]], fresh: Mapping[str, Any]) -> Any:
    """`main` with the constants of the calls to kernels in `packings` packed; equal constants packed alike are one."""
    call_tir = Op.get("relax.call_tir")
    cache: dict[tuple[bytes, str, tuple[int, ...], Packing], Any] = {}

    def packed(name: str, index: int, const: Any, packing: Packing) -> Any:
        assert isinstance(const, GenericConst), f"argument {index} of {name} is packed, but no constant: {const}"
        array = const.value.numpy()
        digest = hashlib.sha256(array.tobytes()).digest()
        key = (digest, str(const.ty.dtype), tuple(array.shape), packing)
        if key not in cache:
            cache[key] = relax.const(packing(array), str(const.ty.dtype))
        return cache[key]

    def rewrite(value: Any) -> Any:
        if not isinstance(value, Call) or value.op != call_tir or value.args[0].name_hint not in packings:
            return value
        name = str(value.args[0].name_hint)
        wanted = packings[name]
        args = [packed(name, i, arg, wanted[i]) if i in wanted else arg for i, arg in enumerate(value.args[1].fields)]
        return Call(value.op, [fresh[name], relax.Tuple(args)], value.attrs, value.ty_args, ret_ty=value.ty)

    blocks = [
        type(block)([_rebind(binding, rewrite(binding.value)) for binding in block.bindings])
        for block in main.body.blocks
    ]
    body = relax.SeqExpr(blocks, main.body.body)
    body = tvm.relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    return body


def _rebind(binding: Any, value: Any) -> Any:
    return binding if value is binding.value else relax.VarBinding(binding.var, value)

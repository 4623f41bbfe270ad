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

import numpy as np
from tvm import relax, te
from tvm.ir import Call, IRModule, Op

from subtune.core.dims import Dim
from subtune.core.workload import Workload
from subtune.dynamic.inputs import CallersMemory
from subtune.dynamic.varying import PREFIX as MADE
from subtune.dynamic.varying import Made
from subtune.dynamic.workload import DynamicWorkload, has_free_rows
from subtune.passes.exprs import array_of, make_const
from subtune.passes.extract import tir_calls

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


def constants_of(call: Any) -> list[tuple[int, np.ndarray]]:
    """The constants among the arguments of a kernel's call in `main`, each with its place; of other calls none."""
    if not isinstance(call, Call) or len(call.args) < 2 or not isinstance(call.args[1], relax.Tuple):
        return []
    arrays = [(i, array_of(arg)) for i, arg in enumerate(call.args[1].fields) if not isinstance(arg, relax.Var)]
    return [(i, array) for i, array in arrays if array is not None]


def with_corners(
    mod: IRModule,
    dims_of: Mapping[str, Sequence[Sequence[Dim]]],
    made: Mapping[int, Made],
    multiply_rows: Collection[str] = (),
) -> tuple[IRModule, dict[str, Corner], dict[str, DynamicWorkload]]:
    """An outlined module that copies the corners of its constants where they do not lie together, and some inputs.

    Args:
        dims_of: of the arguments of each PrimFunc, by its name.
        made: constants that are computed in each run, by their number among those of all calls (`constants_of`).
        multiply_rows: names of the PrimFuncs whose inputs are copied.

    Returns the module; what the new PrimFuncs copy, by their names; and what others of them compute.
    """
    main = mod["main"]
    writer = _Writer(main, dims_of, made, multiply_rows)
    blocks = [
        type(block)([new for binding in block.bindings for new in writer.rewritten(binding)])
        for block in main.body.blocks
    ]
    if not writer.corners and not writer.made:
        return mod, {}, {}
    body = relax.SeqExpr(blocks, main.body.body)
    function = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    functions = {**dict(mod.functions_items()), **writer.functions, mod.get_global_var("main"): function}
    return IRModule(functions, mod.attrs, mod.global_infos), writer.corners, writer.made


def read_as_variables(
    mod: IRModule, dims_of: Mapping[str, Sequence[Sequence[Dim]]], made: Mapping[int, Made]
) -> dict[str, set[int]]:
    """Which arguments of PrimFuncs, by their names, are variables of `main` when `with_corners` has changed it."""
    found: dict[str, set[int]] = {name: set() for name in dims_of}
    for call in tir_calls(with_corners(mod, dims_of, made)[0]):
        if call.args[0].name_hint in found:
            args = enumerate(call.args[1].fields)
            found[call.args[0].name_hint].update(i for i, arg in args if isinstance(arg, relax.Var))
    return found


class _Writer:
    """Bindings of `main`, with copies before those that need them."""

    def __init__(
        self,
        main: relax.Function,
        dims_of: Mapping[str, Sequence[Sequence[Dim]]],
        made: Mapping[int, Made],
        multiply_rows: Collection[str],
    ) -> None:
        self.functions: dict[Any, Any] = {}
        """New PrimFuncs, by their variables. Those that are equal at the greatest instance may differ at others."""
        self.corners: dict[str, Corner] = {}
        self.made: dict[str, DynamicWorkload] = {}
        self._callers, self._dims_of, self._multiply_rows = CallersMemory(main), dims_of, multiply_rows
        self._made_at = made
        self._seen = 0
        self._copies: dict[Any, Any] = {}

    def rewritten(self, binding: Any) -> list[Any]:
        value = binding.value
        self._callers.follow(binding)
        constants = [i for i, _ in constants_of(value)]
        made = {i: self._made_at.get(self._seen + n) for n, i in enumerate(constants)}
        self._seen += len(constants)
        is_call = isinstance(value, Call) and value.op == Op.get("relax.call_tir")
        dims_of_args = self._dims_of.get(value.args[0].name_hint) if is_call else None
        if dims_of_args is None:
            return [binding]
        before: list[Any] = []
        reads = self._input if value.args[0].name_hint in self._multiply_rows else self._constant
        args = [
            self._computed(arg, one, before) if (one := made.get(i)) else reads(arg, dims, before)
            for i, (arg, dims) in enumerate(zip(value.args[1].fields, dims_of_args, strict=False))
        ]
        call = Call(value.op, [value.args[0], relax.Tuple(args)], value.attrs, value.ty_args, ret_ty=value.ty)
        return [*before, relax.VarBinding(binding.var, call)]

    def _computed(self, arg: Any, made: Made, before: list[Any]) -> Any:
        """What a kernel computes in the place of a constant."""
        if made not in self._copies:
            name = f"{MADE}_{len(self.made)}"
            workload = self.made[name] = made.workload
            func = workload.at(workload.greatest).func.without_attr("global_symbol")
            table = [] if made.table is None else [make_const(made.table)]
            self._copies[made] = self._call(func, name, arg.ty, table, before)
        return self._copies[made]

    def _input(self, arg: Any, dims: Sequence[Dim], before: list[Any]) -> Any:
        """As `_constant`; of an input its copy."""
        if arg not in self._callers or all(dim.constant is not None for dim in dims):
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
            self._copies[key] = self._call(copy, name, relax.TensorType(shape, dtype), [arg], before)
        return self._copies[key]

    def _call(self, func: Any, name: str, ty: Any, args: Sequence[Any], before: list[Any]) -> Any:
        var = relax.DataflowVar(name, ty)
        gvar = relax.BlockBuilder().add_func(func, name)
        self.functions[gvar] = func
        call = relax.call_tir(gvar, relax.Tuple(list(args)), ty)
        before.append(relax.VarBinding(var, call))
        return var

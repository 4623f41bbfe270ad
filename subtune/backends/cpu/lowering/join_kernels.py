"""Short kernels that run one after the other become one function with one launch of the thread pool.

The PrimFuncs are lowered as they would be alone, and their loops put in a row: what was timed is what runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import ir, relax, tirx
from tvm.tirx import PrimFunc

from subtune.backends.cpu.lowering.denormals import ATTRIBUTE as FLUSHES
from subtune.backends.cpu.lowering.launches import Stage, Steps, one_launch, steps
from subtune.backends.cpu.lowering.pipeline import FLAT, bound, flat
from subtune.tir.substitute import substitute

_MOST = 16
"""Kernels of one function: more save little, and LLVM takes longer the longer a function is."""


JOINED = "subtune.joined"
"""Attribute of a joined function: its kernels' names, in order."""
_OF_ENTRIES = ("global_symbol", "tirx.is_entry_func")
"""Attributes of functions that are called from without."""


def join_kernels(mod: tvm.IRModule, target: tvm.target.Target, short: Collection[str]) -> tvm.IRModule:
    """Join what lies side by side in `main`.

    Args:
        mod: what is left to do is to build it: `main` calls PrimFuncs by name, in destination-passing style.
        short: names of PrimFuncs that may be joined.

    Runs of the same kernels on arguments that coincide in the same way, as in a network's equal layers, become one
    function. Kernels with memory of their own for all threads stay alone: together they would need the sum.
    """
    names = {gvar.name_hint for gvar, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)} & set(short)
    kernels = flattened({gvar: mod[gvar] for gvar in map(mod.get_global_var, sorted(names))}, target)
    found = {gvar.name_hint: _Kernel(func, parts) for gvar, func in kernels.items() if (parts := steps(func))}
    joiner = _Joiner(mod.clone(), {name: kernel for name, kernel in found.items() if not kernel.steps.has_memory})
    main = mod["main"]
    blocks = [relax.BindingBlock(list(joiner.bindings(block.bindings))) for block in main.body.blocks]
    body = relax.SeqExpr(blocks, main.body.body)
    joiner.mod.update_func(
        mod.get_global_var("main"), relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    )
    return joiner.without_unused(names)


def flattened(kernels: Mapping[Any, Any], target: tvm.target.Target) -> dict[Any, Any]:
    """Kernels by their GlobalVars, lowered by `flat`; those that have been stay as they are."""
    done = {gvar: func for gvar, func in kernels.items() if func.attrs and FLAT in func.attrs}
    rest = {gvar: func for gvar, func in kernels.items() if gvar not in done}
    return {**done, **dict(flat(bound(rest, target)).functions_items())} if rest else done


def by_address(kernel: Any, body: Any, leading: Sequence[Any] = ()) -> Any:
    """`(leading, address of every argument)`: `body`, a part of a flat kernel or all of it, as a function to be called
    from within the module."""
    buffers = [param for param in kernel.params if isinstance(param.ty, tirx.BufferType)]
    seen = [_like(buffer, buffer.name) for buffer in buffers]
    addresses = [tirx.Var(buffer.name, buffer.data.ty) for buffer in seen]
    declared = [tirx.DeclBuffer(buffer, data=address) for buffer, address in zip(seen, addresses, strict=True)]
    whole = tirx.SeqStmt([*declared, substitute(body, dict(zip(buffers, seen, strict=True)))])
    device = {"device_id": 0, "device_type": 1}  # where memory that it asks for comes from
    for key, value in device.items():
        whole = tirx.AttrStmt(ir.StringImm("default"), key, tirx.const(value, "int32"), whole)
    func = tirx.PrimFunc([*leading, *addresses], whole, ir.PrimType("int32"), kernel.attrs)
    for name in _OF_ENTRIES:
        func = func.without_attr(name)
    return func.with_attr(FLAT, True)


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A flat PrimFunc, and the loops it consists of."""

    func: PrimFunc
    steps: Steps


class _Joiner:
    """Joined functions made so far, by the kernels in them and by how their arguments coincide."""

    def __init__(self, mod: tvm.IRModule, kernels: dict[str, _Kernel]) -> None:
        self.mod = mod
        self._kernels = kernels
        self._made: dict[tuple[Any, ...], Any] = {}
        self._called: dict[str, list[tuple[Stage, Any]]] = {}

    def bindings(self, bindings: Sequence[Any]) -> Iterator[Any]:
        run: list[Any] = []
        for binding in bindings:
            call = binding.value
            fits = (
                isinstance(call, ir.Call) and isinstance(call.op, ir.GlobalVar) and call.op.name_hint in self._kernels
            )
            if run and (not fits or len(run) == _MOST):
                yield from self._joined(run)
                run = []
            if fits:
                run.append(binding)
            else:
                yield binding
        yield from self._joined(run)

    def _joined(self, run: list[Any]) -> list[Any]:
        if len(run) < 2:
            return run
        calls = [binding.value for binding in run]
        places: dict[Any, int] = {}
        pattern = tuple(tuple(places.setdefault(arg, len(places)) for arg in call.args) for call in calls)
        names = tuple(call.op.name_hint for call in calls)
        if (names, pattern) not in self._made:
            self._made[names, pattern] = self._function(names, pattern, [_label(arg) for arg in places])
        call = ir.Call(self._made[names, pattern], list(places), ret_ty=calls[0].ty)
        return [relax.VarBinding(run[-1].var, call)]

    def _function(self, names: Sequence[str], pattern: Sequence[Sequence[int]], labels: Sequence[str]) -> Any:
        params: dict[int, Any] = {}
        stages = []
        for name, places in zip(names, pattern, strict=True):
            for param, place in zip(self._kernels[name].func.params, places, strict=True):
                if place not in params:
                    params[place] = _like(param, labels[place])
            data = [params[place].data for place in places]
            stages += [_calling(stage, gvar, data) for stage, gvar in self._stages(name)]
        first = self._kernels[names[0]].func
        ordered = [params[i] for i in range(len(params))]
        func = tirx.PrimFunc(ordered, one_launch(stages), first.ret_type, first.attrs)
        name = f"launch_{len(self._made)}"
        func = func.with_attr("global_symbol", name).with_attr(FLAT, True)
        return self._add(name, func.with_attr(JOINED, list(names)))

    def _stages(self, name: str) -> list[tuple[Stage, Any]]:
        """Each stage of a kernel with a function for one iteration: called in many places, it is compiled once."""
        if name not in self._called:
            kernel = self._kernels[name]
            self._called[name] = [
                (stage, self._add(f"{name}_stage{i}", _iteration(kernel, stage)))
                for i, stage in enumerate(kernel.steps.stages)
            ]
        return self._called[name]

    def _add(self, name: str, func: PrimFunc) -> Any:
        gvar = ir.GlobalVar(name)
        assert all(other.name_hint != name for other in self.mod.get_global_vars()), name
        self.mod.update_func(gvar, func)
        return gvar

    def without_unused(self, names: Collection[str]) -> tvm.IRModule:
        used = {
            binding.value.op.name_hint
            for block in self.mod["main"].body.blocks
            for binding in block.bindings
            if isinstance(binding.value, ir.Call) and isinstance(binding.value.op, ir.GlobalVar)
        }
        for name in set(names) - used:
            del self.mod[self.mod.get_global_var(name)]
        return self.mod


def _label(arg: Any) -> str:
    """What an argument is called: a scalar, which stays a constant in the program, has no name."""
    return "scalar" if isinstance(arg, ir.GenericConst) else str(arg.name)


def _like(param: Any, name: str) -> Any:
    return tirx.decl_buffer(param.shape, param.dtype, name, data_alignment=param.data_alignment)


def _calling(stage: Stage, gvar: Any, data: Sequence[Any]) -> Stage:
    loop = stage.loop
    index = tirx.Var(loop.loop_var.name, loop.loop_var.ty)
    call = tirx.Evaluate(ir.Call(gvar, [index, *data], ret_ty=ir.PrimType("int32")))
    return Stage(tirx.For(index, loop.min, loop.extent, loop.kind, call), stage.is_serial)


def _iteration(kernel: _Kernel, stage: Stage) -> Any:
    """What a loop does in one iteration, which comes before the addresses."""
    index = tirx.Var(stage.loop.loop_var.name, stage.loop.loop_var.ty)
    body = substitute(stage.loop.body, {stage.loop.loop_var: index})
    whole = tirx.SeqStmt([*kernel.steps.buffers, body]) if kernel.steps.buffers else body
    func = by_address(kernel.func, whole, [index])
    return func.without_attr(FLUSHES)  # the launch does it

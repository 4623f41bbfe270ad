"""Static memory: every tensor of `main` gets its place before the model runs, and `main` becomes a list of calls.

Inputs, weights, outputs and the intermediate tensors all come in as arguments: running the module allocates nothing.
TVM's own planner leaves the allocations in the program, and its tensors at an offset in a shared storage have a
`byte_offset`, which its kernels refuse; arguments are views whose address has the offset in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, prod
from types import MappingProxyType
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call, Op

from subtune.core.account import Life, MemoryUse
from subtune.core.memory_plan import Base, MemoryPlan, View
from subtune.core.workload import dtype_bits
from subtune.passes.arena import Lifetime, place
from subtune.passes.exprs import type_shape

NOTHING: Mapping[str, Fraction] = MappingProxyType({})


@dataclass(slots=True)
class _Buffer:
    """Memory that is somebody's: `index` counts within `base`; in the arena it is alive from `first` to `last`.

    `own_nbytes` are those of its tensor; kernels may use more.
    """

    base: Base
    index: int
    nbytes: int
    own_nbytes: int
    first: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A buffer seen as a tensor."""

    buffer: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class _Step:
    """One binding of the new `main`: `args` are tensors, or expressions for what is not planned.

    A kernel's outputs are its last arguments; `var` is set where the value is not planned and keeps its variable.
    """

    op: Any
    args: tuple[Any, ...]
    var: Any = None
    original: Any = None


def plan_memory(
    mod: tvm.IRModule, inputs: int, past_end: Mapping[str, Fraction] = NOTHING
) -> tuple[tvm.IRModule, MemoryPlan]:
    """Give every tensor of `main` a place.

    Args:
        mod: `main` a straight line of `call_tir`s and reshapes outside any dataflow block, pure no more; what else is
            in it stays as it is, and what it makes and reads is left to TVM.
        inputs: how many of `main`'s parameters, the first ones, are the model's; the others are weights.
        past_end: of PrimFuncs that compute more rows than their tensors have, by name: so large a part more. The
            model's outputs that they make have `slack`.

    Returns:
        the module whose `main` takes the plan's `arguments`, and the plan.
    """
    return plan_with_lives(mod, inputs, past_end)[:2]


def plan_with_lives(
    mod: tvm.IRModule, inputs: int, past_end: Mapping[str, Fraction] = NOTHING
) -> tuple[tvm.IRModule, MemoryPlan, MemoryUse]:
    """As `plan_memory`, and who needs which part of the arena, and when."""
    planner = _Planner(mod["main"], inputs, past_end)
    main, plan = planner.result()
    out = mod.clone()
    out.update_func(mod.get_global_var("main"), main)
    return out, plan, planner.use()


class _Planner:
    """One walk over `main`: who writes which buffer, who reads it last, and what becomes of the results."""

    def __init__(self, main: Any, inputs: int, past_end: Mapping[str, Fraction]) -> None:
        self._main = main
        self._past_end = past_end
        self._buffers: list[_Buffer] = []
        self._known: dict[Any, Any] = {}
        self._steps: list[_Step] = []
        self._pinned: set[int] = set()
        for i, param in enumerate(main.params):
            base, index = (Base.INPUT, i) if i < inputs else (Base.WEIGHT, i - inputs)
            shape, dtype = _static(param.ty) or ((), "uint8")
            self._known[param] = self._new(base, index, shape, dtype)
        for block in main.body.blocks:
            for binding in block.bindings:
                self._bind(binding.var, binding.value)

    def result(self) -> tuple[Any, MemoryPlan]:
        copies, returned, foreign = self._settle_results()
        inner = [i for i, b in enumerate(self._buffers) if b.base is Base.ARENA]
        for i in self._pinned:
            self._buffers[i].last = len(self._steps)
        lifetimes = [Lifetime(b.nbytes, b.first, b.last) for b in (self._buffers[i] for i in inner)]
        arena = place(lifetimes)
        for i, offset in zip(inner, arena.offsets, strict=True):
            self._buffers[i].index = offset
        used = {arg: None for step in self._steps for arg in _flat(step.args) if isinstance(arg, _Tensor)}
        ordered = sorted(used, key=lambda t: self._buffers[t.buffer].base.is_fixed)
        params = {t: relax.Var(self._name(t), relax.TensorType(t.shape, t.dtype)) for t in ordered}
        plan = MemoryPlan(
            arena_nbytes=arena.nbytes,
            bound_nbytes=arena.bound,
            total_nbytes=sum(lifetime.nbytes for lifetime in lifetimes),
            arguments=tuple(map(self._view, ordered)),
            copies=tuple((output, self._view(tensor)) for output, tensor in copies),
            returned=tuple(returned),
            slack=self._slack(),
        )
        return self._rebuilt(params, foreign), plan

    def use(self) -> MemoryUse:
        """After `result`."""
        inner = [b for b in self._buffers if b.base is Base.ARENA]
        lives = tuple(Life(b.index, b.nbytes, b.first, min(b.last, len(self._steps) - 1)) for b in inner)
        return MemoryUse(tuple(_name_of(step.op) for step in self._steps), lives)

    def _new(self, base: Base, index: int, shape: tuple[int, ...], dtype: str) -> _Tensor:
        nbytes = -(-prod(shape) * dtype_bits(dtype) // 8)
        step = len(self._steps)
        self._buffers.append(_Buffer(base, index, nbytes, nbytes, step, step))
        return _Tensor(len(self._buffers) - 1, shape, dtype)

    def _bind(self, var: Any, value: Any) -> None:
        found = self._resolved(value)
        if found is not None:
            self._known[var] = found
            return
        assert isinstance(value, Call), f"main is not a straight line of calls: {var} = {value}"
        outputs = _outputs(value)
        if outputs is None:
            self._keep(var, value)
            return
        args = self._resolved(value.args[1])
        args = args if isinstance(args, list) else [args]
        if any(arg is None or isinstance(arg, list) for arg in args):
            self._keep(var, value)
            return
        for arg in args:
            self._use(arg)
        made = [self._new(Base.ARENA, 0, shape, dtype) for shape, dtype in outputs]
        if more := self._past_end.get(value.args[0].name_hint):
            for tensor in (*args, *made):
                self._extend(tensor, more)
        self._steps.append(_Step(value.args[0], (*args, *made)))
        self._known[var] = made if isinstance(value.ty, relax.TupleType) else made[0]

    def _extend(self, tensor: Any, part: Fraction) -> None:
        """Memory for some rows behind a tensor's last, which may be pixels of images: so large a part of it."""
        buffer = self._buffers[tensor.buffer]
        nbytes = -(-prod(tensor.shape) * dtype_bits(tensor.dtype) // 8)
        buffer.nbytes = max(buffer.nbytes, nbytes + ceil(nbytes * part))

    def _keep(self, var: Any, value: Any) -> None:
        """A call that is not planned. Its result may share memory with what it reads, which stays for good."""
        args = tuple(self._kept(arg) for arg in value.args)
        self._steps.append(_Step(value.op, args, var, value))
        self._known[var] = var

    def _kept(self, arg: Any) -> Any:
        found = self._resolved(arg)
        assert found is not None, f"main is not in normal form: {arg}"
        self._pinned.update(leaf.buffer for leaf in _flat([found]) if isinstance(leaf, _Tensor))
        return found

    def _resolved(self, value: Any) -> Any:
        """The tensor, list of values or expression that `value` stands for; None if it has to be computed."""
        if isinstance(value, relax.Var):
            return self._known[value]
        if isinstance(value, relax.Tuple):
            fields = [self._resolved(field) for field in value.fields]
            return None if any(field is None for field in fields) else fields
        if isinstance(value, relax.TupleGetItem):
            whole = self._resolved(value.tuple_value)
            return whole[value.index] if isinstance(whole, list) else None
        if isinstance(value, Call):
            return self._reshaped(value)
        return None if isinstance(value, relax.If | relax.SeqExpr | relax.Function) else value

    def _reshaped(self, value: Call) -> Any:
        if value.op != Op.get("relax.reshape"):
            return None
        source, target = self._resolved(value.args[0]), _static(value.ty)
        if not isinstance(source, _Tensor) or target is None:
            return None
        return _Tensor(source.buffer, *target)

    def _use(self, arg: Any) -> None:
        if isinstance(arg, _Tensor):
            self._buffers[arg.buffer].last = max(self._buffers[arg.buffer].last, len(self._steps))

    def _settle_results(self) -> tuple[list[tuple[int, _Tensor]], list[int], list[Any]]:
        """Kernels write the outputs themselves where they can; the rest is copied, or returned by TVM."""
        body = self._main.body.body
        results = self._resolved(body)
        if not isinstance(body.ty, relax.TupleType):
            results = [results]
        copies: list[tuple[int, _Tensor]] = []
        returned: list[int] = []
        foreign: list[Any] = []
        assert isinstance(results, list), f"main's result is not planned: {body}"
        for i, result in enumerate(results):
            if not isinstance(result, _Tensor):
                returned.append(i)
                foreign.append(result)
                continue
            buffer = self._buffers[result.buffer]
            if buffer.base is Base.ARENA:
                buffer.base, buffer.index = Base.OUTPUT, i
            else:
                self._pinned.add(result.buffer)
                copies.append((i, result))
        return copies, returned, foreign

    def _slack(self) -> tuple[tuple[int, int], ...]:
        """Of outputs that are larger than they were made."""
        outputs = [(b.index, b.nbytes - b.own_nbytes) for b in self._buffers if b.base is Base.OUTPUT]
        return tuple((output, more) for output, more in outputs if more)

    def _view(self, tensor: _Tensor) -> View:
        buffer = self._buffers[tensor.buffer]
        return View(buffer.base, buffer.index, tensor.shape, tensor.dtype)

    def _name(self, tensor: _Tensor) -> str:
        buffer = self._buffers[tensor.buffer]
        return f"{buffer.base.value}_{buffer.index}"

    def _rebuilt(self, params: dict[_Tensor, Any], foreign: Sequence[Any]) -> Any:
        nothing = relax.TupleType([])

        def expression(arg: Any) -> Any:
            if isinstance(arg, list):
                return relax.Tuple([expression(field) for field in arg])
            return params[arg] if isinstance(arg, _Tensor) else arg

        bindings = []
        for step in self._steps:
            args = [expression(arg) for arg in step.args]
            if step.var is None:
                call = Call(step.op, args, ret_ty=nothing)
                bindings.append(relax.VarBinding(relax.Var("_", nothing), call))
            else:
                call = Call(step.op, args, step.original.attrs, step.original.ty_args, ret_ty=step.original.ty)
                bindings.append(relax.VarBinding(step.var, call))
        last = relax.Tuple(list(foreign))
        done = relax.Var("done", relax.TupleType([value.ty for value in foreign]))
        bindings.append(relax.VarBinding(done, last))
        body = relax.SeqExpr([relax.BindingBlock(bindings)], done)
        func = relax.Function(list(params.values()), body, done.ty, False, self._main.attrs)
        return func.with_attr("num_input", 0)  # nothing is checked again that the artifact has checked


def _name_of(op: Any) -> str:
    return str(getattr(op, "name_hint", None) or getattr(op, "name", None) or "call")


def _flat(values: Sequence[Any]) -> list[Any]:
    return [leaf for value in values for leaf in (_flat(value) if isinstance(value, list) else [value])]


def _outputs(call: Call) -> list[tuple[tuple[int, ...], str]] | None:
    """Shapes and dtypes of what a call in destination-passing style writes; None for any other call."""
    if call.op not in (Op.get("relax.call_tir"), Op.get("relax.call_dps_packed")) or len(call.args) != 2:
        return None
    types = list(call.ty.fields) if isinstance(call.ty, relax.TupleType) else [call.ty]
    found = [_static(ty) for ty in types]
    return None if any(output is None for output in found) else [output for output in found if output is not None]


def _static(ty: Any) -> tuple[tuple[int, ...], str] | None:
    """Shape and dtype of a tensor type whose dims are all numbers."""
    shape = type_shape(ty)
    return None if shape is None or ty.dtype is None else (shape, str(ty.dtype))

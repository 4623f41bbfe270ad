"""Caches of a decoder kept in place: no row of what was there before is copied.

    C = append(P, new);  D = pad(C);  y = f(q, D);  give back C
        ->  C' = write(new);  y = f(q, C');  give back C'

P is an input that nothing else reads. C' is the memory that holds P's rows already, with room for more: `write` puts
the new rows behind them, and zeros in the place of the padding. Who reads C reads the rows of C' through its strides.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import Call, IRModule, Op

from subtune.core.cache import Cache
from subtune.passes.cache_kernels import append_of, appending, padded_rows, reading
from subtune.passes.extract import num_outputs
from subtune.passes.outline import SUBGRAPHS_ATTR
from subtune.passes.uses import count_uses

_CALL, _VIEW = Op.get("relax.call_tir"), Op.get("relax.reshape")


def caches_of(mod: IRModule) -> tuple[Cache, ...]:
    """The inputs of an outlined module that outputs are with rows behind them. `capacity`: what this instance needs."""
    main = _Main(mod)
    found = (main.cache(place, result) for place, result in enumerate(main.results))
    return tuple(cache for cache in found if cache is not None)


def keep_caches(mod: IRModule, caches: Sequence[Cache]) -> IRModule:
    """An outlined module that keeps `caches`, of those that `caches_of` finds in it, in place."""
    return _Writer(_Main(mod), caches).module()


class _Main:
    """What `main` of an outlined module binds, and who reads it."""

    def __init__(self, mod: IRModule) -> None:
        self.mod, self.func = mod, mod["main"]
        self.params = list(self.func.params)
        self.bindings = _bindings(self.func)
        self.values = {binding.var: binding.value for binding in self.bindings}
        self.uses = count_uses(self.func)
        given = self.values.get(self.func.body.body, self.func.body.body)
        self.results: list[Any] = list(given.fields) if isinstance(given, tvm.ir.Tuple) else [given]

    def primfunc(self, call: Any) -> Any:
        return self.mod[call.args[0]]

    def cache(self, place: int, result: Any) -> Cache | None:
        """What the output `result` of number `place` is of an input, where it can be kept in place."""
        call: Any = self.values.get(result)
        if not _is_kernel(call) or num_outputs(call) != 1 or sum(result.same_as(one) for one in self.results) != 1:
            return None
        for source, arg in enumerate(call.args[1].fields):
            number = next((i for i, param in enumerate(self.params) if param.same_as(arg)), None)
            if number is None or self.uses[arg] != 1:
                continue
            append = append_of(self.primfunc(call), source)
            rows = None if append is None else self._rows(result, append.axis)
            if append is not None and rows is not None:
                return Cache(number, place, append.axis, rows)
        return None

    def rows_of(self, cache: Cache) -> int:
        """As `_rows`, of a cache that can be kept in place."""
        rows = self._rows(self.results[cache.output], cache.axis)
        assert rows is not None, f"output {cache.output} is no cache"
        return rows

    def _rows(self, var: Any, axis: int) -> int | None:
        """As many rows of `var` as its readers want, of zeros behind it, too; None where one cannot read them through
        strides."""
        rows = int(var.ty.shape[axis])
        for binding in self.bindings:
            if isinstance(binding.value, tvm.ir.Tuple) or not _mentions(binding.value, var):
                continue  # the results are a tuple
            if isinstance(binding.value, Call) and binding.value.op == _VIEW:
                view = binding.var
                axis_of_view = _same_axis(var.ty.shape, axis, view.ty.shape)
                is_given = any(view.same_as(result) for result in self.results)
                more = None if axis_of_view is None or is_given else self._rows(view, axis_of_view)
            elif _is_kernel(binding.value):
                more = self.padded(binding.value, axis) or 0
            else:
                more = None
            if more is None:
                return None
            rows = max(rows, more)
        return rows

    def padded(self, call: Any, axis: int) -> int | None:
        """Rows of what a kernel makes of its only argument with zeros behind it; None of any other kernel."""
        return padded_rows(self.primfunc(call), axis) if num_outputs(call) == 1 else None


class _Writer:
    """The new module: bindings one by one, and the PrimFuncs that they call."""

    def __init__(self, main: _Main, caches: Sequence[Cache]) -> None:
        self._main = main
        self._by_result = {main.results[cache.output]: cache for cache in caches}
        self._vars: dict[Any, Any] = {}
        """Of what has another shape, or is another variable."""
        self._whole: dict[Any, tuple[int, int]] = {}
        """Of caches in place, by their new variables: axis and capacity."""
        self._made: dict[tuple[Any, ...], Any] = {}
        """New GlobalVars, by the old one's name and what was changed."""
        self._functions: dict[Any, Any] = {}

    def module(self) -> IRModule:
        mod, func = self._main.mod, self._main.func
        blocks = [
            type(block)([new for binding in block.bindings for new in self._rewritten(binding)])
            for block in func.body.blocks
        ]
        result = self._vars.get(func.body.body, func.body.body)
        body = relax.BlockBuilder().normalize(relax.SeqExpr(blocks, result))
        main = relax.Function(func.params, body, result.ty, func.is_pure, func.attrs)
        called = {binding.value.args[0] for binding in _bindings(main) if _is_kernel(binding.value)}
        kept = {gvar: one for gvar, one in mod.functions_items() if gvar in called or not _is_primfunc(one)}
        attrs = {key: mod.attrs[key] for key in mod.attrs.keys()} if mod.attrs else {}  # noqa: SIM118
        groups = json.loads(attrs.get(SUBGRAPHS_ATTR, "{}"))
        names = {gvar.name_hint: old for (old, *_), gvar in self._made.items()}
        groups = {name: groups[names.get(name, name)] for name in _names(called) if names.get(name, name) in groups}
        kept[mod.get_global_var("main")] = main
        return IRModule({**kept, **self._functions}, {**attrs, SUBGRAPHS_ATTR: json.dumps(groups)}, mod.global_infos)

    def _rewritten(self, binding: Any) -> list[Any]:
        value, cache = binding.value, self._by_result.get(binding.var)
        if cache is not None:
            made = self._appended(value, cache)
            self._bind(binding, made, (cache.axis, cache.capacity))
        elif _is_kernel(value) and any(arg in self._vars for arg in value.args[1].fields):
            made = self._reader(value)
            if made is None:  # the padding of a cache is in its place
                self._vars[binding.var] = self._vars[value.args[1].fields[0]]
                return []
            return [relax.VarBinding(binding.var, made)]
        elif isinstance(value, Call) and value.op == _VIEW and value.args[0] in self._vars:
            made, whole = self._view(value, binding.var)
            self._bind(binding, made, whole)
        elif isinstance(value, tvm.ir.Tuple) and any(field in self._vars for field in value.fields):
            made = relax.Tuple([self._vars.get(field, field) for field in value.fields])
            self._bind(binding, relax.BlockBuilder().normalize(made), None)
        else:
            return [binding]
        return [relax.VarBinding(self._vars[binding.var], made)]

    def _bind(self, binding: Any, value: Any, whole: tuple[int, int] | None) -> None:
        var = type(binding.var)(binding.var.name, value.ty)
        self._vars[binding.var] = var
        if whole is not None:
            self._whole[var] = whole

    def _appended(self, call: Any, cache: Cache) -> Any:
        """The call that writes new rows, of arguments without the source."""
        args, func = list(call.args[1].fields), self._main.primfunc(call)
        source = next(i for i, arg in enumerate(args) if arg.same_as(self._main.params[cache.input]))
        found, rows = append_of(func, source), self._main.rows_of(cache)
        assert found is not None, f"output {cache.output} appends nothing"
        made = self._function(call, "appended", (source, rows, cache.capacity), lambda: appending(
            func, found, rows - found.past, cache.capacity
        ))  # fmt: skip
        shape = [int(dim) for dim in call.ty.shape]
        shape[cache.axis] = cache.capacity
        given = [self._vars.get(arg, arg) for place, arg in enumerate(args) if place != source]
        written = relax.call_tir(made, relax.Tuple(given), relax.TensorType(shape, str(call.ty.dtype)))
        return relax.BlockBuilder().normalize(written)

    def _reader(self, call: Any) -> Any:
        """The call on caches in place; None where it does no more than to pad one."""
        args = [self._vars.get(arg, arg) for arg in call.args[1].fields]
        places = tuple((place, *self._whole[arg]) for place, arg in enumerate(args) if arg in self._whole)
        if len(args) == 1 and places and self._main.padded(call, places[0][1]):
            return None
        gvar = self._function(call, "in_place", places, lambda: reading(self._main.primfunc(call), places))
        return Call(call.op, [gvar, relax.Tuple(args), *call.args[2:]], call.attrs, call.ty_args, ret_ty=call.ty)

    def _view(self, call: Any, var: Any) -> tuple[Any, tuple[int, int]]:
        source = self._vars[call.args[0]]
        axis, capacity = self._whole[source]
        axis_of_view = _same_axis(call.args[0].ty.shape, axis, var.ty.shape)
        assert axis_of_view is not None, "who reads a cache was looked at before"
        shape = [int(dim) for dim in var.ty.shape]
        shape[axis_of_view] = capacity
        made = relax.BlockBuilder().normalize(relax.op.reshape(source, relax.ShapeExpr(shape)))
        return made, (axis_of_view, capacity)

    def _function(self, call: Any, what: str, change: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """The GlobalVar of a changed PrimFunc: the same for the same change."""
        old = str(call.args[0].name_hint)
        key = (old, what, change)
        if key not in self._made:
            taken = {*_names(self._functions), *_names(self._main.mod.get_global_vars())}
            names = (f"{old}_{what}{'_' * (n > 0)}{n or ''}" for n in itertools.count())
            func = make()
            gvar = relax.BlockBuilder().add_func(func, next(name for name in names if name not in taken))
            self._made[key], self._functions[gvar] = gvar, func
        return self._made[key]


def _bindings(func: Any) -> list[Any]:
    return [binding for block in func.body.blocks for binding in block.bindings]


def _names(gvars: Iterable[Any]) -> set[str]:
    return {str(gvar.name_hint) for gvar in gvars}


def _is_primfunc(func: Any) -> bool:
    return isinstance(func, tirx.PrimFunc)


def _is_kernel(value: Any) -> bool:
    return isinstance(value, Call) and value.op == _CALL and isinstance(value.args[1], relax.Tuple)


def _mentions(value: Any, var: Any) -> bool:
    """Whether an expression mentions a variable."""
    return any(one.same_as(var) for one in relax.analysis.free_vars(value))


def _same_axis(shape: Sequence[Any], axis: int, view: Sequence[Any]) -> int | None:
    """The axis of `view`, a reshape, that is axis `axis` of `shape`; None where it is one with others."""
    own, others = [int(dim) for dim in shape], [int(dim) for dim in view]
    for place, size in enumerate(others):
        if size == own[axis] and prod(others[:place]) == prod(own[:axis]):
            return place
    return None

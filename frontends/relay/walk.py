"""Walks a Relay module once, for whoever wants to know what its operators do: functions inlined, scopes resolved.

Expressions nest as deeply as models are long, so the walk is a stack of generators, each of which yields the one whose
result it waits for.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from subtune.core.errors import ModelError
from subtune.frontends.relay.nodes import (
    Call,
    Constant,
    Expr,
    Function,
    Global,
    If,
    Let,
    Missing,
    Module,
    Op,
    Project,
    TupleExpr,
    Type,
    Unknown,
    Var,
)

_MAX_CALLS = 200_000
"""Functions that call one another twice each grow exponentially when they are inlined."""

Value: TypeAlias = Any
_Walk: TypeAlias = Generator[Any, Any, Value]


class Meaning(Protocol):
    """What values are to one user of the walk. Python tuples are tuples to all of them."""

    def constant(self, node: Constant | Missing) -> Value: ...

    def call(self, op: str, args: tuple[Value, ...], attrs: Mapping[str, Any], at: str) -> Value: ...

    def typed(self, value: Value, kind: Type) -> Value:
        """An argument, whose parameter has a type."""

    def compare(self, value: Value, kind: Type, op: str, at: str) -> None:
        """Hears of the type that TVM had inferred for the result of a call."""

    def project(self, value: Value, index: int, at: str) -> Value:
        """A field of something that is no tuple: of what stands for many values, or of what could not be imported."""

    def called(self, value: Value, at: str) -> Value:
        """The call of something that is no function."""

    def decide(self, condition: Value) -> bool | None:
        """Which branch is taken, if that is known."""

    def join(self, condition: Value, then: Value, other: Value, at: str) -> Value: ...

    def refuse(self, what: str, at: str, reason: str) -> Value:
        """Notes what cannot be imported; the value stands for it from there on."""


@dataclass(slots=True, eq=False)
class _Scope:
    parent: _Scope | None = None
    values: dict[Any, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class _Closure:
    function: Function
    scope: _Scope
    name: str = "a function"


@dataclass(frozen=True, slots=True)
class _Operator:
    name: str
    at: str


_ABSENT = object()


def walk(module: Module, main: Function, arguments: Sequence[Value], meaning: Meaning) -> Value:
    """The value of `main` called with `arguments`.

    Raises ModelError: functions that grow beyond all measure.
    """
    walker = _Walker(module, meaning)
    return walker.plain(walker.run(walker.invoke(_Closure(main, _Scope(), "@main"), tuple(arguments), main.at)))


class _Walker:
    def __init__(self, module: Module, meaning: Meaning) -> None:
        self._module = module
        self._meaning = meaning
        self._active: set[Function] = set()
        self._calls = 0

    def run(self, walk: _Walk) -> Value:
        stack, value = [walk], None
        while stack:
            try:
                stack.append(stack[-1].send(value))
                value = None
            except StopIteration as done:
                stack.pop()
                value = done.value
        return value

    def eval(self, node: Expr, scope: _Scope) -> _Walk:
        frame: _Scope | None = scope
        while frame is not None:
            found = frame.values.get(node, _ABSENT)
            if found is not _ABSENT:
                return found
            frame = frame.parent
        value = yield self._evaluated(node, scope)
        scope.values[node] = value
        return value

    def _evaluated(self, node: Expr, scope: _Scope) -> _Walk:
        match node:
            case Call():
                return (yield self._call(node, scope))
            case TupleExpr():
                return (yield self._fields(node.fields, scope))
            case Project():
                return self._project(node, (yield self.eval(node.tuple, scope)))
            case Constant() | Missing():
                return self._meaning.constant(node)
            case Let():
                return (yield self._let(node, scope))
            case If():
                return (yield self._if(node, scope))
            case Function():
                return _Closure(node, scope)
            case Op():
                return self._operator(node)
            case Global():
                return self._global(node)
            case Var():
                return self._meaning.refuse(f"%{node.name}", node.at, "is used outside of where it is bound")
            case Unknown():
                return self._meaning.refuse(node.what, node.at, "is not supported")

    def _fields(self, nodes: Sequence[Expr], scope: _Scope) -> _Walk:
        values = []
        for node in nodes:
            values.append((yield self.eval(node, scope)))
        return tuple(values)

    def _project(self, node: Project, value: Value) -> Value:
        if not isinstance(value, tuple):
            return self._meaning.project(self.plain(value), node.index, node.at)
        if not 0 <= node.index < len(value):
            return self._meaning.refuse(f"field {node.index}", node.at, f"is not in a tuple of {len(value)}")
        return value[node.index]

    def _let(self, node: Expr, scope: _Scope) -> _Walk:
        while isinstance(node, Let):
            if isinstance(node.value, Function):  # which may call itself by this name
                scope.values[node.var] = _Closure(node.value, scope, f"%{node.var.name}")
            else:
                scope.values[node.var] = yield self.eval(node.value, scope)
            node = node.body
        return (yield self.eval(node, scope))

    def _if(self, node: If, scope: _Scope) -> _Walk:
        condition = self.plain((yield self.eval(node.cond, scope)))
        decided = self._meaning.decide(condition)
        if decided is not None:
            return (yield self.eval(node.then if decided else node.other, _Scope(scope)))
        then = yield self.eval(node.then, _Scope(scope))
        other = yield self.eval(node.other, _Scope(scope))
        return self._meaning.join(condition, self.plain(then), self.plain(other), node.at)

    def _operator(self, node: Op) -> Value:
        if node.name in self._module.constructors:
            kind = self._module.constructors[node.name]
            return self._meaning.refuse(
                node.name, node.at, f"is a constructor of {kind}, and data types are not supported"
            )
        return _Operator(node.name, node.at)

    def _global(self, node: Global) -> Value:
        if node.name in self._module.functions:
            return _Closure(self._module.functions[node.name], _Scope(), f"@{node.name}")
        what = self._module.others.get(node.name)
        reason = f"is {what}, which is not supported" if what else "is not defined"
        return self._meaning.refuse(f"@{node.name}", node.at, reason)

    def _call(self, node: Call, scope: _Scope) -> _Walk:
        self._calls += 1
        if self._calls > _MAX_CALLS:
            raise ModelError(f"The model has more than {_MAX_CALLS} calls once its functions are inlined.")
        callee = yield self.eval(node.callee, scope)
        args = yield self._fields(node.args, scope)
        if isinstance(callee, _Operator):
            plain = tuple(map(self.plain, args))
            value = self._meaning.call(callee.name, plain, node.attrs, node.at or callee.at)
            if node.type is not None:
                self._meaning.compare(value, node.type, callee.name, node.at)
            return value
        if isinstance(callee, _Closure):
            return (yield self.invoke(callee, args, node.at))
        return self._meaning.called(callee, node.at)

    def invoke(self, closure: _Closure, args: tuple[Value, ...], at: str) -> _Walk:
        """The value of a call."""
        function = closure.function
        if len(args) != len(function.params):
            counts = f"takes {len(function.params)} arguments and is given {len(args)}"
            return self._meaning.refuse(closure.name, at, counts)
        if function in self._active:
            return self._meaning.refuse(closure.name, at, "calls itself (a loop), which is not supported")
        self._active.add(function)
        typed = (self._meaning.typed(arg, var.type) for var, arg in zip(function.params, args, strict=True))
        scope = _Scope(closure.scope, dict(zip(function.params, typed, strict=True)))
        value = yield self.eval(function.body, scope)
        self._active.discard(function)
        return value

    def plain(self, value: Value) -> Value:
        """A value that is no function, neither as a whole nor in its fields."""
        if isinstance(value, _Closure):
            return self._meaning.refuse("a function", value.function.at, "is used as a value, which is not supported")
        if isinstance(value, _Operator):
            return self._meaning.refuse(value.name, value.at, "is used as a value, which is not supported")
        return tuple(map(self.plain, value)) if isinstance(value, tuple) else value

"""Relay's text -> `nodes`: the grammar is `relay.lark`; names are resolved on the way from its leaves up."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import lark
import numpy as np

from subtune.core.errors import ModelError
from subtune.frontends.relay.json_form import read_metadata
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
from subtune.frontends.relay.values import Values, place_of

_METADATA = re.compile(r"^[ \t]*(?:#\[metadata\]|(?:#|//)?[ \t]*METADATA:)", re.MULTILINE)
_TYPE_COMMENT = re.compile(r"\s*/\*\s*ty=(.*?)(?:\s+span=[^*]*)?\s*\*/", re.DOTALL)
_GRAMMAR = Path(__file__).with_name("relay.lark")

_OPERATORS = {
    "+": "add", "-": "subtract", "*": "multiply", "/": "divide", "<": "less", "<=": "less_equal", ">": "greater",
    ">=": "greater_equal", "==": "equal", "!=": "not_equal",
}  # fmt: skip

# Printed without their metadata, attributes of these types are known all the same: such printers had but one use.
_KNOWN_ATTRS: Mapping[str, Mapping[str, Any]] = {"relay.attrs.BatchMatmulAttrs": {"transpose_b": True}}


def read_text(text: str) -> Module:
    """The module that a text describes; a bare function or expression is its `main`.

    Raises ModelError: it is no Relay text, or names something that it does not define; with line and column.
    """
    found = _METADATA.search(text)
    body = text[: found.start()] if found else text
    metadata = read_metadata(text[found.end() :]) if found else {}
    if not body.strip():
        raise ModelError("The Relay text is empty.")
    try:
        tree = _parser().parse(body, start="start")
        module: Module = _Builder(body, metadata).transform(tree)
    except lark.exceptions.UnexpectedToken as error:
        raise ModelError(_unexpected(error)) from error
    except lark.exceptions.UnexpectedCharacters as error:
        position = error.pos_in_stream or 0
        found_char = body[position : position + 1]
        raise ModelError(f"Relay text, {error.line}:{error.column}: {found_char!r} does not belong here.") from error
    except lark.exceptions.VisitError as error:
        raise error.orig_exc from error
    return module


@cache
def _parser() -> lark.Lark:
    grammar = _GRAMMAR.read_text(encoding="utf-8")
    return lark.Lark(grammar, parser="lalr", start=["start", "type"], maybe_placeholders=True)


def _unexpected(error: lark.exceptions.UnexpectedToken) -> str:
    token = error.token
    if token.type == "$END":
        return "The Relay text ends in the middle of a definition: the file is truncated."
    return f"Relay text, {token.line}:{token.column}: {str(token)[:40]!r} does not belong here."


class _Scope:
    """What one pair of braces, or one function's parameters, binds."""

    def __init__(self) -> None:
        self.graph: dict[str, Expr] = {}
        self.local: dict[str, Expr] = {}


@lark.v_args(inline=True)
class _Builder(Values):
    """One method per rule of the grammar; `_scopes` is the way from the outermost to the present one."""

    def __init__(self, text: str, metadata: Mapping[str, Sequence[Any]]) -> None:
        super().__init__(metadata)
        self._text = text
        self._scopes = [_Scope()]
        self._everywhere: dict[str, Expr] = {}
        self._free: list[Var] = []
        self._functions: dict[str, Function] = {}
        self._constructors: dict[str, str] = {}
        self._others: dict[str, str] = {}
        self._missing: dict[str, Missing] = {}
        self._comment_types: dict[str, Type] = {}

    # Definitions

    def module(self, *_: Any) -> Module:
        return Module(self._functions, self._constructors, self._others)

    def program(self, *children: Any) -> Module:
        body = children[-1]
        if isinstance(body, Function) and not self._free:
            return Module({"main": body})
        return Module({"main": Function(tuple(self._free), body, "1:1")})

    def global_function(self, name: lark.Token, function: Function) -> None:
        if name[1:] in self._functions:
            raise ModelError(f"Relay text, {place_of(name)}: the function {name} is defined twice.")
        self._functions[name[1:]] = function

    def external_function(self, name: lark.Token, _: Any) -> None:
        self._others[name[1:]] = "an external function"

    def data_type(self, name: lark.Token, *constructors: Any) -> None:
        self._constructors.update((str(c), str(name)) for c in constructors if c is not None)

    def constructor(self, name: lark.Token, *_: Any) -> lark.Token:
        return name

    def extern_type(self, *_: Any) -> None:
        return None

    def function(self, head: tuple[lark.Token | None, tuple[Var, ...]], body: Expr) -> Function:
        self._scopes.pop()
        params = head[1]
        return Function(params, body, params[0].at if params else getattr(body, "at", ""))

    def closure(self, function: Function) -> Function:
        return function

    def fn_head(self, *items: Any) -> tuple[None, tuple[Var, ...]]:
        params = tuple(item for item in items[:-1] if isinstance(item, Var))
        scope = _Scope()
        self._scopes.append(scope)
        for var in params:
            if var.name in scope.local:
                raise ModelError(f"Relay text, {var.at}: two parameters are named %{var.name}.")
            scope.local[var.name] = var
        return None, params

    def param(self, name: lark.Token, *rest: Any) -> Var:
        return Var(name[1:], rest[-1] or self._commented(name), place_of(name))

    def type_params(self, *_: Any) -> None:
        return None

    # Scopes and bindings

    def open(self) -> None:
        self._scopes.append(_Scope())

    def block(self, _: None, body: Expr) -> Expr:
        self._scopes.pop()
        return body

    def seq(self, *children: Any) -> Expr:
        body = children[-1]
        for let in reversed(children[:-1]):
            if let is not None:
                var, value = let
                body = Let(var, value, body, var.at)
        return body  # type: ignore[no-any-return]

    def bind_graph(self, name: lark.Token, value: Expr) -> None:
        scope = self._scopes[-1]
        if name in scope.graph:
            raise ModelError(f"Relay text, {place_of(name)}: {name} is bound twice.")
        scope.graph[name] = self._everywhere[name] = value

    def let_head(self, name: lark.Token, annotation: Type) -> Var:
        """A new name is known in its own value, where a loop calls itself; an old one still means what it meant."""
        var = Var(name[1:], annotation, place_of(name))
        if not any(var.name in scope.local for scope in self._scopes):
            self._scopes[-1].local[var.name] = var
        return var

    def bind_local(self, var: Var, value: Expr) -> tuple[Var, Expr]:
        self._scopes[-1].local[var.name] = var
        return var, value

    def bind_free(self, name: lark.Token, annotation: Type) -> None:
        var = Var(name[1:], annotation or self._commented(name), place_of(name))
        if var.name in self._scopes[0].local:
            raise ModelError(f"Relay text, {var.at}: {name} is declared twice.")
        self._scopes[0].local[var.name] = var
        self._free.append(var)

    def drop(self, _: Expr) -> None:
        return None

    # Expressions

    def binary(self, *children: Any) -> Expr:
        value = children[0]
        for sign, right in zip(children[1::2], children[2::2], strict=True):
            value = Call(Op(_OPERATORS[sign], place_of(sign)), (value, right), {}, place_of(sign))
        return value  # type: ignore[no-any-return]

    def project(self, value: Expr, index: lark.Token) -> Expr:
        return Project(value, self._index(index[1:], index), place_of(index))

    def call(self, callee: Expr, paren: lark.Token, *items: Any) -> Expr:
        args = []
        attrs: dict[str, Any] = {}
        *given, end = items
        for item in given:
            if isinstance(item, tuple):
                attrs[item[0]] = item[1]
            elif isinstance(item, dict):
                attrs.update(item)
            elif item is not None:
                args.append(item)
        attrs.pop("attrs_type_key", None)
        at = callee.at if isinstance(callee, Op) else place_of(paren)
        return Call(callee, tuple(args), attrs, at, self._commented(end))

    def attr(self, name: lark.Token, value: Any) -> tuple[str, Any]:
        return str(name), value

    def graph(self, name: lark.Token) -> Expr:
        for scope in reversed(self._scopes):
            if name in scope.graph:
                return scope.graph[name]
        # The printer names a shared expression where it meets it first, which may be inside braces closed by now.
        if name not in self._everywhere:
            raise ModelError(f"Relay text, {place_of(name)}: {name} is used before it is bound.")
        return self._everywhere[name]

    def local(self, token: lark.Token) -> Expr:
        """A variable; `%x.0` is a field of `%x`, unless `x.0` is itself a name, as PyTorch's are."""
        name, indices = token[1:], list[int]()
        while True:
            for scope in reversed(self._scopes):
                if name in scope.local:
                    value = scope.local[name]
                    for index in reversed(indices):
                        value = Project(value, index, place_of(token))
                    return value
            shorter, dot, last = name.rpartition(".")
            if not dot or not last.isdecimal():
                raise ModelError(f"Relay text, {place_of(token)}: the variable {token} is not defined.")
            name = shorter
            indices.append(self._index(last, token))

    def global_name(self, name: lark.Token) -> Expr:
        return Global(name[1:], place_of(name))

    def operator(self, name: lark.Token) -> Expr:
        return Op(str(name), place_of(name))

    def number(self, token: lark.Token) -> Expr:
        value, dtype = self._number(token)
        return Constant(np.asarray(value, dtype), place_of(token))

    def true(self, token: lark.Token) -> Expr:
        return Constant(np.asarray(True), place_of(token))

    def false(self, token: lark.Token) -> Expr:
        return Constant(np.asarray(False), place_of(token))

    def meta(self, token: lark.Token) -> Any:
        """A constant, or the attributes of the call that it stands in."""
        key, value = self._meta(token)
        if key.endswith("Constant"):
            if isinstance(value, np.ndarray):
                return Constant(value, place_of(token))
            if token not in self._missing:
                index = self._index(token[token.rindex("[") + 1 : -1], token)
                self._missing[str(token)] = Missing(index, self._commented(token), place_of(token))
            return self._missing[str(token)]
        if isinstance(value, dict):
            return value
        if key.startswith("relay.attrs."):
            return dict(_KNOWN_ATTRS.get(key, {}))
        return Unknown(key, place_of(token))

    def branch(self, token: lark.Token, cond: Expr, then: Expr, other: Expr) -> Expr:
        return If(cond, then, other, place_of(token))

    def match(self, token: lark.Token, *_: Any) -> Expr:
        return Unknown("match", place_of(token))

    def reference(self, token: lark.Token, *_: Any) -> Expr:
        return Unknown(str(token), place_of(token))

    def empty(self, token: lark.Token) -> Expr:
        return TupleExpr((), place_of(token))

    def parens(self, value: Expr) -> Expr:
        return value

    def fields(self, token: lark.Token, *fields: Any) -> Expr:
        return TupleExpr(tuple(field for field in fields if field is not None), place_of(token))

    def clause_head(self, variables: list[Var]) -> None:
        scope = _Scope()
        scope.local.update((var.name, var) for var in variables)
        self._scopes.append(scope)

    def clause(self, *_: Any) -> None:
        self._scopes.pop()

    def pattern_var(self, name: lark.Token, annotation: Type) -> list[Var]:
        return [Var(name[1:], annotation, place_of(name))]

    def pattern_other(self, *items: Any) -> list[Var]:
        return [var for item in items if isinstance(item, list) for var in item]

    def _commented(self, token: lark.Token) -> Type:
        """The type in the comment behind a token."""
        found = _TYPE_COMMENT.match(self._text, token.end_pos or 0)
        if not found:
            return None
        text = found[1]
        if text not in self._comment_types:
            try:
                kind: Any = self.transform(_parser().parse(text, start="type"))
                self._comment_types[text] = kind
            except (lark.exceptions.UnexpectedInput, lark.exceptions.VisitError):  # a comment may say what it likes
                self._comment_types[text] = None
        return self._comment_types[text]

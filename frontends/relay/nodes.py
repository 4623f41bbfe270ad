"""Relay as one small graph: what the text and the JSON form have in common.

An expression that is used twice is one object that two others point to, so nodes are compared by identity. Names are
resolved by then: a use of a variable is the very `Var` that its binder holds. `at` is "LINE:COLUMN" or "node N".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from subtune.frontends.symbolic import example_ranges, named


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor type; None is a dimension without a value."""

    shape: tuple[int | None, ...]
    dtype: str

    def __str__(self) -> str:
        dims = ", ".join("?" if dim is None else str(dim) for dim in self.shape)
        return f"Tensor[({dims}), {self.dtype}]"

    def unsized(self, name: str) -> str:
        """What is wrong with an input of this type, of which a dimension has no value, and what to do."""
        ranges = example_ranges(named({name: self.shape}).values())
        return f"is {self}: give its shape as --shape {name}=D0,D1,... or compile for a range, for example {ranges}"


@dataclass(frozen=True, slots=True)
class TupleOf:
    """A tuple type."""

    fields: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class OtherType:
    """A function, a reference or a data type; nothing that a tensor program computes with."""

    name: str


Type: TypeAlias = Tensor | TupleOf | OtherType | None


@dataclass(frozen=True, slots=True, eq=False)
class Var:
    name: str
    type: Type
    at: str


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    array: np.ndarray
    at: str


@dataclass(frozen=True, slots=True, eq=False)
class Missing:
    """A constant whose data is not in the file: `meta[relay.Constant][index]`."""

    index: int
    type: Type
    at: str

    @property
    def name(self) -> str:
        """The name under which a user may give its value."""
        return f"meta[relay.Constant][{self.index}]"


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """An operator as a value, or a constructor of a data type: nothing tells them apart but the declarations."""

    name: str
    at: str


@dataclass(frozen=True, slots=True, eq=False)
class Global:
    name: str
    at: str


@dataclass(frozen=True, slots=True, eq=False)
class TupleExpr:
    fields: tuple[Expr, ...]
    at: str


@dataclass(frozen=True, slots=True, eq=False)
class Project:
    tuple: Expr
    index: int
    at: str


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """`attrs`: name -> None, bool, int, float, str, or a list of these. `type`: as TVM inferred it, if it says so."""

    callee: Expr
    args: tuple[Expr, ...]
    attrs: Mapping[str, Any]
    at: str
    type: Type = None


@dataclass(frozen=True, slots=True, eq=False)
class Let:
    var: Var
    value: Expr
    body: Expr
    at: str


@dataclass(frozen=True, slots=True, eq=False)
class If:
    cond: Expr
    then: Expr
    other: Expr
    at: str


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    params: tuple[Var, ...]
    body: Expr
    at: str


@dataclass(frozen=True, slots=True, eq=False)
class Unknown:
    """What reads well but cannot be imported (`match`, references): refused by name where it is used."""

    what: str
    at: str


Expr: TypeAlias = Var | Constant | Missing | Op | Global | TupleExpr | Project | Call | Let | If | Function | Unknown


@dataclass(frozen=True, slots=True)
class Module:
    """Attributes:
    functions: by name; `main` is what is imported.
    constructors: of the data types, by name, with their type's name.
    others: global functions that are none of Relay's (TIR, external), with what they are.
    """

    functions: Mapping[str, Function]
    constructors: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)

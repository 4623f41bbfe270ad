"""What a converter sees of one Relay call, and how it refuses.

Every tensor has a static shape here, as in `onnx.ops.node`, whose helpers serve both: `main`'s types are known, and
Relax infers the rest while the module is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np
from tvm import relax

from subtune.frontends.onnx.ops.converters import CONVERTERS as ONNX
from subtune.frontends.onnx.ops.node import SUPPORTED_DTYPES, Expr, Node, Refused, axis_in, dtype, known_array

Value: TypeAlias = Any
"""A normalised Relax expression, or a tuple of values: Relay's tuples exist only while importing."""

Converter: TypeAlias = Callable[["Call"], Value]

_OPSET = 21
"""The opset whose semantics `Call.onnx` means: the newest that every converter we call knows."""

_LARGEST = 1 << 20
"""Of a window, a stride, a pad or a size: tables of these lengths are made while importing."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a Relay operator with its arguments already imported.

    Attributes:
        op: the operator's full name, `nn.conv2d`.
        args: the arguments in Relay's order; a tuple argument (of `concatenate`) is a tuple of values.
        attrs: attribute name -> None, bool, int, float, str, or a list of these; absent ones are not there.
        name: how variables that hold what it makes are named (`core.names`).
    """

    bb: relax.BlockBuilder
    op: str
    args: tuple[Value, ...]
    attrs: Mapping[str, Any]
    name: str = ""

    def arg(self, index: int) -> Expr:
        """Argument `index`, which has to be a tensor."""
        if index >= len(self.args):
            self.refuse(f"lacks its argument {index}")
        if isinstance(self.args[index], tuple):
            self.refuse(f"has a tuple as argument {index}, where a tensor belongs")
        return self.args[index]

    def fields(self, index: int) -> tuple[Expr, ...]:
        """Argument `index`, which has to be a tuple of tensors."""
        if index >= len(self.args) or not isinstance(self.args[index], tuple):
            self.refuse(f"lacks its tuple argument {index}")
        return self.args[index]

    @property
    def x(self) -> Expr:
        """The first argument."""
        return self.arg(0)

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute; Relay's own default has to be given, since text printed by hand may leave it out."""
        return self.attrs.get(name, default)

    def ints(self, name: str) -> list[int] | None:
        """A list of integers; one integer is a list of one. None where the attribute is absent."""
        value = self.attr(name)
        if value is None:
            return None
        return [self._int(name, item) for item in (value if isinstance(value, list | tuple) else [value])]

    def need_ints(self, name: str) -> list[int]:
        """`ints` of an attribute that Relay has no default for."""
        found = self.ints(name)
        return self.refuse(f"lacks its attribute {name}") if found is None else found

    def one_int(self, name: str, default: int | None = None) -> int:
        """One integer; a list of one counts."""
        found = self.ints(name)
        if found is None:
            return self.refuse(f"lacks its attribute {name}") if default is None else default
        return found[0] if len(found) == 1 else self.refuse(f"has {name}={found}, where one integer belongs")

    def axis(self, ndim: int, default: int | None = None, name: str = "axis") -> int:
        """The attribute `axis` as an index of `ndim` axes."""
        return axis_in(self.one_int(name, default), ndim)

    def per_axis(self, name: str, count: int, default: int = 1) -> list[int]:
        """An attribute of `count` integers; one alone stands for all, none at all for the default."""
        values = self.ints(name) or [default]
        if len(values) not in (1, count):
            self.refuse(f"has {name} {values} for {count} axes")
        if any(abs(value) > _LARGEST for value in values):
            self.refuse(f"has {name} {values}, which is out of range")
        return values * count if len(values) == 1 else values

    def pads(self, count: int, name: str = "padding") -> tuple[list[int], list[int]]:
        """Pads at the start and at the end: one for all, one per axis for both ends, or all of them."""
        value = self.attr(name)
        if isinstance(value, (list, tuple)) and len(value) == 2 * count > 1:
            ends = self.per_axis(name, 2 * count)
            return ends[:count], ends[count:]
        both = self.per_axis(name, count, 0)
        return both, list(both)

    def dtype(self, default: str, name: str = "dtype") -> str:
        """A dtype attribute; absent, None, "" and void mean the default."""
        value = self.attr(name)
        if value in (None, "", "void", "None", "handle"):
            return default
        value = "bool" if value == "uint1" else value
        return str(value) if value in SUPPORTED_DTYPES else self.refuse(f"has {name} {value}, which is not supported")

    def text(self, name: str, default: str) -> str:
        """A string attribute; None and "" mean the default."""
        return str(self.attr(name) or default)

    def refuse(self, reason: str) -> NoReturn:
        """Raises what the importer turns into `OP at LINE:COLUMN REASON`, with all other refusals."""
        raise Refused(reason)

    def known(self, index: int) -> np.ndarray | None:
        """The value of argument `index` if it is a constant, else None."""
        value = self.args[index] if index < len(self.args) else None
        return None if value is None or isinstance(value, tuple) else known_array(value, {})

    def known_ints(self, index: int, what: str) -> list[int]:
        """The value of argument `index`, a constant that decides a shape, as a flat list."""
        value = self.known(index)
        if value is None:
            self.refuse(f"needs {what} (its argument {index}) at compile time")
        return [self._int(what, item) for item in value.reshape(-1).tolist()]

    def _int(self, name: str, item: Any) -> int:
        if isinstance(item, bool) or not isinstance(item, int | float) or item % 1 != 0:
            self.refuse(f"has {name} with {item!r}, which is no integer")
        return int(item)

    def emit(self, expr: Expr) -> Expr:
        """Binds `expr` to a variable, so that its shape and dtype are known."""
        return self.bb.emit(expr, self.name)

    def te(self, func: Callable[..., Any], *args: Any, name: str | None = None) -> Expr:
        """Emits a call of the tensor expression `func(*args)`, named after the operator."""
        hint = name or self.op.rsplit(".", 1)[-1]
        return self.bb.emit_te(func, *args, primfunc_name_hint=hint, name_hint=self.name)

    def cast(self, x: Expr, to: str) -> Expr:
        return x if dtype(x) == to else self.emit(relax.op.astype(x, to))

    def node(self, op: str, *inputs: Expr | None, outputs: int = 1, **attrs: Any) -> Node:
        """The ONNX node of the same meaning, for what `onnx.ops` offers beside converters."""
        return Node(self.bb, op, "", _OPSET, inputs, attrs, (True,) * outputs, {}, name=self.name)

    def onnx(self, op: str, *inputs: Expr | None, outputs: int = 1, **attrs: Any) -> Any:
        """Emits the ONNX operator of the same meaning: one converter, tested once, for both frontends.

        Returns one expression, or a tuple of `outputs` of them.
        """
        made = ONNX["", op](self.node(op, *inputs, outputs=outputs, **attrs))
        made = made if isinstance(made, tuple) else (made,)
        made = tuple(v if isinstance(v, relax.Var) else self.bb.normalize(v) for v in made[:outputs])
        return made[0] if outputs == 1 else made

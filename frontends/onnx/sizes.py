"""What the user says of an ONNX model's dimensions (`--shape`), as sizes of its symbols and expressions of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from subtune.core.dims import Dim
from subtune.core.errors import ShapeError
from subtune.frontends.symbolic import RawDim, Shape, size_at, substituted, symbol_of

_Equation = tuple[Dim, int, str]
"""A dimension, its size, and whose shape says so."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Attributes:
    values: symbol -> value.
    expressions: those of which some symbol is not known, and yet the size.
    said_by: symbol -> the name under which the user gave its value.
    """

    values: dict[str, int] = field(default_factory=dict)
    expressions: dict[Dim, int] = field(default_factory=dict)
    said_by: dict[str, str] = field(default_factory=dict)

    def of(self, name: str, dim: int | Dim) -> int | Dim:
        """A dimension of input `name` with all that is known. Raises ShapeError: it is negative."""
        if isinstance(dim, Dim) and all(symbol in self.values for symbol in dim.symbols):
            return size_at(name, dim, self.values)
        return self.expressions[dim] if dim in self.expressions else substituted(dim, self.values)

    def say(self, symbol: str, size: int, by: str) -> None:
        if self.values.setdefault(symbol, size) != size:
            raise ShapeError(
                f"The symbol {symbol!r} is {self.values[symbol]} according to {self.said_by[symbol]!r} "
                f"and {size} according to {by!r}: it has one value."
            )
        self.said_by.setdefault(symbol, by)


def sizes(
    declared: Mapping[str, Sequence[RawDim] | None],
    dims: Mapping[str, Shape | None],
    shapes: Mapping[str, Sequence[int] | int],
) -> Sizes:
    """The sizes that follow from what was given, after checking it against the model.

    Args:
        declared: inputs as the file has them.
        dims: the same ones with names for all that has no size (`symbolic.named`).
        shapes: input -> its whole shape; symbol, text of a dimension, or INPUT.AXIS -> one size. The first that fits.
    Raises ShapeError: an unknown name, a shape that contradicts the model or another.
    """
    found, left = Sizes(), []
    for dim, size, by in _equations(declared, dims, shapes):
        symbol = symbol_of(dim)
        if symbol is not None:
            found.say(symbol, size, by)
        else:
            left.append((dim, size, by))
    while left:  # an expression of which all symbols but one are known gives that one
        later = [equation for equation in left if not _is_solved(equation, found)]
        if len(later) == len(left):
            break
        left = later
    for dim, size, by in left:
        if found.expressions.setdefault(dim, size) != size:
            raise ShapeError(f"The dimension {dim} is {found.expressions[dim]} and, according to {by!r}, {size}.")
    return found


def dims_of(name: str, given: Sequence[int] | int) -> tuple[int, ...]:
    """The sizes of one shape that was given. Raises ShapeError: one is no size."""
    each = (given,) if isinstance(given, int) else tuple(given)
    for size in each:
        # operator.index would take True, which nobody means as a size
        if isinstance(size, bool) or not hasattr(size, "__index__") or int(size) < 0:
            raise ShapeError(f"The shape of {name!r} has {size!r}, which is no size.")
    return tuple(int(size) for size in each)


def shown(dims: Sequence[RawDim] | None) -> str:
    """A shape in a message."""
    if dims is None:
        return "[any shape]"
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in dims) + "]"


def _equations(
    declared: Mapping[str, Sequence[RawDim] | None],
    dims: Mapping[str, Shape | None],
    shapes: Mapping[str, Sequence[int] | int],
) -> Iterator[_Equation]:
    for name, given in shapes.items():
        numbers = dims_of(name, given)
        if name in declared:
            raw = declared[name]
            if raw is not None and len(raw) != len(numbers):
                raise ShapeError(
                    f"Input {name!r} has {len(raw)} dimensions {shown(raw)}, but the shape given has "
                    f"{len(numbers)}: {shown(numbers)}."
                )
            meant = [(name, axis, dim) for axis, dim in enumerate(dims[name] or ())]
        else:
            meant = _called(name, declared, dims)
            if not meant:
                known = ", ".join(f"{key!r} {shown(raw)}" for key, raw in declared.items()) or "none"
                raise ShapeError(f"The model has no input (and no symbol) {name!r}; its inputs are {known}.")
            if len(numbers) != 1:
                raise ShapeError(f"{name!r} is a symbol of the model and takes one value, not {shown(numbers)}.")
            numbers *= len(meant)
        for (owner, axis, dim), size in zip(meant, numbers, strict=False):  # no dimensions where the rank is unknown
            if isinstance(dim, Dim):
                yield dim, size, name
            elif dim != size:
                raise ShapeError(
                    f"Input {owner!r} has the fixed size {dim} in dimension {axis}; the shape given says {size}."
                )


def _called(
    name: str, declared: Mapping[str, Sequence[RawDim] | None], dims: Mapping[str, Shape | None]
) -> list[tuple[str, int, int | Dim]]:
    """The dimensions with this text or symbol, else the symbol in an expression, else the one at INPUT.AXIS."""
    every = [(owner, axis, dim) for owner, shape in dims.items() for axis, dim in enumerate(shape or ())]
    texts = {(owner, axis): raw for owner, raws in declared.items() for axis, raw in enumerate(raws or ())}
    if meant := [one for one in every if texts[one[:2]] == name or symbol_of(one[2]) == name]:
        return meant
    if found := next((one for one in every if isinstance(one[2], Dim) and name in one[2].symbols), None):
        return [(found[0], found[1], Dim.symbol(name))]
    return [one for one in every if name == f"{one[0]}.{one[1]}"]


def _is_solved(equation: _Equation, found: Sizes) -> bool:
    """Whether the symbols known give the dimension's last one, or all of it, which then must agree."""
    dim, size, by = equation
    left = substituted(dim, found.values)
    if isinstance(left, int):
        if left != size:
            known = ", ".join(f"{symbol}={found.values[symbol]}" for symbol in dim.symbols)
            raise ShapeError(f"The dimension {dim} is {size} according to {by!r}, and {left} where {known}.")
        return True
    terms = dict(left.terms)
    constant = terms.pop((), 0)
    if len(terms) != 1 or len(monomial := next(iter(terms))) != 1:
        return False
    value, rest = divmod(size - constant, terms[monomial])
    if rest or value < 0:
        raise ShapeError(f"No size of {monomial[0]!r} makes the dimension {dim} {size}, as {by!r} has it.")
    found.say(monomial[0], value, by)
    return True

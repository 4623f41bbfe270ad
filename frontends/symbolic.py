"""Inputs whose dimensions may be symbolic: what their symbols are called, and their shapes at values of the symbols."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from subtune.core.dims import Dim, parse
from subtune.core.errors import ShapeError

RawDim = int | str | None
"""A dimension as a file has it: a size, any text, or unknown without a name."""
Shape = tuple[int | Dim, ...]

_NO_NAMES = frozenset({"none", "null", "unknown"})
"""What exporters write into a dimension that has no name, beside what has no letters at all (`?`, `-1`)."""
_NOT_IN_A_NAME = re.compile(r"[^\w.]+")
_HYPHENATED = re.compile(r"[\w.]+(-[\w.]+)+")


@dataclass(frozen=True, slots=True)
class SymbolicInput:
    """One input of a model.

    Attributes:
        name: the name in the model file.
        shape: sizes, and what is no size yet as an expression of the model's symbols; () is a scalar.
        dtype: as of `TensorSpec`.

    >>> print(SymbolicInput("mask", (2, parse("past + seq")), "int64"))
    mask: int64[2, past + seq]
    """

    name: str
    shape: Shape
    dtype: str

    @property
    def symbols(self) -> tuple[str, ...]:
        """In the order in which they appear, each once."""
        dims = (dim for dim in self.shape if isinstance(dim, Dim))
        return tuple(dict.fromkeys(name for dim in dims for name in dim.symbols))

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


def symbols_of(inputs: Sequence[SymbolicInput]) -> tuple[str, ...]:
    """The symbols of all inputs, in the order in which they appear, each once."""
    return tuple(dict.fromkeys(name for one in inputs for name in one.symbols))


def named(declared: Mapping[str, Sequence[RawDim] | None]) -> dict[str, Shape | None]:
    """Input name -> its shape, every text read or made a name; None stays, an input of unknown rank.

    A sum of products of names is what it says (`past + seq`, `2*seq`). A dimension without a name is called after its
    input and axis, `input_ids.1`. Other text becomes one name: `batch size` is `batch_size`. So does `max-len`, unless
    `max` and `len` are dimensions themselves: a difference and a hyphen are written alike.
    """
    texts = {dim for dims in declared.values() for dim in dims or () if isinstance(dim, str)}
    plain = {text.strip() for text in texts if _is_name(text.strip())}
    read = {text: dim for text in texts if (dim := _read(text, plain)) is not None}
    taken = {name for dim in read.values() for name in dim.symbols}
    for text in sorted(texts - read.keys()):
        if name := _as_name(text):
            read[text] = Dim.symbol(_new(name, taken))
    found: dict[str, Shape | None] = {}
    for name, dims in declared.items():
        if dims is None:
            found[name] = None
            continue
        shape: list[int | Dim] = []
        for axis, raw in enumerate(dims):
            size = read.get(raw) if isinstance(raw, str) else raw
            if size is None:
                size = Dim.symbol(_new(f"{_as_name(name) or 'input'}.{axis}", taken))
            shape.append(substituted(size, {}))
        found[name] = tuple(shape)
    return found


def example_ranges(shapes: Iterable[Shape | None]) -> str:
    """How a user may declare the symbols of these shapes; "" where there are none.

    >>> example_ranges([(2, parse("past + seq"))])
    '--dynamic past=1..8 --dynamic seq=1..8'
    """
    dims = [dim for shape in shapes for dim in shape or () if isinstance(dim, Dim)]
    return " ".join(f"--dynamic {name}=1..8" for name in dict.fromkeys(name for dim in dims for name in dim.symbols))


def instance(
    inputs: Sequence[SymbolicInput], values: Mapping[str, int], shapes: Mapping[str, Sequence[int] | int] | None = None
) -> dict[str, Sequence[int] | int]:
    """The `shapes` of `load` that make the model what it is at these values of its symbols.

    Args:
        inputs: of `symbolic_inputs`.
        values: of all their symbols, and perhaps of others.
        shapes: what was fixed when `inputs` were asked for.
    Raises ShapeError: a dimension is negative there.

    >>> instance([SymbolicInput("mask", (2, parse("past + seq")), "int64")], {"past": 3, "seq": 4})
    {'mask': (2, 7)}
    """
    whole = {one.name: tuple(size_at(one.name, dim, values) for dim in one.shape) for one in inputs if one.symbols}
    return {**(shapes or {}), **whole}


def size_at(name: str, dim: int | Dim, values: Mapping[str, int]) -> int:
    """The size of a dimension of input `name`. Raises ShapeError: it is negative. KeyError: a symbol has no value."""
    size = dim if isinstance(dim, int) else dim.at(values)
    if size < 0 and isinstance(dim, Dim):
        where = ", ".join(f"{symbol}={values[symbol]}" for symbol in dim.symbols)
        raise ShapeError(f"Input {name!r} has a dimension {dim}, which is {size} where {where}: give other sizes.")
    return size


def substituted(dim: int | Dim, values: Mapping[str, int | Dim]) -> int | Dim:
    """A dimension with what is known of its symbols put in.

    >>> print(substituted(parse("past*batch + seq"), {"past": 3, "seq": Dim.symbol("batch")}))
    4*batch
    """
    if isinstance(dim, int):
        return dim
    total = Dim.number(0)
    for monomial, factor in dim.terms:
        term = Dim.number(factor)
        for name in monomial:
            term = term * values.get(name, Dim.symbol(name))
        total += term
    return total if total.constant is None else total.constant


def symbol_of(dim: object) -> str | None:
    """The name of what is nothing but a symbol."""
    return dim.symbols[0] if isinstance(dim, Dim) and dim.symbols and dim == Dim.symbol(dim.symbols[0]) else None


def _read(text: str, plain: set[str]) -> Dim | None:
    """The expression that a text is; None where it is none, or no size."""
    if text.strip().lower() in _NO_NAMES:
        return None
    try:
        dim = parse(text)
    except ValueError:
        return None
    if dim.constant is not None:
        return dim if dim.constant > 0 else None
    if _HYPHENATED.fullmatch(text.strip()) and not plain.issuperset(dim.symbols):
        return None
    return dim


def _is_name(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z_][\w.]*", text) is not None and text.lower() not in _NO_NAMES


def _as_name(text: str) -> str:
    """A name that `parse` reads; "" for text without a letter in it, or that says that there is none."""
    name = _NOT_IN_A_NAME.sub("_", text.strip()).strip("_")
    if name.lower() in _NO_NAMES or not any(character.isalpha() for character in name):
        return ""
    return name if _is_name(name) else f"_{name}"


def _new(name: str, taken: set[str]) -> str:
    found = next(candidate for candidate in _numbered(name) if candidate not in taken)
    taken.add(found)
    return found


def _numbered(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}_{number}"
        number += 1

"""What a user declares of a model's symbols, on the command line or in Python, as a `Domain`.

`--dynamic seq=1..512`, `seq=16,32,64`, `seq=16..512/16`, `seq=1..512:weights.json`; `dynamic={"seq": range(1, 513)}`,
`{"seq": [16, 32]}`, `{"seq": {16: 0.9, 32: 0.1}}`, or the text of the command line behind its first `=`. A symbol may
also be an expression of others, `total=past+seq` (see `relations`).
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

from subtune import frontends
from subtune.core.dims import Dim
from subtune.core.domain import Domain, Symbol
from subtune.core.errors import ShapeError
from subtune.dynamic.relations import relation_of, resolved
from subtune.dynamic.suggest import close, listed
from subtune.dynamic.weights import read_weights
from subtune.frontends import SymbolicInput
from subtune.options import Options

UNWEIGHTED = 0.01
"""What all values without a weight, or with the weight 0, weigh together: whoever declares a value may meet it, and a
value that weighs nothing would get whatever kernel is left."""

_MOST_VALUES = 2**20
"""Of one symbol: they are kept one by one."""
_LARGEST = 2**31 - 1
"""Loops count in int32."""
_PART = re.compile(r"([0-9]+)(?:\.\.([0-9]+)(?:/([0-9]+))?)?")
_FORM = "write 1..512, 16..512/16 or 16,32,64, and :FILE.json behind it for weights; or other symbols, past+seq"


def declared(model: Any, options: Options) -> tuple[Domain, tuple[SymbolicInput, ...]]:
    """The domain that `options.dynamic` declares, and the model's inputs in the domain's symbols.

    What `options.shapes` fixes is fixed in the inputs. `frontends.instance(inputs, values, options.shapes)` are the
    shapes of one instance.

    Raises:
        ModelError: the model cannot be read. ShapeError: what was declared makes no sense, or not of this model.
    """
    dynamic = options.dynamic or {}
    if not isinstance(dynamic, Mapping):
        raise ShapeError(
            f"dynamic is {dynamic!r}: give the values by their symbols, for example {{'seq': range(1, 513)}}."
        )
    inputs = frontends.symbolic_inputs(model, options.shapes, options.parameters)
    symbols = frontends.symbols_of(inputs)
    for name in (name for name in dynamic if name not in symbols):
        every = frontends.symbolic_inputs(model, None, options.parameters) if options.shapes else inputs
        remedy = "write ? for it" if frontends.is_relay(model) else "export it with a dynamic axis"
        raise ShapeError(_unknown(name, every, remedy))
    relations = {name: dim for name, given in dynamic.items() if (dim := relation_of(given)) is not None}
    known = resolved(relations, symbols, _fixed(options.shapes or {}))
    inputs = tuple(replace(one, shape=tuple(frontends.substituted(dim, known) for dim in one.shape)) for one in inputs)
    of_values = {name: given for name, given in dynamic.items() if name not in relations}
    left = dict.fromkeys((*frontends.symbols_of(inputs), *of_values))
    return domain_of(of_values, tuple(left)), inputs


def domain_of(dynamic: Mapping[Any, Any], symbols: Collection[str]) -> Domain:
    """The domain of what was declared, its symbols in the order of `symbols`.

    Args:
        dynamic: symbol -> its values: text, a number, an iterable of numbers, or value -> weight.
        symbols: all that need values.
    Raises ShapeError: values or weights that are none, a symbol without values, or unknown.

    >>> print(domain_of({"seq": "16..64/16", "batch": [1, 4]}, ("batch", "seq")))
    batch=1,4 seq=16,32,48,64
    """
    for name in (name for name in dynamic if name not in symbols):
        raise ShapeError(f"The model has no symbol {name!r}{close(str(name), symbols)}; it has {listed(symbols)}.")
    found = {name: _symbol(name, dynamic[name]) for name in symbols if name in dynamic}
    if missing := [name for name in symbols if name not in found]:
        ranges, sizes = (" ".join(flags) for flags in zip(*map(_flags, missing), strict=True))
        raise ShapeError(
            f"The model has no sizes for {listed(missing)}: declare a range, for example {ranges}, or give fixed "
            f"sizes, for example {sizes}."
        )
    return Domain(tuple(found.values()))


def _flags(name: str) -> tuple[str, str]:
    return f"--dynamic {name}=1..8", f"--shape {name}=1"


def _fixed(shapes: Mapping[str, Any]) -> dict[str, int]:
    """The names in `shapes` that stand for one number, symbols among them."""
    each = {name: (given,) if isinstance(given, int) else tuple(given) for name, given in shapes.items()}
    return {name: int(sizes[0]) for name, sizes in each.items() if len(sizes) == 1}


def _symbol(name: str, given: Any) -> Symbol:
    if isinstance(given, str):
        where = f"--dynamic {name}={given}"
        text, has_file, file = given.partition(":")
        values = _values(where, _of_text(where, text))
        return _weighted(where, name, values, read_weights(where, file)) if has_file else Symbol.uniform(name, values)
    where = f"dynamic[{name!r}]"
    if isinstance(given, Mapping):
        values = _values(where, given)
        return _weighted(where, name, values, {operator.index(value): weight for value, weight in given.items()})
    if isinstance(given, bool) or _whole(given) is not None:
        given = (given,)
    if not isinstance(given, Iterable):
        raise ShapeError(f"{where} is {given!r}: give a range, numbers, or a weight for each number.")
    return Symbol.uniform(name, _values(where, given))


def _of_text(where: str, text: str) -> Iterable[int]:
    for part in text.split(","):
        found = _PART.fullmatch(part.strip())
        if found is None or any(len(digits or "") > 18 for digits in found.groups()):
            raise ShapeError(f"{where}: {part.strip()!r} is neither a whole number nor a range; {_FORM}.")
        first = int(found[1])
        last, step = int(found[2] or first), int(found[3] or 1)
        if last < first:
            raise ShapeError(f"{where}: {part.strip()} is empty, as it begins behind its end; {_FORM}.")
        if not step or (last - first) % step:
            fits = f"{first}..{last - (last - first) % step}/{step}" if step else f"{first}..{last}"
            raise ShapeError(f"{where}: steps of {step} from {first} do not come to {last}: write {fits}, for example.")
        yield from range(first, last + 1, step)


def _values(where: str, given: Iterable[Any]) -> tuple[int, ...]:
    """In increasing order. Raises ShapeError: there are none, too many, some twice, or one is no size."""
    found: set[int] = set()
    for value in given:
        size = _whole(value)
        if size is None:
            raise ShapeError(f"{where}: {value!r} is no whole number.")
        if not 0 <= size <= _LARGEST:
            raise ShapeError(f"{where}: {size} is no size, which is at least 0 and at most {_LARGEST}.")
        if size in found:
            raise ShapeError(f"{where} has the value {size} twice.")
        if len(found) == _MOST_VALUES:
            raise ShapeError(f"{where} has more than {_MOST_VALUES} values: give fewer, or steps (1024..4194304/1024).")
        found.add(size)
    if not found:
        raise ShapeError(f"{where} has no values: a symbol needs at least one.")
    return tuple(sorted(found))


def _weighted(where: str, name: str, values: Sequence[int], weights: Mapping[int, Any]) -> Symbol:
    """The symbol with these weights in proportion, and `UNWEIGHTED` for what has none."""
    own, numbers = frozenset(values), {}
    for value, weight in weights.items():
        if value not in own:
            raise ShapeError(f"{where}: there is a weight for {value}, which is none of the values.")
        numbers[value] = _number(weight)
        if not 0 <= numbers[value] < math.inf:
            raise ShapeError(f"{where}: {value} has the weight {weight!r}; a weight is a number, 0 or more.")
    most = max(numbers.values(), default=0.0)
    if not most:
        raise ShapeError(f"{where}: all weights are 0; one at least must be more.")
    parts = [numbers.get(value, 0.0) / most for value in values]  # so that their sum is finite
    total, without = math.fsum(parts), parts.count(0.0)
    share = UNWEIGHTED / without if without else 0.0
    scale = (1 - UNWEIGHTED if without else 1) / total
    return Symbol(name, tuple(values), tuple(part * scale if part else share for part in parts))


def _whole(value: Any) -> int | None:
    """None for what is none; `True` is none either, whatever `operator.index` says."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _number(weight: Any) -> float:
    """NaN for what is none."""
    try:
        return float(weight) if isinstance(weight, Real) and not isinstance(weight, bool) else math.nan
    except OverflowError:
        return math.inf


def _unknown(name: Any, inputs: Sequence[SymbolicInput], remedy: str) -> str:
    """Why a declared name is no symbol that is left.

    Args:
        inputs: before anything was fixed.
        remedy: what makes a symbol of a dimension that the model fixes.
    """
    if not isinstance(name, str):
        return f"dynamic has the key {name!r}, which is no name of a symbol."
    symbols = frontends.symbols_of(inputs)
    if name in symbols:
        return f"The symbol {name!r} is fixed by --shape and declared by --dynamic: leave one of them out."
    for one in inputs:
        if one.name == name:
            return f"--dynamic names a symbol, and {name!r} is an input, {one}; the model's symbols: {listed(symbols)}."
        for axis, dim in enumerate(one.shape):
            if name == f"{one.name}.{axis}":
                if isinstance(dim, Dim):
                    return f"Dimension {axis} of the input {one.name!r} is called {dim}: declare that."
                return f"Dimension {axis} of the input {one.name!r} is fixed to {dim} by the model: {remedy}."
        axis_text = name.removeprefix(f"{one.name}.")
        if axis_text != name and axis_text.isdecimal():
            last = len(one.shape) - 1
            has = f"dimensions 0 to {last}" if last > 0 else "dimension 0 alone" if last == 0 else "no dimensions"
            return f"The input {one.name!r} has {has}, and {name!r} is none of them: {one}."
    if not symbols:
        return f"The model has no symbol {name!r}: all of its inputs have fixed shapes; leave --dynamic out."
    return f"The model has no symbol {name!r}{close(name, symbols)}; it has {listed(symbols)}."

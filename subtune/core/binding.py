"""Which values a model's symbols have, by the shapes of the arrays that it is given."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import final

from subtune.core.dims import Dim
from subtune.core.domain import Domain
from subtune.core.errors import InputError
from subtune.core.tensor_spec import TensorSpec

Shapes = Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Step:
    """A symbol that one dimension tells: axis `axis` of input `place` is `factor * symbol + rest`.

    The symbols of `factor` and `rest` are those of earlier steps.
    """

    symbol: str
    place: int
    axis: int
    factor: Dim
    rest: Dim


def steps_of(inputs: Sequence[TensorSpec]) -> tuple[Step, ...]:
    """How to learn the symbols of `inputs`, one after the other; those that cannot be learnt have no step.

    Dimensions that are nothing but a symbol come first, then those with the fewest things to go wrong: a factor that
    is a number before one that is a symbol.
    """
    open_dims = [
        (place, axis, dim) for place, spec in enumerate(inputs) for axis, dim in enumerate(spec.dims) if dim.symbols
    ]
    steps: list[Step] = []
    known: set[str] = set()
    while True:
        found = [step for place, axis, dim in open_dims if (step := _step(place, axis, dim, known))]
        if not found:
            return tuple(steps)
        best = min(found, key=_difficulty)
        steps.append(best)
        known.add(best.symbol)


def _step(place: int, axis: int, dim: Dim, known: Collection[str]) -> Step | None:
    """What the dimension says of its only unknown symbol; None where it has more, or none, or a power of it."""
    unknown = [name for name in dim.symbols if name not in known]
    if len(unknown) != 1:
        return None
    symbol = unknown[0]
    if any(monomial.count(symbol) > 1 for monomial, _ in dim.terms):
        return None
    factor = {
        tuple(name for name in monomial if name != symbol): number
        for monomial, number in dim.terms
        if symbol in monomial
    }
    rest = {monomial: number for monomial, number in dim.terms if symbol not in monomial}
    return Step(symbol, place, axis, Dim.of(factor), Dim.of(rest))


def _difficulty(step: Step) -> tuple[bool, bool]:
    return step.factor.constant is None, step.factor != Dim.number(1) or bool(step.rest.terms)


def unbound(inputs: Sequence[TensorSpec], domain: Domain) -> tuple[str, ...]:
    """The symbols of the domain whose values no shape of the inputs tells."""
    told = {step.symbol for step in steps_of(inputs)}
    return tuple(name for name in domain.names if name not in told)


@final
class Binder:
    """Values of the domain's symbols from the shapes of `inputs`, which tell all of them (`unbound`)."""

    def __init__(self, inputs: Sequence[TensorSpec], domain: Domain) -> None:
        self._inputs = tuple(inputs)
        self._dims = tuple(spec.dims for spec in inputs)
        self._steps = steps_of(inputs)
        self._domain = domain

    def values(self, shapes: Shapes) -> dict[str, int]:
        """Each symbol's value, in the domain's order.

        Args:
            shapes: of the arrays for all inputs, in their order.

        Raises:
            InputError: an array has another number of axes, or another size of an axis that has no symbol; two axes
                say different things of a symbol; or its value is not in the domain. The text names input and axis.
        """
        for spec, dims, shape in zip(self._inputs, self._dims, shapes, strict=True):
            sizes = zip(dims, shape, strict=False)
            if len(shape) != len(dims) or any(dim.constant not in (None, size) for dim, size in sizes):
                raise InputError(f"input {spec.name} has shape {shape}, the model takes {spec} of {self._domain}")
        found: dict[str, int] = {}
        for step in self._steps:
            found[step.symbol] = self._solved(step, shapes[step.place][step.axis], found)
        self._check(shapes, found)
        values = {name: found[name] for name in self._domain.names}
        if complaint := self._domain.complaint(values):
            step = self._step_of(next(s.name for s in self._domain.symbols if Domain((s,)).complaint(values)))
            where = f"axis {step.axis} of input {self._inputs[step.place].name}"
            raise InputError(f"{where} is {shapes[step.place][step.axis]}: {complaint}")
        return values

    def _solved(self, step: Step, size: int, known: dict[str, int]) -> int:
        factor, rest = step.factor.at(known), step.rest.at(known)
        value, remainder = divmod(size - rest, factor) if factor else (0, 1)
        if remainder:
            given = "".join(f" where {name} is {known[name]}" for name in (*step.factor.symbols, *step.rest.symbols))
            raise InputError(
                f"axis {step.axis} of input {self._inputs[step.place].name} is {size}, and no {step.symbol} makes "
                f"{self._inputs[step.place].shape[step.axis]} that{given}"
            )
        return value

    def _check(self, shapes: Shapes, found: dict[str, int]) -> None:
        """Every dimension is what the values say."""
        for place, (spec, dims, shape) in enumerate(zip(self._inputs, self._dims, shapes, strict=True)):
            for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
                if (expected := dim.at(found)) != size:
                    told = [step for step in self._steps if step.symbol in dim.symbols]
                    by = " and ".join(dict.fromkeys(f"axis {s.axis} of {self._inputs[s.place].name}" for s in told))
                    raise InputError(
                        f"{spec.shape[axis]} is {expected} by {by} and {size} by axis {axis} of "
                        f"{self._inputs[place].name}; give arrays that agree"
                    )

    def _step_of(self, symbol: str) -> Step:
        return next(step for step in self._steps if step.symbol == symbol)

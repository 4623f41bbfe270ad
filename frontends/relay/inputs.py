"""The tensors that a Relay module takes: what they are called, and their types once `--shape` is heard."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from subtune.core.errors import ShapeError
from subtune.frontends.onnx.sizes import dims_of
from subtune.frontends.relay.nodes import Tensor, TupleOf, Type, Var
from subtune.frontends.symbolic import named, symbol_of

_MAX_NAMED = 4


def tensors(types: Mapping[Var, Type]) -> dict[str, Type]:
    """The types of all inputs, by name, fields of a tuple `t` one by one as `t_0`, `t_1`.

    They are called as inputs of the imported model: a name that is taken gets a number.
    """
    found: dict[str, Type] = {}
    for var, kind in types.items():
        for name, leaf in _leaves(var.name, kind):
            found[free(name, found)] = leaf
    return found


def sized(inputs: Sequence[Var], shapes: Mapping[str, Sequence[int] | int]) -> dict[Var, Type]:
    """The inputs with the types that they have in these shapes.

    Args:
        shapes: input -> its whole shape; INPUT.AXIS, or the symbol that stands for that dimension -> its size.
    Raises ShapeError: a shape contradicts the model, or is of nothing that it has.
    """
    found = tensors({var: var.type for var in inputs})
    places = _places(found)
    for name, given in shapes.items():
        sizes = dims_of(name, given)
        if name in found:
            found[name] = _with_shape(name, found[name], sizes)
        elif name in places:
            owner, axis = places[name]
            kind = found[owner]
            if len(sizes) != 1:
                raise ShapeError(f"--shape {name} is of one dimension of {owner}: give one size, not {len(sizes)}.")
            assert isinstance(kind, Tensor), kind
            if kind.shape[axis] not in (None, *sizes):
                raise ShapeError(f"--shape {name}={sizes[0]} contradicts the model, where {owner} is {kind}.")
            found[owner] = Tensor((*kind.shape[:axis], *sizes, *kind.shape[axis + 1 :]), kind.dtype)
        else:
            raise ShapeError(f"--shape {name}: the model's inputs are {some(found)}.")
    leaves = iter(found.values())
    return {var: _rebuilt(var.type, leaves) for var in inputs}


def free(name: str, taken: Container[str]) -> str:
    """A name that is not taken: this one, or with a number behind it."""
    found, count = name, 0
    while found in taken:
        count += 1
        found = f"{name}_{count}"
    return found


def some(names: Iterable[str]) -> str:
    """The first of some names."""
    listed = list(names)
    more = len(listed) - _MAX_NAMED
    return ", ".join(listed[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _leaves(name: str, kind: Type) -> Iterator[tuple[str, Type]]:
    if isinstance(kind, TupleOf):
        for index, field in enumerate(kind.fields):
            yield from _leaves(f"{name}_{index}", field)
    else:
        yield name, kind


def _places(found: Mapping[str, Type]) -> dict[str, tuple[str, int]]:
    """Input and axis of every dimension, by the symbol that stands for it and, where that is free, as INPUT.AXIS."""
    dims = named({name: kind.shape for name, kind in found.items() if isinstance(kind, Tensor)})
    every = [(name, axis, dim) for name, shape in dims.items() for axis, dim in enumerate(shape or ())]
    places = {symbol: (name, axis) for name, axis, dim in every if (symbol := symbol_of(dim)) is not None}
    for name, axis, _ in every:
        places.setdefault(f"{name}.{axis}", (name, axis))
    return places


def _with_shape(name: str, kind: Type, sizes: tuple[int, ...]) -> Type:
    if isinstance(kind, Tensor):
        if len(sizes) != len(kind.shape) or any(a not in (None, b) for a, b in zip(kind.shape, sizes, strict=True)):
            raise ShapeError(f"--shape {name}={','.join(map(str, sizes))} contradicts the model, where it is {kind}.")
    elif kind is not None:
        raise ShapeError(f"--shape {name}: the input is no tensor.")
    return Tensor(sizes, kind.dtype if isinstance(kind, Tensor) else "float32")


def _rebuilt(kind: Type, leaves: Iterator[Type]) -> Type:
    """The same nesting of tuples with other leaves."""
    return (
        TupleOf(tuple(_rebuilt(field, leaves) for field in kind.fields)) if isinstance(kind, TupleOf) else next(leaves)
    )

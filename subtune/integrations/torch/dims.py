"""The symbols of an exported program: what its user called them, and the values that they may have."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, TensorArgument
from torch.utils import _pytree as pytree

from subtune.core.errors import ShapeError

_MOST_VALUES = 2**20
"""Of one symbol: PyTorch writes "no bound" as a number, too."""


def ranges_of(program: ExportedProgram, names: Mapping[str, str], bounds: Mapping[str, Any]) -> dict[str, range]:
    """Symbol -> its values; those in `bounds` are left out, as their user declares them.

    Raises ShapeError: a dimension without an upper bound.
    """
    found = {}
    for symbol in _used(program):
        name = names.get(str(symbol), str(symbol))
        if name in bounds:
            continue
        constraint = program.range_constraints.get(symbol)
        try:
            least, most = int(constraint.lower), int(constraint.upper)  # type: ignore[union-attr]
        except (AttributeError, OverflowError, TypeError, ValueError):
            least, most = 0, _MOST_VALUES + 1
        if most - least >= _MOST_VALUES:
            raise ShapeError(
                f"The dimension {name!r} has no upper bound: export with torch.export.Dim({name!r}, min=1, max=512), "
                f"or give its values, dynamic={{{name!r}: range(1, 513)}}."
            )
        found[name] = range(least, most + 1)
    return found


def renamed(
    program: ExportedProgram,
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic_shapes: Any,
) -> dict[str, str]:
    """PyTorch's symbols (`s27`) -> the names that their `torch.export.Dim`s have in `dynamic_shapes`."""
    if not dynamic_shapes:
        return {}
    given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    by_name: dict[str, Any] = {}
    for parameter in inspect.signature(module.forward).parameters.values():
        if parameter.name in given:
            of_keywords = parameter.kind is inspect.Parameter.VAR_KEYWORD
            by_name.update(given[parameter.name] if of_keywords else {parameter.name: given[parameter.name]})
    shapes = dynamic_shapes
    if not isinstance(shapes, Mapping):
        shapes = dict(zip(by_name, shapes, strict=False))
    called = {}
    for tensor, axis, dim in _walk(by_name, shapes):
        name = getattr(dim, "__name__", None)
        if name is not None and re.fullmatch(r"[A-Za-z_]\w*", name):
            called[id(tensor), axis] = name
    found: dict[str, str] = {}
    for tensor, axis, symbol in _symbols(program, [*_tensors(args), *_tensors(kwargs)]):
        if (name := called.get((id(tensor), axis))) is not None:
            found.setdefault(str(symbol), name)
    return found


def _used(program: ExportedProgram) -> list[Any]:
    """The symbols of the arguments' dimensions, each once."""
    found: dict[Any, None] = {}
    for shape in _shapes(program):
        for dim in shape:
            if isinstance(dim, torch.SymInt):
                found.update(dict.fromkeys(sorted(dim.node.expr.free_symbols, key=str)))
    return list(found)


def _shapes(program: ExportedProgram) -> Iterator[Sequence[Any]]:
    """Of the arguments that are tensors, in their order."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument):
            yield nodes[spec.arg.name].meta["val"].shape


def _symbols(program: ExportedProgram, tensors: Sequence[torch.Tensor]) -> Iterator[tuple[torch.Tensor, int, Any]]:
    for tensor, shape in zip(tensors, _shapes(program), strict=False):
        for axis, dim in enumerate(shape):
            if isinstance(dim, torch.SymInt) and dim.node.expr.is_symbol:
                yield tensor, axis, dim.node.expr


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _walk(value: Any, shapes: Any) -> Iterator[tuple[torch.Tensor, int, Any]]:
    """Each tensor, axis and what stands for it in a tree of dynamic shapes."""
    if isinstance(value, torch.Tensor):
        pairs = shapes.items() if isinstance(shapes, Mapping) else enumerate(shapes or ())
        for axis, dim in pairs:
            yield value, axis, dim
    elif isinstance(value, Mapping) and isinstance(shapes, Mapping):
        for key, shape in shapes.items():
            if key in value:
                yield from _walk(value[key], shape)
    elif isinstance(value, list | tuple) and isinstance(shapes, list | tuple):
        for one, shape in zip(value, shapes, strict=False):
            yield from _walk(one, shape)

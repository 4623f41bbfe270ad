"""Symbols that are declared to be expressions of others: `--dynamic total=past+seq`, `--dynamic mask.1=ids.1`.

Exporters do not say all that they know. A dimension without a name is a symbol of its own, and PyTorch's exporter calls
the length of a mask over a cache a new symbol, although it is that of the cache and of the new words together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from subtune.core.dims import Dim, parse
from subtune.core.errors import ShapeError
from subtune.dynamic.suggest import close, listed
from subtune.frontends import substituted


def relation_of(given: Any) -> Dim | None:
    """The expression of symbols that a declaration is; None where it is one of values.

    >>> str(relation_of("past+seq")), relation_of("1..512")
    ('past + seq', None)
    """
    if isinstance(given, str):
        try:
            given = parse(given)
        except ValueError:
            return None
    return given if isinstance(given, Dim) and given.symbols else None


def resolved(relations: Mapping[str, Dim], symbols: Collection[str], fixed: Mapping[str, int]) -> dict[str, int | Dim]:
    """Each symbol as an expression of symbols without a relation.

    Args:
        relations: symbol -> the expression that it is.
        symbols: the model's.
        fixed: symbols that have one value.
    Raises ShapeError: an expression of a symbol that is none, or of itself.
    """
    for name, dim in relations.items():
        for used in dim.symbols:
            if used not in symbols and used not in fixed:
                why = f"the model has no symbol {used!r}{close(used, symbols)}; it has {listed(symbols)}"
                raise ShapeError(f"--dynamic {name}={dim} is neither of values nor of symbols: {why}.")
    known: dict[str, int | Dim] = dict(fixed)
    try:
        order = tuple(TopologicalSorter({name: dim.symbols for name, dim in relations.items()}).static_order())
    except CycleError as error:
        name = next(name for name in error.args[1] if name in relations)
        raise ShapeError(f"--dynamic {name}={relations[name]} says of {name!r} what it is by itself.") from error
    for name in (name for name in order if name in relations):
        known[name] = substituted(relations[name], known)
    return {name: known[name] for name in relations}

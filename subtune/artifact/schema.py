"""JSON as frozen dataclasses and back, by their annotations; whatever does not fit is named with its place.

A tuple of pairs `(str, X)` is a JSON object, any other tuple a list, an enum its value. Every field has to be there
and nothing else: a number is no text, `true` is no number, NaN and infinities are no numbers here. What would be long
has a shorter form of its own (`FORMS`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from types import EllipsisType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from subtune.artifact.symbol_form import SymbolForm
from subtune.core.domain import Symbol

T = TypeVar("T")

FORMS: dict[type, type[SymbolForm]] = {Symbol: SymbolForm}
"""Dataclasses that stand in JSON for others: `of` makes one, `value` gives the other back or raises ValueError."""


class SchemaError(ValueError):
    """JSON that is not what a dataclass says; the text begins with the place in it."""


def encode(value: Any) -> Any:
    """A dataclass as what `json.dumps` takes."""
    if type(value) in FORMS:
        value = FORMS[type(value)].of(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _encoded(kind, getattr(value, name)) for name, kind in _fields(type(value)).items()}
    return value.value if isinstance(value, Enum) else value


def decode(kind: type[T], data: Any) -> T:
    """The dataclass `kind` of what `json.loads` gave.

    Raises:
        SchemaError: it is none.

    >>> from subtune.core.tensor_spec import TensorSpec
    >>> decode(TensorSpec, {"name": "x", "shape": [2, 3.5], "dtype": "float32"})
    Traceback (most recent call last):
    ...
    subtune.artifact.schema.SchemaError: shape[1] should be a whole number or text, not 3.5
    """
    decoded: T = _decoded(kind, data, "")
    return decoded


def _encoded(kind: Any, value: Any) -> Any:
    if not isinstance(value, tuple):
        return encode(value)
    item, *rest = get_args(kind)
    if rest != [Ellipsis]:
        return [_encoded(part, field) for part, field in zip((item, *rest), value, strict=True)]
    if _is_pair(item):
        return {name: _encoded(get_args(item)[1], field) for name, field in value}
    return [_encoded(item, field) for field in value]


def _decoded(kind: Any, data: Any, where: str) -> Any:
    if kind in _NAMES:
        return _plain(kind, data, where)
    if isinstance(kind, UnionType):
        return _either(get_args(kind), data, where)
    if get_origin(kind) is tuple:
        return _tuple(get_args(kind), data, where)
    if issubclass(kind, Enum):
        try:
            return kind(data)
        except ValueError:
            raise _unfit(where, f"one of {', '.join(repr(member.value) for member in kind)}", data) from None
    return _dataclass(kind, data, where)


_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def _plain(kind: Any, data: Any, where: str) -> Any:
    if type(data) is kind and (kind is not float or math.isfinite(data)):
        return data
    if kind is float and type(data) is int and abs(data) < 1 << 53:
        return float(data)
    raise _unfit(where, _NAMES[kind], data)


def _either(kinds: tuple[Any, ...], data: Any, where: str) -> Any:
    """One of several plain kinds."""
    if type(data) in kinds:
        return data
    raise _unfit(where, " or ".join(_NAMES[kind] for kind in kinds), data)


def _tuple(items: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    item, *rest = items
    if rest == [Ellipsis] and _is_pair(item):
        named = _object(data, where)
        return tuple((name, _decoded(get_args(item)[1], value, _joined(where, name))) for name, value in named.items())
    if not isinstance(data, list):
        raise _unfit(where, "a list", data)
    kinds: Iterable[Any] = [item] * len(data) if rest == [Ellipsis] else items
    if rest != [Ellipsis] and len(items) != len(data):
        raise _unfit(where, f"a list of {len(items)}", data)
    return tuple(
        _decoded(kind, value, f"{where}[{i}]") for i, (kind, value) in enumerate(zip(kinds, data, strict=True))
    )


def _dataclass(kind: Any, data: Any, where: str) -> Any:
    given, wanted = _object(data, where), _fields(FORMS.get(kind, kind))
    if missing := [name for name in wanted if name not in given]:
        raise SchemaError(f"{_joined(where, missing[0])} is missing")
    if unknown := [name for name in given if name not in wanted]:
        raise SchemaError(f"{_joined(where, unknown[0])} is not known")
    values = {name: _decoded(field, given[name], _joined(where, name)) for name, field in wanted.items()}
    try:
        return FORMS[kind](**values).value() if kind in FORMS else kind(**values)
    except ValueError as e:  # of its own __post_init__
        raise SchemaError(f"{where or kind.__name__}: {e}") from e


def _object(data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise _unfit(where, "an object", data)
    return data


@functools.cache
def _fields(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _is_pair(kind: Any) -> bool:
    return get_origin(kind) is tuple and get_args(kind)[0] is str and not isinstance(get_args(kind)[1], EllipsisType)


def _joined(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _unfit(where: str, wanted: str, data: Any) -> SchemaError:
    found = repr(data)
    return SchemaError(f"{where or 'it'} should be {wanted}, not {found[:60] + '…' if len(found) > 60 else found}")

"""Readers of attributes as text, JSON and hands write them: a scalar for a list of one, no dtype as "" or None."""

from __future__ import annotations

from typing import Any

from subtune.frontends.onnx.ops.node import SUPPORTED_DTYPES, axis_in
from subtune.frontends.relay.ops.call import Call


def ints(call: Call, name: str) -> list[int] | None:
    """A list of integers; one integer is a list of one. None where the attribute is absent."""
    value = call.attr(name)
    if value is None:
        return None
    items = value if isinstance(value, list | tuple) else [value]
    return [_int(call, name, item) for item in items]


def need_ints(call: Call, name: str) -> list[int]:
    """`ints` of an attribute that Relay has no default for."""
    found = ints(call, name)
    return call.refuse(f"lacks its attribute {name}") if found is None else found


def one_int(call: Call, name: str, default: int | None = None) -> int:
    """One integer; a list of one counts."""
    found = ints(call, name)
    if found is None:
        return call.refuse(f"lacks its attribute {name}") if default is None else default
    return found[0] if len(found) == 1 else call.refuse(f"has {name}={found}, where one integer belongs")


def axis_of(call: Call, ndim: int, default: int | None = None, name: str = "axis") -> int:
    """The attribute `axis` as an index of `ndim` axes."""
    return axis_in(one_int(call, name, default), ndim)


def dtype_of(call: Call, default: str, name: str = "dtype") -> str:
    """A dtype's name; `default` where it is not set."""
    value = call.attr(name)
    if value in (None, "", "void", "handle"):
        return default
    value = "bool" if value == "uint1" else value
    return str(value) if value in SUPPORTED_DTYPES else call.refuse(f"has dtype {value}, which is not supported")


def known_ints(call: Call, index: int, what: str) -> list[int]:
    """The value of argument `index`, a constant that decides a shape, as a flat list."""
    value = call.known(index)
    if value is None:
        call.refuse(f"needs {what} (its argument {index}) at compile time")
    return [_int(call, what, item) for item in value.reshape(-1).tolist()]


def _int(call: Call, name: str, item: Any) -> int:
    if isinstance(item, bool) or not isinstance(item, int | float) or item != int(item):
        call.refuse(f"has {name} with {item!r}, which is no integer")
    return int(item)

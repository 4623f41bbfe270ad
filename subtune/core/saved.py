"""Frozen dataclasses of subtune's own as JSON, and back."""

from __future__ import annotations

import importlib
from dataclasses import fields, is_dataclass
from typing import Any

_PACKAGE = "subtune."


def to_plain(value: Any) -> Any:
    """What JSON can hold. Raises TypeError for what is neither a number, text, None, a tuple nor such a dataclass.

    >>> from subtune.core.kernel import Packing
    >>> to_plain((1, Packing(((2, 3),), (0, 1))))
    [1, {'class': 'subtune.core.kernel:Packing', 'split': [[2, 3]], 'order': [0, 1]}]
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return [to_plain(one) for one in value]
    kind = type(value)
    if not is_dataclass(value) or not kind.__module__.startswith(_PACKAGE):
        raise TypeError(f"{kind.__name__} cannot be stored")
    return {"class": f"{kind.__module__}:{kind.__name__}"} | {
        f.name: to_plain(getattr(value, f.name)) for f in fields(kind)
    }


def from_plain(plain: Any) -> Any:
    """What `to_plain` was given. Raises ValueError for what it did not write, and for classes that have changed."""
    if isinstance(plain, list):
        return tuple(from_plain(one) for one in plain)
    if not isinstance(plain, dict):
        return plain
    module, _, name = str(plain.get("class", "")).partition(":")
    try:
        kind = getattr(importlib.import_module(module), name) if module.startswith(_PACKAGE) else None
        if not (isinstance(kind, type) and is_dataclass(kind)):
            raise ValueError(f"{module}:{name} is no dataclass of subtune")
        return kind(**{key: from_plain(value) for key, value in plain.items() if key != "class"})
    except (ImportError, AttributeError, TypeError) as e:
        raise ValueError(f"{module}:{name} has changed: {e}") from e

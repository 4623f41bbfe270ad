"""A file that says how often a symbol has each value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from subtune.core.errors import ShapeError

_FORM = 'write {"16": 0.9, "32": 0.1} or [[16, 0.9], [32, 0.1]]'


def read_weights(where: str, file: str) -> dict[int, Any]:
    """Value -> weight, as the file has it.

    Args:
        where: what names the file, for messages.
        file: JSON, an object of weights by their values, or a list of pairs of a value and its weight.
    Raises ShapeError: the file cannot be read, or is something else.
    """
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"), object_pairs_hook=_Pairs)
    except OSError as error:
        raise ShapeError(f"{where}: {file!r} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:  # ValueError: no JSON, no UTF-8, a NUL in the path
        raise ShapeError(f"{where}: {file!r} is no JSON of weights; {_FORM}.") from error
    if not isinstance(content, list) or not content:
        raise ShapeError(f"{where}: {file!r} has no weights in it; {_FORM}.")
    found: dict[int, Any] = {}
    for pair in content:
        value = _value(pair, isinstance(content, _Pairs))
        if value is None:
            raise ShapeError(
                f"{where}: {file!r} has {json.dumps(pair)[:60]} in it, which is no value and weight; {_FORM}."
            )
        if value in found:
            raise ShapeError(f"{where}: {file!r} has two weights for {value}.")
        found[value] = pair[1]
    return found


class _Pairs(list[Any]):
    """The entries of an object, where a `dict` would hide that a name stands there twice."""


def _value(pair: Any, is_text: bool) -> int | None:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        return None
    value = pair[0]
    if is_text:
        return int(value) if value.isascii() and value.isdecimal() and len(value) < 19 else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None

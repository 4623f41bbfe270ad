"""The tables of docs/reference/json.md, and whether a JSON value is what one of them says.

A row is a path, its types and a meaning. `rows[].name` is a field of each object in the list `rows`; `seconds{}` is any
field of an object whose names are data. "optional" behind the types: not in every output.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "json.md"
TYPES = {
    "text": lambda value: isinstance(value, str),
    "integer": lambda value: type(value) is int,
    "number": lambda value: type(value) in (int, float),
    "true or false": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "object": lambda value: isinstance(value, dict),
    "list": lambda value: isinstance(value, list),
    "anything": lambda value: True,
}
_ROW = re.compile(r"^\| `([^`]*)` \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


class Table:
    """One command's fields: the types of each path, and the paths that every output has."""

    def __init__(self, text: str) -> None:
        self.types: dict[str, tuple[str, ...]] = {}
        self.optional: set[str] = set()
        for path, types, _ in _ROW.findall(text):
            assert path not in self.types, f"{path} is there twice"
            kinds, _, rest = types.partition(", optional")
            assert not rest, types
            self.types[path] = tuple(kind.strip() for kind in re.split(r", | or (?!false)", kinds))
            assert set(self.types[path]) <= set(TYPES), types
            if ", optional" in types:
                self.optional.add(path)

    def complaints(self, value: Any, path: str = "") -> Iterator[str]:
        """Where a value is not what the table says: a field too many, one too few, another type."""
        types = self.types.get(path, () if path else ("list", "object"))
        if not any(TYPES[kind](value) for kind in types):
            yield f"{path or 'it'} is {str(value)[:40]!r}, and should be {' or '.join(types) or 'not there'}"
        elif "anything" in types:
            return
        elif isinstance(value, list):
            for one in value:
                yield from self.complaints(one, f"{path}[]")
        elif isinstance(value, dict):
            yield from self._object(value, path)

    def _object(self, value: dict[str, Any], path: str) -> Iterator[str]:
        names = {name for name in (self._child(known, path) for known in self.types) if name}
        for name in names - value.keys():
            if _joined(path, name) not in self.optional:
                yield f"{_joined(path, name)} is missing"
        for name, one in value.items():
            is_data = name not in names and f"{path}{{}}" in self.types
            yield from self.complaints(one, f"{path}{{}}" if is_data else _joined(path, name))

    def _child(self, known: str, path: str) -> str:
        """The name of a field of the object at `path`, where `known` is the path of one."""
        name = known.removeprefix(f"{path}." if path else "")
        is_below = known.startswith(f"{path}.") if path else True
        return name if is_below and re.fullmatch(r"\w+", name) else ""


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def tables() -> dict[str, Table]:
    """By the heading that a table stands below."""
    parts = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {heading: Table(text) for heading, text in zip(parts[1::2], parts[2::2], strict=True)}

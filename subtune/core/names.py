"""What a model calls its operators, noted beside its module: variables are identifiers, and names are not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_NOTE = "subtune.names"
_DIGITS = "0123456789"


@dataclass(slots=True)
class Names:
    """Of an import: identifiers, and the names that they stand for."""

    _known: dict[str, str] = field(default_factory=dict)

    def hint(self, name: str) -> str:
        """How variables of the operator called `name` are named; a builder appends numbers to it.

        It ends with no digit, so that the operator is found again.
        """
        plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in name).strip("_") or "op"
        plain = plain if plain[0].isalpha() else f"op_{plain}"
        hint, count = f"{plain}_", 0
        while self._known.setdefault(hint, name) != name:
            count += 1
            hint = f"{plain}_{count}_"
        return hint

    def noted(self, mod: Any) -> Any:
        """The module with the names as its attribute."""
        return mod.with_attr(_NOTE, self._known)


def names_of(mod: Any) -> Mapping[str, str]:
    """Identifier -> name, of a module that an importer made; empty for any other."""
    noted = mod.attrs[_NOTE] if mod.attrs and _NOTE in mod.attrs else {}
    return {str(hint): str(name) for hint, name in noted.items()}


def name_of(names: Mapping[str, str], variable: str) -> str:
    """The name of the operator that made a variable, or the variable's own."""
    return names.get(variable.rstrip(_DIGITS), variable)

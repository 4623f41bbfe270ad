"""Types, numbers and attribute values in Relay's text: what its grammar has below expressions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import lark
import numpy as np

from subtune.core.errors import ModelError
from subtune.frontends.relay.nodes import Module, OtherType, Tensor, TupleOf, Type

_META = re.compile(r"meta\[([\w.]+)\]\[(\d+)\]")
_NUMBER = re.compile(r"(-?)(inf|nan|[\d.]+(?:[eE][-+]?\d+)?)(?:([fiu])(\d*))?")
_MAX_DIGITS = 30


def place_of(token: lark.Token) -> str:
    """Line and column."""
    return f"{token.line}:{token.column}"


@lark.v_args(inline=True)
class Values(lark.visitors.Transformer_NonRecursive[lark.Token, Module]):
    """One method per rule of the grammar."""

    def __init__(self, metadata: Mapping[str, Sequence[Any]]) -> None:
        super().__init__(visit_tokens=False)
        self._metadata = metadata

    # Attribute values

    def value_number(self, token: lark.Token) -> Any:
        return self._number(token)[0]

    def value_string(self, token: lark.Token) -> str:
        return re.sub(r"\\(.)", r"\1", token[1:-1], flags=re.DOTALL)

    def true_value(self, _: Any) -> bool:
        return True

    def false_value(self, _: Any) -> bool:
        return False

    def value_none(self, *_: Any) -> None:
        return None

    def value_name(self, token: lark.Token) -> str:
        return str(token)

    def value_list(self, *items: Any) -> list[Any]:
        return list(items)

    def field(self, *_: Any) -> None:
        return None

    def value_meta(self, token: lark.Token) -> Any:
        return self._meta(token)[1]

    # Types

    def tensor_type(self, *children: Any) -> Type:
        return Tensor(tuple(children[:-1]), str(children[-1]))

    def named_type(self, name: lark.Token, *fields: Any) -> Type:
        if name == "_":
            return None
        if re.fullmatch(r"(u?int|float)\d*|bfloat16|bool", name):
            return Tensor((), f"{name}32" if name in ("int", "uint", "float") else str(name))
        return OtherType(str(name))

    def tuple_type(self, *fields: Any) -> Type:
        return TupleOf(tuple(fields))

    def function_type(self, *_: Any) -> Type:
        return OtherType("function")

    def dim(self, token: lark.Token) -> int | None:
        value = self._number(token)[0]
        if not isinstance(value, int) or value < 0:
            raise ModelError(f"Relay text, {place_of(token)}: {token} is no size of a dimension.")
        return value

    def any_dim(self, *_: Any) -> None:
        return None

    # What the rules share

    def _number(self, token: lark.Token) -> tuple[int | float, str]:
        """A literal's value and dtype: `1` int32 (int64 where it must be), `1i64`, `0.5f`, `1f16`, `-inff`."""
        found = _NUMBER.fullmatch(token)
        kind, width = (found[3] or "", found[4]) if found else ("", "")
        is_float = kind == "f" or (not kind and not re.fullmatch(r"-?\d+", token))
        try:
            if len(token) > _MAX_DIGITS or not found:
                raise ValueError
            value = float(found[1] + found[2]) if is_float else int(found[1] + found[2])
            names = {"f": "float", "i": "int", "u": "uint", "": "float" if is_float else "int"}
            dtype = f"{names[kind]}{width or 32}"
            if dtype == "int32" and not width and not -(2**31) <= value < 2**31:
                dtype = "int64"
            if not is_float:
                limits = np.iinfo(dtype)
                if not limits.min <= value <= limits.max:
                    raise ValueError
            else:
                np.finfo(dtype)  # raises for a width that no type has
        except (ValueError, TypeError) as error:
            raise ModelError(
                f"Relay text, {place_of(token)}: the number {token[:40]} does not fit its type."
            ) from error
        return value, dtype

    def _index(self, digits: str, token: lark.Token) -> int:
        if len(digits) > _MAX_DIGITS:
            raise ModelError(f"Relay text, {place_of(token)}: the index {digits[:40]} is too large.")
        return int(digits)

    def _meta(self, token: lark.Token) -> tuple[str, Any]:
        """The type key of a reference into the metadata section, and what is there; None without such a section."""
        found = _META.fullmatch(token)
        assert found is not None, token
        key, index = found[1], self._index(found[2], token)
        entries = self._metadata.get(key, ())
        if self._metadata and index >= len(entries):
            raise ModelError(f"Relay text, {place_of(token)}: the metadata section has no {key} with number {index}.")
        return key, entries[index] if index < len(entries) else None

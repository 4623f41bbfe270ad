"""Which half a module was in before it was widened: its mark, as an attribute of the module."""

from __future__ import annotations

import tvm

_MARK = "subtune.half"


def half_of(mod: tvm.IRModule) -> str:
    """The half that a widened module was in; "" for any other module."""
    return str(mod.attrs[_MARK]) if mod.attrs and _MARK in mod.attrs else ""


def with_half(mod: tvm.IRModule, half: str) -> tvm.IRModule:
    return mod.with_attr(_MARK, half)

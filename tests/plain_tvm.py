"""What tests compare with, compiled by TVM alone: quickly, for it runs once, and on little data."""

from __future__ import annotations

from typing import Any

import tvm

TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 0})
"""Without LLVM's optimisations: they would take most of the time, and change no result."""


def compiled(what: Any) -> Any:
    """A module or a PrimFunc by TVM's own pipeline."""
    return tvm.compile(what, TARGET)

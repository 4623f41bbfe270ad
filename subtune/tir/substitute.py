"""Variables of a TIR expression or statement replaced: by other expressions, or buffers by buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm_ffi
from tvm import ir


def substitute(node: Any, values: Mapping[Any, Any]) -> Any:
    """`node` with every variable that `values` names replaced by its value; in this TVM a buffer is a variable."""
    return tvm_ffi.structural_map(node, (ir.Var, lambda var: values.get(var, var)))

"""Shape arithmetic: what moves the elements of a small constant is done while importing.

Importers compute shapes in the graph (shape_of, take, concatenate, dyn.reshape): the last one needs the value.
"""

from __future__ import annotations

from math import prod

import numpy as np
from tvm.ir import GenericConst

from subtune.frontends.onnx.ops.node import Expr, known_array, shape

MAX_ELEMENTS = 1024
"""More than any shape has, fewer than any weight: large constants are folded once, by a pass."""


def small(x: Expr) -> np.ndarray | None:
    """The value of a small constant, else None."""
    if not isinstance(x, GenericConst) or prod(shape(x)) > MAX_ELEMENTS:
        return None
    return known_array(x, {})

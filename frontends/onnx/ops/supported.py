"""Which operators can be imported."""

from __future__ import annotations

import functools

from onnx import defs

from subtune.frontends.onnx.ops.control import CONTROL
from subtune.frontends.onnx.ops.converters import CONVERTERS
from subtune.frontends.onnx.ops.functions import is_function
from subtune.frontends.shape_arithmetic import OPERATORS

# Handled by the importer itself: folded from shapes, or control flow.
_BUILT_IN = frozenset(("", op) for op in OPERATORS) | frozenset(CONTROL)
_OF_DATA = frozenset({"NonZero", "Unique", "NonMaxSuppression"})
# Defined by operators that cannot be imported in any form (RandomUniformLike).
_HOPELESS = frozenset({("", "Bernoulli")})


def supported_ops() -> frozenset[tuple[str, str]]:
    """(domain, operator) of all that can be imported in at least one form; "" is ONNX's own domain.

    Besides the converters these are the operators that ONNX defines as a function; forms (attributes, dtypes)
    that are not supported are refused by name when a model uses them.
    """
    return (frozenset(CONVERTERS) | _BUILT_IN | _functions()) - _HOPELESS


@functools.cache
def _functions() -> frozenset[tuple[str, str]]:
    newest = defs.onnx_opset_version()
    names = {schema.name for schema in defs.get_all_schemas() if schema.domain == ""}
    return frozenset(("", name) for name in names if is_function("", name, newest))


def reason(domain: str, op: str) -> str:
    """Why an operator has no converter, in parentheses; "" where nobody has written one."""
    return " (its output's shape depends on data at run time)" if not domain and op in _OF_DATA else ""

"""All converters, by (domain, operator)."""

from __future__ import annotations

from subtune.frontends.onnx.ops import (
    activation,
    cast,
    contrib,
    conv,
    create,
    elementwise,
    gather,
    linear,
    movement,
    norm,
    padding,
    pool,
    quantize,
    recurrent,
    reduce,
    resize,
    sequence,
    signal,
    unary,
    vision,
)
from subtune.frontends.onnx.ops.node import Converter

_FAMILIES = (
    elementwise,
    unary,
    activation,
    cast,
    create,
    movement,
    padding,
    reduce,
    linear,
    conv,
    pool,
    norm,
    gather,
    resize,
    quantize,
    recurrent,
    signal,
    vision,
    sequence,
)

CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", op): converter for family in _FAMILIES for op, converter in family.CONVERTERS.items()
}
CONVERTERS.update({("com.microsoft", op): converter for op, converter in contrib.CONVERTERS.items()})

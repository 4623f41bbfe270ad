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
    nbits,
    norm,
    padding,
    pool,
    qdq,
    qlinear,
    qproduct,
    qreduce,
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
    qdq,
    recurrent,
    signal,
    vision,
    sequence,
)

_CONTRIBUTED = (contrib, nbits, qdq, qlinear, qreduce, qproduct)

CONVERTERS: dict[tuple[str, str], Converter] = {
    (domain, op): converter
    for domain, families in (("", _FAMILIES), ("com.microsoft", _CONTRIBUTED))
    for family in families
    for op, converter in family.CONVERTERS.items()
}

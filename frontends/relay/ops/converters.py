"""All converters, by the operator's name."""

from __future__ import annotations

from types import ModuleType

from subtune.frontends.relay.ops import (
    activation,
    boxes,
    conv,
    copies,
    create,
    dynamic,
    elementwise,
    identity,
    indexing,
    layout_transform,
    linear,
    movement,
    nms,
    norm,
    padding,
    pool,
    quantize,
    reduce,
    requantize,
    resize,
    roi,
    sampling,
    slices,
    sorting,
    unary,
)
from subtune.frontends.relay.ops.call import Converter

_FAMILIES: tuple[ModuleType, ...] = (
    activation,
    conv,
    linear,
    norm,
    pool,
    elementwise,
    unary,
    reduce,
    movement,
    slices,
    indexing,
    padding,
    quantize,
    requantize,
    resize,
    sampling,
    copies,
    create,
    identity,
    layout_transform,
    nms,
    sorting,
    boxes,
    roi,
    dynamic,
)

CONVERTERS: dict[str, Converter] = {op: made for family in _FAMILIES for op, made in family.CONVERTERS.items()}

"""Pools of volumes as pools of images: along the planes and then along the depth, where that takes less.

A maximum of maxima is the maximum, and so with means: how many elements count is the product of how many do on each
axis. What lies between the two is written and read once more, which windows that hardly overlap do not pay for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import tvm
from tvm import relax
from tvm.ir import Call

from subtune.passes.exprs import Expr, ints, op_name, shape_of
from subtune.passes.rewriter import Walk, rewrite

_IMAGES = {"relax.nn.max_pool3d": relax.op.nn.max_pool2d, "relax.nn.avg_pool3d": relax.op.nn.avg_pool2d}
_PASS_TAPS = 12
"""Taps that take as long as one element written to memory in float32 and read again."""


@dataclass(frozen=True, slots=True)
class _Windows:
    """Windows along some axes. `padding`: of the axes' begins, then of their ends."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]

    def along(self, axes: Sequence[int]) -> _Windows:
        count = len(self.kernel)
        kernel, strides, dilation = (tuple(of[a] for a in axes) for of in (self.kernel, self.strides, self.dilation))
        return _Windows(kernel, strides, dilation, tuple(self.padding[a + half] for half in (0, count) for a in axes))

    def above_ones(self) -> _Windows:
        """The same along one axis, and windows of one element along another behind it."""
        begin, end = self.padding
        one = (1,)
        return _Windows(self.kernel + one, self.strides + one, self.dilation + one, (begin, 0, end, 0))

    @property
    def is_single(self) -> bool:
        """Whether every element is a window of its own."""
        return not any(self.padding) and max(*self.kernel, *self.strides) == 1


def pool_volumes(mod: tvm.IRModule, always_in_planes: bool = False) -> tvm.IRModule:
    """All pools of three axes, in either layout, that are pools of images as well or better.

    Args:
        always_in_planes: all with channels first are pools of images, whatever that takes (`Forms.pools_images`).
    """
    return rewrite(mod, dict.fromkeys(_IMAGES, (partial(_as_images, always_in_planes),)))


def _as_images(always_in_planes: bool, walk: Walk, call: Call) -> Expr | None:
    x, attrs = call.args[0], call.attrs
    before, after = shape_of(x), shape_of(call)
    layout = str(attrs.layout)
    if before is None or after is None or layout not in ("NCDHW", "NDHWC") or bool(attrs.ceil_mode):
        return None
    windows = _Windows(*map(ints, (attrs.pool_size, attrs.strides, attrs.dilation, attrs.padding)))
    planes, depth = windows.along((1, 2)), windows.along((0,))
    is_last = layout == "NDHWC"
    read, written = ((s[1] if is_last else s[2]) for s in (before, after))
    if not planes.is_single and not depth.is_single and (is_last or not always_in_planes):
        between = read / written
        if prod(windows.kernel) <= (prod(planes.kernel) + _PASS_TAPS) * between + prod(depth.kernel):
            return None
    if is_last:
        batch, deep, height, width, channels = before
        images, rows = (batch * deep, height, width, channels), (batch, deep, after[2] * after[3], channels)
    else:
        batch, channels, deep, height, width = before
        images, rows = (batch, channels * deep, height, width), (batch, channels, deep, after[3] * after[4])
    for windows, view in ((planes, images), (depth.above_ones(), rows)):
        if not windows.is_single:
            x = walk.emit(_of_images(call, walk.emit(relax.op.reshape(x, view)), windows))
    return relax.op.reshape(x, after)


def _of_images(call: Call, images: Expr, windows: _Windows) -> Expr:
    layout = str(call.attrs.layout).replace("D", "")
    return _IMAGES[op_name(call)](
        images,
        windows.kernel,
        windows.strides,
        windows.padding,
        windows.dilation,
        False,
        bool(call.attrs.count_include_pad),
        layout,
        layout,
    )

"""Paddings that a convolution can do itself, and those that add nothing.

    conv2d(pad(x, [0, 0, 0, 0, 1, 2, 1, 2]), w)  ->  conv2d(x, w, padding=[1, 1, 2, 2])         of zeros

Some frameworks write every padding as an operator of its own. In the convolution's attributes it is one for whoever
looks at it: which kernels may be joined, and how a kernel reads beyond the border.
"""

from __future__ import annotations

from tvm.ir import Call

from subtune.passes.exprs import CONVOLUTIONS, Expr, convolved, ints
from subtune.passes.rewriter import Rules, Walk


def drop_pad(walk: Walk, call: Call) -> Expr | None:
    """`pad(x, [0, 0, ...])` -> `x`."""
    return None if any(ints(call.attrs.pad_width)) else call.args[0]


def absorb_pad(walk: Walk, call: Call) -> Expr | None:
    """The rule on convolutions."""
    pad, attrs = walk.defined_by(call.args[0], "relax.nn.pad"), call.attrs
    if pad is None or str(pad.attrs.pad_mode) != "constant" or float(pad.attrs.pad_value) != 0.0:
        return None
    layout = str(attrs.data_layout)
    if not layout.isalpha() or layout != layout.upper():
        return None
    widths = ints(pad.attrs.pad_width)
    pairs = [widths[2 * axis : 2 * axis + 2] for axis in range(len(layout))]
    spatial = [axis for axis, name in enumerate(layout) if name not in "NC"]
    if any(min(pair) < 0 or (any(pair) and axis not in spatial) for axis, pair in enumerate(pairs)):
        return None
    more = [pairs[axis][side] for side in (0, 1) for axis in spatial]
    padding = [own + width for own, width in zip(ints(attrs.padding), more, strict=True)]
    return convolved(call, pad.args[0], call.args[1], padding=padding)


PADS: Rules = {"relax.nn.pad": (drop_pad,), **dict.fromkeys(CONVOLUTIONS, (absorb_pad,))}

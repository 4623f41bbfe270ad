"""Channels last: every convolution with channels first becomes one with channels last between two permutations.

    conv2d(x, W)  ->  permute(conv2d(permute(x, NHWC), permute(W, OHWI)), NCHW)

The permutations of activations then travel (`layout_sink`) until they cancel; those of constants are folded. TVM
legalises channels-last convolutions of 1, 2 and 3 dims, grouped and depthwise ones included, with O...I weights.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import Call

from subtune.passes.exprs import Expr, convolved, op_name, shape_of
from subtune.passes.fold_constants import FOLD
from subtune.passes.halves import half_of
from subtune.passes.layout_axes import to_first
from subtune.passes.layout_conv_transpose import as_convolution
from subtune.passes.layout_interpolation import interpolations_in_planes
from subtune.passes.layout_planes import all_in_planes, convolutions
from subtune.passes.layout_pointwise import ALONE, POINTWISE
from subtune.passes.layout_rows import ROWS
from subtune.passes.layout_sink import SINK
from subtune.passes.normalize_cleanup import CLEANUP, permute_is_reshape
from subtune.passes.rewriter import Rules, Walk, merged, rewrite

_LAYOUTS = {
    "relax.nn.conv1d": ("NCW", "OIW"),
    "relax.nn.conv2d": ("NCHW", "OIHW"),
    "relax.nn.conv3d": ("NCDHW", "OIDHW"),
}


def last(rank: int) -> list[int]:
    """The permutation that moves axis 1 to the end."""
    return [0, *range(2, rank), 1]


def channels_last(walk: Walk, call: Call) -> Expr | None:
    """The rule on convolutions."""
    data_layout, kernel_layout = _LAYOUTS[op_name(call)]
    attrs = call.attrs
    if str(attrs.data_layout) != data_layout or str(attrs.kernel_layout) != kernel_layout:
        return None
    if str(attrs.out_layout) != data_layout or shape_of(call) is None:
        return None
    rank = len(data_layout)
    spatial = data_layout[2:]
    data, weight = (relax.op.permute_dims(arg, last(rank)) for arg in call.args)
    layouts = {"data_layout": f"N{spatial}C", "kernel_layout": f"O{spatial}I", "out_layout": f"N{spatial}C"}
    result = convolved(call, data, weight, **layouts)
    return relax.op.permute_dims(result, to_first(rank))


LAYOUT: Rules = merged(
    dict.fromkeys(_LAYOUTS, (channels_last,)),
    {f"relax.nn.conv{n}d_transpose": (as_convolution,) for n in (1, 2, 3)},
    SINK,
    CLEANUP,
    FOLD,
)


def channels_to_last(
    mod: tvm.IRModule,
    keeps_planes: bool = False,
    reads_planes: bool = False,
    planes_of_group: int = 1,
    grouped_halves: frozenset[str] = frozenset(),
) -> tvm.IRModule:
    """Convolutions channels last, and permutations moved to where they cancel.

    Args:
        keeps_planes: not where all convolutions are depthwise, or one is a product that takes less time than to read
            its input: they gain less than permutations cost.
        reads_planes: nor the only one, where it is a product, nor interpolations where there is none.
        planes_of_group: with `keeps_planes`, nor where the groups of all read so many channels each, at most.
        grouped_halves: but in a model of one of these halves, in which they are products like others.
    """
    if reads_planes:
        mod = interpolations_in_planes(mod)
    most = 1 if half_of(mod) in grouped_halves else planes_of_group
    if keeps_planes and all_in_planes(mod, most):
        # groups may be products of few channels, whose pixels are one long row
        return rewrite(mod, merged(POINTWISE, ROWS, CLEANUP, FOLD) if most > 1 else merged(ROWS, CLEANUP, FOLD))
    pointwise = ALONE if reads_planes and len(convolutions(mod)) == 1 else POINTWISE
    return rewrite(mod, merged(pointwise, LAYOUT) if keeps_planes else LAYOUT)


def settle_permutes(mod: tvm.IRModule) -> tvm.IRModule:
    """Permutations that only move unit dims -> reshapes, which cost nothing.

    Last of the layout passes: a reshape no longer tells the others which way the channels went.
    """
    return rewrite(mod, merged({"relax.permute_dims": (permute_is_reshape,)}, CLEANUP, FOLD))

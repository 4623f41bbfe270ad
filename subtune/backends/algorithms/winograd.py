"""Winograd's algorithm for convolutions: to which it applies."""

from __future__ import annotations

from subtune.patterns.contraction import Contraction


def winograd_obstacle(info: Contraction) -> str:
    """Why Winograd's algorithm does not apply; empty for a 3x3 convolution of stride 1, NHWC x constant OHWI.

    Operands of bfloat16 are widened: transforms and products are in float32.
    """
    if info.acc_dtype != "float32" or (info.a.dtype, info.b.dtype) not in (("float32",) * 2, ("bfloat16",) * 2):
        return "not in float32"
    if len(info.axes) != 7 or [axis.role for axis in info.axes] != [*"mmmnkkk"]:
        return "not a 2-D convolution"
    if info.a.windows[1:3] != ((1, 1, 4, 1), (2, 1, 5, 1)) or info.a.axes != (0, -1, -1, 6):
        return "not an NHWC convolution of stride and dilation 1"
    if info.axes[4].extent != 3 or info.axes[5].extent != 3 or info.b.axes != (3, 4, 5, 6):
        return "the window is not 3x3"
    return "" if info.b.is_constant else "the weights are no constant"

"""A transposed convolution as an ordinary one, whose output channels hold the pixels between the strides.

TVM legalises transposed convolutions with channels first only, and as a convolution over an input full of zeros. With
stride s and kernel k, output pixel s * q + r sums w[s * j + r] * x[q - j] over j < J = ceil(k / s): a convolution with
a kernel of J taps and s times the output channels per dim, no zeros multiplied (but those that fill k up to s * J).

    conv_transpose(x, W)  ->  crop(depth_to_space(conv(x, W')))
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from subtune.passes.exprs import Expr, array_of, ints, make_const, op_name, shape_of
from subtune.passes.layout_axes import to_first
from subtune.passes.rewriter import Walk

_LAYOUTS = {
    "relax.nn.conv1d_transpose": ("NCW", "IOW", relax.op.nn.conv1d),
    "relax.nn.conv2d_transpose": ("NCHW", "IOHW", relax.op.nn.conv2d),
    "relax.nn.conv3d_transpose": ("NCDHW", "IODHW", relax.op.nn.conv3d),
}


def as_convolution(walk: Walk, call: Any) -> Expr | None:
    """The rule. Not for dilations, weights that vary, or output padding that no kernel tap reaches."""
    data_layout, kernel_layout, conv = _LAYOUTS[op_name(call)]
    attrs = call.attrs
    if (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)) != (
        data_layout,
        kernel_layout,
        data_layout,
    ):
        return None
    if any(d != 1 for d in ints(attrs.dilation)):
        return None
    groups = int(attrs.groups)
    weight, shape, out = array_of(call.args[1]), shape_of(call.args[0]), shape_of(call)
    if weight is None or shape is None or out is None:
        return None
    rank = len(shape)
    n = rank - 2
    kernel, extents, sizes = weight.shape[2:], shape[2:], out[2:]
    strides = _per_dim(ints(attrs.strides), n)
    before = ints(attrs.padding)[:n] if len(attrs.padding) > 1 else ints(attrs.padding) * n
    taps = tuple(-(-k // s) for k, s in zip(kernel, strides, strict=True))
    full = tuple(s * (e + t - 1) for s, e, t in zip(strides, extents, taps, strict=True))
    if any(b + size > f for b, size, f in zip(before, sizes, full, strict=True)):
        return None
    spatial = data_layout[2:]
    result = conv(
        relax.op.permute_dims(call.args[0], [0, *range(2, rank), 1]),
        make_const(np.concatenate([_phases(part, strides, taps) for part in np.split(weight, groups)])),
        padding=[t - 1 for t in taps] * 2,
        groups=groups,
        data_layout=f"N{spatial}C",
        kernel_layout=f"O{spatial}I",
        out_layout=f"N{spatial}C",
        out_dtype=attrs.out_dtype,
    )
    channels = weight.shape[1]
    if any(s > 1 for s in strides):
        coarse = [e + t - 1 for e, t in zip(extents, taps, strict=True)]
        split = relax.op.reshape(result, (shape[0], *coarse, groups, *strides, channels))
        order = [0, *(axis for i in range(n) for axis in (1 + i, 2 + n + i)), 1 + n, 2 + 2 * n]
        result = relax.op.reshape(relax.op.permute_dims(split, order), (shape[0], *full, groups * channels))
    if sizes != full:
        ends = [b + size for b, size in zip(before, sizes, strict=True)]
        result = relax.op.strided_slice(result, list(range(1, 1 + n)), list(before), ends, [1] * n)
    return relax.op.permute_dims(result, to_first(rank))


def _per_dim(values: tuple[int, ...], n: int) -> tuple[int, ...]:
    return values * n if len(values) == 1 else values


def _phases(weight: np.ndarray, strides: tuple[int, ...], taps: tuple[int, ...]) -> np.ndarray:
    """[I, O, k...] -> [s... * O, J..., I]: per phase its taps, last first."""
    n = len(strides)
    fill = [(0, 0), (0, 0), *((0, t * s - k) for t, s, k in zip(taps, strides, weight.shape[2:], strict=True))]
    padded = np.pad(weight, fill)
    split = padded.reshape(*weight.shape[:2], *(d for t, s in zip(taps, strides, strict=True) for d in (t, s)))
    flipped = np.flip(split, axis=tuple(2 + 2 * i for i in range(n)))
    order = [*(3 + 2 * i for i in range(n)), 1, *(2 + 2 * i for i in range(n)), 0]
    moved = np.transpose(flipped, order)
    phases = int(np.prod(strides)) * weight.shape[1]
    return np.ascontiguousarray(moved.reshape(phases, *taps, weight.shape[0]))

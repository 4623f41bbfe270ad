"""A transposed convolution as ordinary ones: one with the pixels between the strides as channels, or several.

TVM legalises transposed convolutions with channels first only, and as a convolution over an input full of zeros. With
stride s and kernel k, output pixel s * q + r sums w[s * j + r] * x[q - j] over j < J = ceil(k / s): a convolution with
a kernel of J taps and s times the output channels per dim, no zeros multiplied (but those that fill k up to s * J).

    conv_transpose(x, W)  ->  crop(depth_to_space(conv(x, W')))

Where too much of that is zeros or is cropped, the pixels of each r are a convolution of their own: of 3 x 3 taps with
stride 2 nine are multiplied instead of sixteen.

    conv_transpose(x, W)  ->  depth_to_space(concat(conv(x, W[0::s]), conv(x, W[1::s]), ...))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
from tvm import relax
from tvm.ir import Call

from subtune.passes.exprs import Expr, array_of, ints, make_const, op_name, shape_of
from subtune.passes.layout_axes import to_first
from subtune.passes.rewriter import Walk

_LAYOUTS = {
    "relax.nn.conv1d_transpose": ("NCW", "IOW", relax.op.nn.conv1d),
    "relax.nn.conv2d_transpose": ("NCHW", "IOHW", relax.op.nn.conv2d),
    "relax.nn.conv3d_transpose": ("NCDHW", "IODHW", relax.op.nn.conv3d),
}


def as_convolution(walk: Walk, call: Call) -> Expr | None:
    """The rule. Not for dilations, weights that vary, or output padding that no kernel tap reaches."""
    weight = array_of(call.args[1])
    return None if weight is None else convolutions(call, weight, lambda kernel, _: make_const(kernel))


def convolutions(call: Call, weight: np.ndarray, operand: Callable[[np.ndarray, int], Expr]) -> Expr | None:
    """The ordinary convolutions of `weight` that `call` is.

    Args:
        operand: their weights, of a kernel [groups * r... * O / groups, J..., I / groups] and of how many r it has.
    """
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
    shape, out = shape_of(call.args[0]), shape_of(call)
    if shape is None or out is None:
        return None
    n = len(shape) - 2
    before = ints(attrs.padding)[:n] if len(attrs.padding) > 1 else ints(attrs.padding) * n
    form = _Form(weight, shape, out[2:], _per_dim(ints(attrs.strides), n), before, groups)
    if any(b + size > full for b, size, full in zip(before, form.sizes, form.full, strict=True)):
        return None
    spatial = data_layout[2:]
    data = relax.op.permute_dims(call.args[0], [0, *range(2, n + 2), 1])

    def convolved(taps: Sequence[np.ndarray], padding: list[int]) -> Expr:
        return conv(
            data,
            operand(_kernel(taps, groups), len(taps)),
            padding=padding,
            groups=groups,
            data_layout=f"N{spatial}C",
            kernel_layout=f"O{spatial}I",
            out_layout=f"N{spatial}C",
            out_dtype=attrs.out_dtype,
        )

    phases = form.phases()
    if len(phases) == 1 or (phases and form.is_worth(phases)):
        parts = [convolved([phase.taps], phase.padding) for phase in phases]
        joined = relax.op.concat(parts, axis=n + 1) if len(parts) > 1 else parts[0]
        result = form.interleaved(joined, phases[0].sizes, 1)
    else:
        result = convolved(form.all_taps(), [t - 1 for t in form.taps] * 2)
        if any(s > 1 for s in form.strides):
            result = form.interleaved(result, form.coarse, groups)
        if form.sizes != form.full:
            ends = [b + size for b, size in zip(before, form.sizes, strict=True)]
            result = relax.op.strided_slice(result, list(range(1, 1 + n)), list(before), ends, [1] * n)
    return relax.op.permute_dims(result, to_first(n + 2))


_PER_KERNEL = 0.025
"""Of the products, what a kernel more costs: it reads the input again, and what it gives is joined to the others'."""


@dataclass(frozen=True, slots=True)
class _Phase:
    """The output's pixels of one r per dim: a convolution with some of the taps.

    Attributes:
        taps: [I, O / groups, J...], a view of the weight.
        padding: before each dim, then after each.
        sizes: of its output.
    """

    taps: np.ndarray
    padding: list[int]
    sizes: tuple[int, ...]

    @property
    def products(self) -> int:
        """Per input channel and output channel."""
        return prod(self.sizes) * prod(self.taps.shape[2:])


@dataclass(frozen=True, slots=True)
class _Form:
    """What a transposed convolution computes.

    Attributes:
        weight: [I, O / groups, k...].
        shape: of the input, channels first.
        sizes: the output's dims in space.
        before: pixels cropped before the first.
    """

    weight: np.ndarray
    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    before: tuple[int, ...]
    groups: int

    @property
    def taps(self) -> tuple[int, ...]:
        """J per dim."""
        return tuple(-(-k // s) for k, s in zip(self.weight.shape[2:], self.strides, strict=True))

    @property
    def coarse(self) -> tuple[int, ...]:
        """The pixels that one convolution for all r gives, per dim."""
        return tuple(e + t - 1 for e, t in zip(self.shape[2:], self.taps, strict=True))

    @property
    def full(self) -> tuple[int, ...]:
        return tuple(s * c for s, c in zip(self.strides, self.coarse, strict=True))

    @property
    def products(self) -> int:
        """Of one convolution for all r, per input channel and output channel."""
        return prod(self.full) * prod(self.taps)

    def is_worth(self, phases: Sequence[_Phase]) -> bool:
        """Whether so many fewer products pay for a kernel each."""
        return (1 + _PER_KERNEL * len(phases)) * sum(phase.products for phase in phases) < self.products

    def interleaved(self, result: Expr, coarse: tuple[int, ...], groups: int) -> Expr:
        """[N, q..., groups * r... * O] -> [N, s * q + r..., groups * O]."""
        n, channels = len(coarse), self.weight.shape[1] * self.groups // groups
        split = relax.op.reshape(result, (self.shape[0], *coarse, groups, *self.strides, channels))
        order = [0, *(axis for i in range(n) for axis in (1 + i, 2 + n + i)), 1 + n, 2 + 2 * n]
        fine = (s * q for s, q in zip(self.strides, coarse, strict=True))
        return relax.op.reshape(relax.op.permute_dims(split, order), (self.shape[0], *fine, groups * channels))

    def phases(self) -> list[_Phase]:
        """In the order of r; none where one has no taps, lacks pixels at an edge, or has fewer than another."""
        found = []
        for at in product(*(range(s) for s in self.strides)):
            shifts = [divmod(p + b, s) for p, b, s in zip(at, self.before, self.strides, strict=True)]
            own = _every(self.weight, [r for _, r in shifts], self.strides)
            taps = own.shape[2:]
            left = [t - 1 - q for t, (q, _) in zip(taps, shifts, strict=True)]
            sizes = tuple(-(-(size - p) // s) for size, p, s in zip(self.sizes, at, self.strides, strict=True))
            right = [m - e - lo + t - 1 for m, e, lo, t in zip(sizes, self.shape[2:], left, taps, strict=True)]
            if min(*taps, *sizes) < 1 or min(*left, *right) < 0:
                return []
            found.append(_Phase(own, [*left, *right], sizes))
        return found if len({phase.sizes for phase in found}) == 1 else []

    def all_taps(self) -> list[np.ndarray]:
        """Of every r, filled up to J with zeros."""
        fill = [(0, t * s - k) for t, s, k in zip(self.taps, self.strides, self.weight.shape[2:], strict=True)]
        padded = np.pad(self.weight, [(0, 0), (0, 0), *fill])
        return [_every(padded, at, self.strides) for at in product(*(range(s) for s in self.strides))]


def _every(weight: np.ndarray, first: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """The taps `first`, `first` + stride, ... of every dim."""
    return weight[(slice(None), slice(None), *(slice(r, None, s) for r, s in zip(first, strides, strict=True)))]


def _kernel(taps: Sequence[np.ndarray], groups: int) -> np.ndarray:
    """[I, O / groups, J...] of every r -> [groups * r... * O / groups, J..., I / groups], the last tap first."""
    dims = range(2, taps[0].ndim)
    by_group = zip(*(np.split(own, groups) for own in taps), strict=True)
    parts = [np.transpose(np.flip(own, tuple(dims)), [1, *dims, 0]) for group in by_group for own in group]
    return np.ascontiguousarray(np.concatenate(parts))


def _per_dim(values: tuple[int, ...], n: int) -> tuple[int, ...]:
    return values * n if len(values) == 1 else values

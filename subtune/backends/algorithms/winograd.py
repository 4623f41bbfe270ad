"""Winograd's algorithm for convolutions: its transforms, its weights, and to which it applies.

    Y = A^T [(G w G^T) * (B^T x B)] A

Sources: see `cpu.families.winograd`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import prod

import numpy as np

from subtune.patterns.contraction import Contraction

Matrix = tuple[tuple[float, ...], ...]

_POINTS = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(2, 3), Fraction(-2, 3), Fraction(3, 2), Fraction(-3, 2)),
}
"""Interpolation points beside infinity. Reciprocal pairs near 1 keep the powers of F(4) small: a quarter of the error
of the usual 0, 1, -1, 2, -2."""


def _transforms(m: int) -> tuple[Matrix, Matrix, Matrix]:
    """(B^T, G, A^T) of F(m, 3), by the Cook-Toom construction: products of polynomials from their values at points."""
    points = _POINTS[m]
    a = m + 2

    def monic(roots: list[Fraction]) -> list[Fraction]:
        coefficients = [Fraction(1)]
        for root in roots:
            shifted, scaled = [Fraction(0), *coefficients], [*(root * c for c in coefficients), Fraction(0)]
            coefficients = [x - y for x, y in zip(shifted, scaled, strict=True)]
        return coefficients + [Fraction(0)] * (a - len(coefficients))

    others = [[q for q in points if q != p] for p in points]
    norms = [prod(p - q for q in rest) for p, rest in zip(points, others, strict=True)]
    bt = [monic(rest) for rest in others] + [monic(list(points))]
    g = [[p**k / norm for k in range(3)] for p, norm in zip(points, norms, strict=True)] + [[0, 0, 1]]
    at = [[*(p**k for p in points), int(k == m - 1)] for k in range(m)]
    return tuple(tuple(tuple(map(float, row)) for row in matrix) for matrix in (bt, g, at))  # type: ignore[return-value]


TRANSFORMS: dict[int, tuple[Matrix, Matrix, Matrix]] = {m: _transforms(m) for m in _POINTS}


@dataclass(frozen=True, slots=True)
class WinogradWeights:
    """OHWI weights `[OC, 3, 3, IC]` as G w G^T, packed `[m + 2][m + 2][OC / nr][IC][nr]`; computed in float64.

    `in_channels` are those of one group.
    """

    m: int
    nr: int
    out_channels: int
    in_channels: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.m + 2, self.m + 2, self.out_channels // self.nr, self.in_channels, self.nr)

    def __call__(self, array: np.ndarray) -> np.ndarray:
        g = np.array(TRANSFORMS[self.m][1])
        outer, a = self.out_channels // self.nr, self.m + 2
        # The weights are brought into the packed order first, as the smaller of the two; then G w G^T of all pairs of
        # channels is one product with the Kronecker square of G.
        packed = array.reshape(outer, self.nr, 9, self.in_channels).transpose(2, 0, 3, 1)
        u = np.kron(g, g) @ packed.reshape(9, -1).astype(np.float64)
        return u.astype(np.float32).reshape(a, a, outer, self.in_channels, self.nr)


IntegerMatrix = tuple[tuple[int, ...], ...]

INTEGER_TRANSFORMS: tuple[IntegerMatrix, IntegerMatrix, IntegerMatrix] = (
    (
        (4, 0, -5, 0, 1, 0),
        (0, -4, -4, 1, 1, 0),
        (0, 4, -4, -1, 1, 0),
        (0, -2, -1, 2, 1, 0),
        (0, 2, -1, -2, 1, 0),
        (0, 4, 0, -5, 0, 1),
    ),
    ((6, 0, 0), (-1, -1, -1), (-1, 1, -1), (1, 2, 4), (1, -2, 4), (0, 0, 6)),
    ((1, 4, 4, 1, 1, 0), (0, 2, -2, 1, -1, 0), (0, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 1)),
)
"""(B^T, G, A^T) of F(4, 3) at 0, 1, -1, 2, -2 and infinity, every fraction multiplied away: a row of A^T gives
`INTEGER_FACTORS` times its output. B^T d B of differences of bytes, and G w G^T of an int8, fit int16. A^T has powers
of two alone: other factors are where the weights are transformed, which costs nothing."""

INTEGER_FACTORS = (24, 12, 6, 6)

ZERO_OF_BYTES = {"uint8": 128, "int8": 0}
"""What is taken from a byte, so that the sums are half as large; the weights carry what that takes from each sum."""

INTEGER_SUM_BITS = 25
INTEGER_DEPTH = (1 << INTEGER_SUM_BITS) // (128 * 128 * 9)
"""Channels up to which sums are exact whatever the weights. A sum modulo 2^32, times up to 24 * 24 = 64 * 9, gives the
sum itself where that is below 2^25: 9 has an inverse, and 64 is a shift."""


@dataclass(frozen=True, slots=True)
class WinogradWords:
    """OHWI weights `[OC, 3, 3, IC]` of int8 as pairs of int16 of G w G^T in `INTEGER_TRANSFORMS`, each an int32.

    `[6][6][OC / nr][IC / 2 + 1][nr]`; the last row of the first element is what `zero`, taken from every activation,
    takes from the sums.
    """

    nr: int
    out_channels: int
    in_channels: int
    zero: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (6, 6, self.out_channels // self.nr, self.in_channels // 2 + 1, self.nr)

    def __call__(self, array: np.ndarray) -> np.ndarray:
        g = np.array(INTEGER_TRANSFORMS[1], np.int32)
        outer = self.out_channels // self.nr
        packed = array.reshape(outer, self.nr, 9, self.in_channels).transpose(2, 0, 3, 1).astype(np.int32)
        u = (np.kron(g, g) @ packed.reshape(9, -1)).astype(np.int16)
        pairs = u.reshape(36, outer, self.in_channels // 2, 2, self.nr).swapaxes(-1, -2)
        words = np.zeros((36, *self.shape[2:]), np.int32)
        words[:, :, :-1] = np.ascontiguousarray(pairs).view(np.int32)[..., 0]
        words[0, :, -1] = self.zero * packed.sum((0, 2))
        return words.reshape(self.shape)


def integer_obstacle(info: Contraction, sum_bits: int = 32) -> str:
    """Why the algorithm does not apply in integers; empty for a 3x3 convolution of bytes by constant int8.

    Args:
        sum_bits: sums of differences of bytes are known to stay below 2 to this power (`SUM_BITS_ATTR`).
    """
    if info.a.dtype not in ZERO_OF_BYTES or (info.b.dtype, info.acc_dtype) != ("int8", "int32"):
        return "not of bytes by int8"
    if info.b.shape[-1] > INTEGER_DEPTH and sum_bits > INTEGER_SUM_BITS:
        return f"sums over {info.b.shape[-1]} channels may be too large to be exact"
    return _shape_obstacle(info, takes_groups=False)


def winograd_obstacle(info: Contraction, takes_groups: bool = False) -> str:
    """Why Winograd's algorithm does not apply; empty for a 3x3 convolution of stride 1, NHWC x constant OHWI.

    Operands of bfloat16 are widened: transforms and products are in float32.

    Args:
        takes_groups: a grouped convolution will do as well; its weights have the channels of one group.
    """
    if info.acc_dtype != "float32" or (info.a.dtype, info.b.dtype) not in (("float32",) * 2, ("bfloat16",) * 2):
        return "not in float32"
    return _shape_obstacle(info, takes_groups)


def _shape_obstacle(info: Contraction, takes_groups: bool) -> str:
    if len(info.axes) != 7 or [axis.role for axis in info.axes] != [*"mmmnkkk"]:
        return "not a 2-D convolution"
    channel = -1 if info.per_group and takes_groups else 6
    if info.a.windows[1:3] != ((1, 1, 4, 1), (2, 1, 5, 1)) or info.a.axes != (0, -1, -1, channel):
        return "not an NHWC convolution of stride and dilation 1"
    if info.axes[4].extent != 3 or info.axes[5].extent != 3 or info.b.axes != (3, 4, 5, 6):
        return "the window is not 3x3"
    return "" if info.b.is_constant else "the weights are no constant"

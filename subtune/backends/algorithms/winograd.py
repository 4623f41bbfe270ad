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


def winograd_obstacle(info: Contraction, takes_groups: bool = False) -> str:
    """Why Winograd's algorithm does not apply; empty for a 3x3 convolution of stride 1, NHWC x constant OHWI.

    Operands of bfloat16 are widened: transforms and products are in float32.

    Args:
        takes_groups: a grouped convolution will do as well; its weights have the channels of one group.
    """
    if info.acc_dtype != "float32" or (info.a.dtype, info.b.dtype) not in (("float32",) * 2, ("bfloat16",) * 2):
        return "not in float32"
    if len(info.axes) != 7 or [axis.role for axis in info.axes] != [*"mmmnkkk"]:
        return "not a 2-D convolution"
    channel = -1 if info.per_group and takes_groups else 6
    if info.a.windows[1:3] != ((1, 1, 4, 1), (2, 1, 5, 1)) or info.a.axes != (0, -1, -1, channel):
        return "not an NHWC convolution of stride and dilation 1"
    if info.axes[4].extent != 3 or info.axes[5].extent != 3 or info.b.axes != (3, 4, 5, 6):
        return "the window is not 3x3"
    return "" if info.b.is_constant else "the weights are no constant"

"""What policies and templates know of two contractions in a row: matmul, elementwise or softmax, matmul."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from subtune.backends.cpu.device import CPUModel
from subtune.patterns.anchor import Contraction, Operand


@dataclass(frozen=True, slots=True)
class Chain:
    """What policies need: both contractions over axes (batch..., m, n, k); `m` is the axis whose rows are shared.

    The first one's n axis is the second one's k axis. An operand's `param` is -1 where it is computed on the way.
    `is_softmax`: rows are normalised between the two. `b_is_contiguous`, `e_is_contiguous`: the right operands lie
    with their columns side by side, so that packing them, or reading them where they lie, moves whole vectors.
    """

    first: Contraction
    second: Contraction
    is_softmax: bool
    b_is_contiguous: bool
    e_is_contiguous: bool

    @property
    def batch(self) -> int:
        return prod(axis.extent for axis in self.first.of_role("batch"))

    @property
    def m(self) -> int:
        return self.first.of_role("m")[0].extent

    @property
    def n1(self) -> int:
        return self.first.n.extent

    @property
    def n2(self) -> int:
        return self.second.n.extent

    @property
    def k(self) -> int:
        return self.first.of_role("k")[0].extent

    def cached_bytes(self, mb: int, nr: int) -> int:
        """What `mb` rows hold between the contractions, their columns padded to whole panels of `nr`."""
        return mb * padded(self.n1, nr) * 4 * (2 if self.is_softmax else 1)


def cache_limit_bytes(device: CPUModel) -> int:
    """What one thread may keep between the contractions: its L2, or a quarter of its share of a larger L3."""
    return max(device.l2_bytes, device.l3_bytes // (4 * device.threads))


def padded(extent: int, tile: int) -> int:
    return -(-extent // tile) * tile


def packs_ahead(operand: Operand) -> bool:
    """Whether an operand is a constant that can be packed at compile time: every dim one axis, or of extent one."""
    named = [axis for axis in operand.axes if axis >= 0]
    plain = all(axis >= 0 or dim == 1 for axis, dim in zip(operand.axes, operand.shape, strict=True))
    return operand.is_constant and plain and len(set(named)) == len(named)

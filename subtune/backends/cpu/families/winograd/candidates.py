"""Candidates for Winograd convolution: which F(m), which GEMM tile, stages fused over rows of tiles or not.

Three terms: the products at the micro-kernel's rate; the transformed weights, streamed once, or once per row of tiles
when fused; the transformed activations and products, written and read at the bandwidth of where they stay.
In a grouped convolution the products are over the channels of one group, and a panel of columns is within one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, prod

from subtune.backends.algorithms.winograd import integer_obstacle, winograd_obstacle
from subtune.backends.base import OUTER
from subtune.backends.cpu.balance import imbalance, shares_out
from subtune.backends.cpu.bandwidth import bytes_per_cycle, crossing_cycles
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.families.winograd.arithmetic import INTEGERS, arithmetic_of
from subtune.backends.cpu.family import ALGORITHM, REGISTERS, CPUProblem
from subtune.backends.cpu.math import int16_ops
from subtune.core.candidate import Candidate
from subtune.core.workload import SUM_BITS_ATTR
from subtune.patterns.contraction import Contraction

_TRANSFORM_OPS_PER_ELEMENT = {2: 4.0, 4: 9.0}  # vector additions and multiplications per element of V and of M
_INTEGER_OPS_PER_ELEMENT = 6.0  # rows share their sums
_MAX_ROWS = 14
_EFFICIENCY = 0.9
_HIDDEN = 0.03


@dataclass(frozen=True, slots=True)
class Knobs:
    """F(m x m, 3 x 3); tiles of `mr` x `nr` of its products; `fuse`: the stages run row of tiles by row of tiles.

    With `shares` every thread transforms all of the input and computes its share of the columns from it, panel by
    panel: it waits for no other, and reads nothing that another core has just written.
    """

    m: int
    mr: int = field(metadata=REGISTERS)
    nr: int = field(metadata=REGISTERS)
    fuse: bool = field(metadata=ALGORITHM)
    prefetch: bool = False
    """The next panel of weights is fetched meanwhile."""
    passes: int = 0
    """By so many tiles at most; 0: by all."""
    shares: bool = field(default=False, metadata=OUTER)


def accepts(problem: CPUProblem) -> str:
    anchor = problem.pattern
    return obstacle(anchor, problem) if isinstance(anchor, Contraction) else "no contraction"


def obstacle(anchor: Contraction, problem: CPUProblem) -> str:
    """Why the algorithm does not apply; "" where it does."""
    if problem.workload.num_outputs != 1:
        return "several outputs"
    lanes = problem.device.lanes()
    if arithmetic_of(anchor) is INTEGERS:
        return _integer_obstacle(anchor, problem)
    if problem.numerics.exact:
        return "rounds otherwise than the model says"
    if reason := winograd_obstacle(anchor, takes_groups=True):
        return reason
    if anchor.a.shape[-1] % lanes or anchor.n.extent % lanes:
        return f"channels are no multiples of the {lanes} vector lanes"
    if 2 * anchor.lanes(lanes) < lanes:
        return f"the {anchor.per_group} columns of a group are no vectors of half the {lanes} lanes"
    return ""


def _integer_obstacle(anchor: Contraction, problem: CPUProblem) -> str:
    device, attrs = problem.device, problem.workload.func.attrs
    if reason := integer_obstacle(anchor, int(attrs.get(SUM_BITS_ATTR, 32)) if attrs else 32):
        return reason
    lanes = device.lanes()
    if int16_ops.pair_dots(device.features, lanes) is None:
        return "no instruction multiplies pairs of int16"
    if anchor.a.shape[-1] % (2 * lanes) or anchor.n.extent % lanes:
        return f"channels are no multiples of {2 * lanes} and {lanes} vector lanes"
    return ""


def candidates(problem: CPUProblem) -> list[Candidate]:
    anchor, device = problem.pattern, problem.device
    lanes = anchor.lanes(device.lanes())
    batch, out_h, out_w = (axis.extent for axis in anchor.of_role("m"))
    depth, out_channels = anchor.b.shape[-1], anchor.n.extent
    by = arithmetic_of(anchor)
    found = []
    for m in (4,) if by is INTEGERS else (2, 4):
        streams = device.comes_from_memory((m + 2) ** 2 * depth * out_channels * 4 // by.count)
        tiles_h, tiles_w = ceil(out_h / m), ceil(out_w / m)
        for fuse, shares in ((False, False), (False, True), (True, False)):
            rows = tiles_w if fuse else batch * tiles_h * tiles_w
            for vectors in (v for v in (1, 2, 3, 4) if (anchor.per_group or out_channels) % (v * lanes) == 0):
                if shares and not shares_columns(anchor, vectors * lanes, device):
                    continue
                for mr in range(2, _MAX_ROWS + 1):
                    if (fuse and rows % mr) or mr >= 2 * rows:
                        continue
                    if mr * vectors + vectors + 1 > device.vector_registers:
                        continue
                    tiles = (batch, tiles_h, tiles_w)
                    nr = vectors * lanes
                    knobs = Knobs(m, mr, nr, fuse, prefetch=streams and rows // mr <= nr, shares=shares)
                    seconds = _predict(anchor, knobs, tiles, device)
                    found.append(Candidate.of("winograd", knobs, seconds))
    return found


def shares_columns(anchor: Contraction, nr: int, device: CPUModel) -> bool:
    """Whether every thread gets as many panels of columns, each of which needs all channels of the input."""
    panels, rest = divmod(anchor.n.extent, nr)
    return not anchor.per_group and not rest and shares_out(panels, device)


def _predict(anchor: Contraction, knobs: Knobs, grid: tuple[int, int, int], device: CPUModel) -> float:
    """Seconds of one run on all threads; `grid`: images, and tiles of one along height and width.

    Channels that are summed over count in words, each of 4 bytes, in either arithmetic.
    """
    m, mr, fuse = knobs.m, knobs.mr, knobs.fuse
    by = arithmetic_of(anchor)
    cin, depth, cout = anchor.a.shape[-1] // by.count, anchor.b.shape[-1] // by.count, anchor.n.extent
    elements = (m + 2) ** 2
    tiles = prod(grid)
    lanes = device.lanes()
    vectors = knobs.nr // anchor.lanes(lanes)
    of_panel = knobs.nr * 4 / bytes_per_cycle(knobs.nr * 4 * depth, device)  # once for every tile
    fma, loads = mr * vectors / device.fma_per_cycle, (mr + vectors) / 2.0
    per_k = max(fma, loads, float(device.fma_latency), of_panel) + _HIDDEN * (fma + loads)
    products = elements * ceil(tiles / mr) * ceil(cout / knobs.nr) * depth * per_k / _EFFICIENCY
    if by is INTEGERS:
        dot = int16_ops.pair_dots(device.features, lanes)
        products *= dot.cost if dot else 1.0
    ops = _INTEGER_OPS_PER_ELEMENT if by is INTEGERS else _TRANSFORM_OPS_PER_ELEMENT[m]
    times = device.threads if knobs.shares else 1  # that the input is transformed
    transforms = elements * tiles * (times * cin + cout) / lanes * ops / 2.0
    weights_bytes = elements * depth * cout * 4
    v_bytes, m_bytes = elements * tiles * cin * 4, elements * tiles * cout * 4
    rows = grid[0] * grid[1]
    if fuse:
        streams = rows * weights_bytes / bytes_per_cycle(weights_bytes, device)
        moved = 2 * (v_bytes + m_bytes) / bytes_per_cycle((v_bytes + m_bytes) / rows, device)
        uneven = imbalance(rows, device)
    else:
        streams = weights_bytes / bytes_per_cycle(2 * weights_bytes, device)
        if knobs.shares:
            panels = cout // knobs.nr // device.threads
            moved = times * (1 + panels) * v_bytes / bytes_per_cycle(v_bytes, device)
            moved += 2 * m_bytes / bytes_per_cycle(elements * tiles * knobs.nr * 4, device)
        else:
            moved = 2 * (v_bytes + m_bytes) / bytes_per_cycle(v_bytes + m_bytes, device)
            moved += crossing_cycles((v_bytes + m_bytes) / device.threads, device)
        uneven = imbalance(device.threads if knobs.shares else elements, device)
    cycles = products + transforms + streams + moved
    return cycles * uneven / device.threads / device.cycles_per_s

"""Candidates for grouped convolutions with few channels to a group: input channels repeated, then vector by vector."""

from __future__ import annotations

from math import ceil, prod

from subtune.backends.cpu.bandwidth import LOADS_PER_CYCLE, bytes_per_cycle
from subtune.backends.cpu.device import CPUModel
from subtune.core.candidate import Candidate
from subtune.core.workload import dtype_bits
from subtune.patterns.contraction import Contraction

_MAX_PIXELS = 28
_SPREAD_CYCLES = 1.5  # to load an input channel, repeat it and store it for its group


def grouped_candidates(anchor: Contraction, device: CPUModel) -> list[Candidate]:
    """Empty unless one vector covers several groups of a convolution with constant weights."""
    lanes = device.lanes(dtype_bits(anchor.acc_dtype))
    rows = [axis.extent for axis in anchor.of_role("m")]
    channels = anchor.n.extent
    if not 0 < anchor.per_group < lanes or not anchor.b.is_constant or len(rows) < 2 or channels % lanes:
        return []
    *images, height, width = rows
    found = []
    for cb in (lanes, 2 * lanes):
        if channels % cb:
            continue
        for mr in (m for m in range(1, min(width, _MAX_PIXELS) + 1) if width % m == 0):
            if (mr + 1) * cb // lanes + 1 > device.vector_registers:
                continue
            for ht in (h for h in range(1, height + 1) if height % h == 0 and h <= _MAX_PIXELS):
                seconds = _predict(anchor, prod(images), height, width, (ht, mr, cb), lanes, device)
                found.append(Candidate.make("grouped", seconds, ht=ht, mr=mr, cb=cb))
    return found


def _predict(
    anchor: Contraction,
    images: int,
    height: int,
    width: int,
    tile: tuple[int, int, int],
    lanes: int,
    device: CPUModel,
) -> float:
    """Seconds: for every tile its input repeated, halo included, then its products."""
    ht, mr, cb = tile
    taps = prod(axis.extent for axis in anchor.of_role("k"))
    depth = anchor.b.shape[anchor.b.axes.index(anchor.of_role("k")[-1].index)]
    strides = [window[1] for window in anchor.a.windows if window is not None] or [1, 1]
    reach = [window[3] * anchor.axes[window[2]].extent for window in anchor.a.windows if window is not None] or [1, 1]
    read_rows = (ht - 1) * strides[0] + reach[0]
    read_columns = (width - 1) * strides[-1] + reach[-1]
    spread_bytes = read_rows * read_columns * depth * cb * 4
    stores = read_rows * read_columns * depth * cb / min(anchor.per_group, lanes)
    vectors = mr * cb / lanes
    loads = (vectors + cb / lanes) / LOADS_PER_CYCLE
    per_tap = max(vectors / device.fma_per_cycle, loads, device.fma_latency)
    per_tap = max(per_tap, vectors * device.vector_bytes / 3 / bytes_per_cycle(spread_bytes, device))
    products = ht * (width / mr) * taps * per_tap
    tiles = images * (height // ht) * (anchor.n.extent // cb)
    imbalance = ceil(tiles / device.threads) * device.threads / tiles
    return tiles * (products + stores * _SPREAD_CYCLES) * imbalance / device.threads / device.cycles_per_s

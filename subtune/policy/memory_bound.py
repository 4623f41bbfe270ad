"""Candidates for subgraphs that memory bounds: pooling and depthwise windows, rows, columns, elementwise."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod

from subtune.anchor import Columns, Contraction, Elementwise, Rowwise, Window
from subtune.candidate import Candidate
from subtune.device import CPUModel
from subtune.workload import Workload, dtype_bits

_GRAIN_COST_S = 2e-7  # starting one piece of parallel work
_MAX_CHANNEL_VECTORS = 8
_BRANCHES = 1.1
_BYTES_PER_S = 100e9  # of all threads from L3, where a network's activations are
_SCALAR = 3.0  # crosswise operands one element at a time instead of in turned vectors
_MIN_COLUMN = 8  # elements: a reduction that long may be one of a whole axis


def window_candidates(anchor: Window, workload: Workload, device: CPUModel) -> list[Candidate]:
    """Row tiles, pixels and channel blocks whose accumulators fit the registers."""
    channels = anchor.of_role("n")[0].extent
    found = _as_columns(anchor, workload, device)
    rows = [axis.extent for axis in anchor.of_role("m")]
    width, height = (rows[-1] if rows else 1), (rows[-2] if len(rows) > 1 else 1)
    images = prod(rows[:-2]) if len(rows) > 2 else 1
    lanes = device.lanes(dtype_bits(anchor.acc_dtype))
    while lanes > 1 and channels % lanes:
        lanes //= 2
    taps = prod(axis.extent for axis in anchor.of_role("k"))
    for cb in (lanes * v for v in range(1, _MAX_CHANNEL_VECTORS + 1) if channels % (lanes * v) == 0):
        for mr in (m for m in range(1, 15) if width % m == 0):
            vectors = mr * cb // lanes
            if vectors + cb // lanes + 1 > device.vector_registers:
                continue
            for ht in (h for h in range(1, height + 1) if height % h == 0 and h <= 28):
                for order in ("h", "c"):
                    grains = images * height // ht * (channels // cb if order == "c" else 1)
                    imbalance = ceil(grains / device.threads) * device.threads / grains
                    # vector operations per cycle: two, unless too few accumulators hide their latency
                    rate = min(2.0, vectors / device.fma_latency)
                    work = images * height * width * channels / lanes * taps / rate
                    overhead = images * height * width * channels / (mr * cb) * 10
                    for inline in (True, False) if anchor.is_padded else (False,):
                        # a padding's copy, with the rows that neighbouring tiles both make, or a branch per load
                        copy = 1.0 + (2.0 / ht if order == "h" else 0.2) if anchor.is_padded else 1.0
                        padding = _BRANCHES if inline else copy
                        seconds = (work * padding + overhead) / device.cycles_per_s / device.threads * imbalance
                        moved = workload.nbytes + (
                            2 * workload.args[0].nbytes if anchor.is_padded and not inline else 0
                        )
                        seconds = max(seconds, moved / _BYTES_PER_S) + grains * _GRAIN_COST_S / 10
                        knobs: dict[str, int | str | bool] = {"ht": ht, "mr": mr, "cb": cb, "order": order}
                        found.append(Candidate.make("window", seconds, **knobs, **({"inline": True} if inline else {})))
    return found


def _as_columns(anchor: Window, workload: Workload, device: CPUModel) -> list[Candidate]:
    """Whole axes that are reduced, as by a global pooling, are no windows."""
    taps = prod(axis.extent for axis in anchor.of_role("k"))
    if taps < _MIN_COLUMN or anchor.to_pack:
        return []
    columns = anchor.of_role("n")[0].extent
    outer = prod(axis.extent for axis in anchor.of_role("m"))
    return columns_candidates(Columns(outer, columns, taps, 1), workload, device)


def rowwise_candidates(anchor: Rowwise, workload: Workload, device: CPUModel) -> list[Candidate]:
    """One to eight vectors of partial results per reduction."""
    base = max(workload.nbytes / device.dram_bytes_per_s, 1e-6)
    imbalance = ceil(anchor.rows / device.threads) * device.threads / max(anchor.rows, 1)
    lanes = device.lanes()
    return [
        Candidate.make("rowwise", base * imbalance * (1 + unroll / 16), unroll=unroll)
        for unroll in (1, 2, 4, 8)
        if unroll * lanes <= max(anchor.length // 2, lanes)
    ]


def dot_candidates(anchor: Contraction, workload: Workload, device: CPUModel) -> list[Candidate]:
    """A matrix times a vector where the matrix lies along k: each row a dot product, the matrix read once, unpacked."""
    k = anchor.of_role("k")
    m, n = prod(axis.extent for axis in anchor.of_role("m")), anchor.n.extent
    matrix = anchor.b if m == 1 else anchor.a
    if len(k) != 1 or min(m, n) != 1 or matrix.axes[-1] != k[0].index or (m == 1 and anchor.b.is_constant):
        return []
    rows = prod(axis.extent for axis in anchor.axes if axis.role != "k")
    return rowwise_candidates(Rowwise(rows, k[0].extent), workload, device)


def columns_candidates(anchor: Columns, workload: Workload, device: CPUModel) -> list[Candidate]:
    """Tiles of one to eight vectors of columns, and all columns of a row."""
    lanes = device.lanes()
    widths = {cb for cb in range(lanes, 8 * lanes + 1, lanes) if anchor.columns % cb == 0 and cb % anchor.group == 0}
    if anchor.columns <= 64 * lanes:
        widths.add(anchor.columns)
    found = []
    for cb in sorted(widths):
        grains = anchor.outer * anchor.columns // cb
        imbalance = ceil(grains / device.threads) * device.threads / grains
        is_cached = anchor.length * cb * 4 <= device.l2_bytes
        # few accumulators do not hide the latency of the sums; narrow tiles read short pieces of lines far apart
        stalls = 1.0 + 2.0 / max(cb / lanes, 0.5)
        seconds = workload.nbytes / device.dram_bytes_per_s * imbalance * stalls * (1.0 if is_cached else 2.0)
        found.append(Candidate.make("columns", seconds + grains * _GRAIN_COST_S / 10, cb=cb))
    return found


def elementwise_candidates(anchor: Elementwise, workload: Workload, device: CPUModel) -> list[Candidate]:
    """The three loop shapes, the vector by the widest or by the narrowest element; tiles for crosswise operands."""
    base = workload.nbytes / device.dram_bytes_per_s
    wides = (False, True) if any(dtype_bits(arg.dtype) < 32 for arg in workload.args) else (False,)
    found = []
    for wide in wides:
        for unroll in (1, 4):
            found.append(
                Candidate.make("elementwise", base * (1.0 + 0.01 * unroll), shape="flat", unroll=unroll, wide=wide)
            )
        for shape, cost in (("rows", 1.02), ("tile", 1.05)):
            found.append(Candidate.make("elementwise", base * cost, shape=shape, unroll=1, wide=wide))
    if anchor.is_crosswise:
        found = [replace(candidate, predicted_s=candidate.predicted_s * _SCALAR) for candidate in found]
        found += [Candidate.make("transpose", base * cost, inner=inner) for inner, cost in (("a", 1.0), ("b", 1.1))]
    return found

"""Candidates for subgraphs that memory bounds: pooling and depthwise windows, rows, columns, elementwise."""

from __future__ import annotations

from math import ceil, prod

from subtune.backends.cpu.bandwidth import LOADS_PER_CYCLE, stream_s
from subtune.backends.cpu.device import CPUModel
from subtune.core.candidate import Candidate
from subtune.core.workload import Workload, dtype_bits
from subtune.patterns.contraction import Contraction
from subtune.patterns.elementwise import Elementwise, TransposedAccess
from subtune.patterns.rows import Columns, Rowwise
from subtune.patterns.window import Window

_GRAIN_COST_S = 2e-8  # taking one piece of parallel work
_MAX_CHANNEL_VECTORS = 8
_TILE_CYCLES = 10.0  # beginning and ending a window's tile of accumulators
_BRANCH_CYCLES = 0.1  # asking whether a pixel lies inside the image; LLVM asks once for what is unrolled
_FREE_ACCUMULATORS = 16  # with more, what an unrolled window's loads keep in registers spills
_SPILL = 0.15  # of the work, for each accumulator above
_ROW_PASSES = 2.0  # that wait for a result of the row: the largest and the sum, or the mean and the variance
_ROW_CYCLES = 60.0  # folding vectors of partial results into one number, in every pass
_ROW_VECTOR_CYCLES = 6.0  # of all else that is done to a row's vector: loads, exp or scale, store
_AHEAD = 0.97  # of the time from L3, measured for norms and softmax 0.9 to 1.05
_AHEAD_OF_MEMORY = 0.7  # from memory: 0.54 to 0.72 in the passes of rows that do not wait for it
_AHEAD_ELEMENTS = 0.97  # measured 0.92 to 1.0
_AHEAD_WINDOW = 0.8  # one pixel at a time; 0.5 to 0.7 for windows one pixel apart, 0.7 to 1.0 for two
_AHEAD_PIXEL = 0.04  # more for every further pixel: 1.01 to 1.03 for two, 1.03 to 1.14 for four
_ROWS_AT_A_TIME = (4, 8, 16)
_NORM_READS = 3  # for the mean, for the variance, and for the result
_MIN_COLUMN = 8  # elements: a reduction that long may be one of a whole axis
_IN_BLOCKS = 1.0  # of the bytes' time; measured 1.1 to 1.45 times as fast as tiles read in place
_BLOCK_ROWS = (64, 128)  # 32 to 128 are alike; more do not stay in L2
_TILES = {"a": 1.2, "b": 1.3}  # of the bytes' time, in place; by the axis that the inner loop follows
_WHOLE_BLOCKS = ((128, 64), (64, 128))  # rows and columns: 36 to 40 KB, staged, stay in L2
_ALIKE = 0.9  # of the time in place where lines of neighbouring rows share few sets of L1; measured 0.6 to 1.0
_APART = 1.1  # where they do not; measured 1.0 to 1.3
_FEW_SETS_BYTES = 1024  # between rows: their lines are in 4 sets of 64
_FEW_INPUTS = 4
_CROSSWISE = 4.0  # times each line of an operand is fetched, one element at a time, where it does not stay in L1
_GATHERED_CYCLES = 1.5  # an element that is loaded by itself


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
    for cb in (lanes * v for v in range(1, _MAX_CHANNEL_VECTORS + 1) if channels % (lanes * v) == 0):
        for mr in (m for m in range(1, 15) if width % m == 0):
            if mr * cb // lanes + cb // lanes + 1 > device.vector_registers:
                continue
            for ht in (h for h in range(1, height + 1) if height % h == 0 and h <= 28):
                for order in ("h", "c"):
                    for inline in (True, False) if anchor.is_padded else (False,):
                        knobs: dict[str, int | str | bool] = {"ht": ht, "mr": mr, "cb": cb, "order": order}
                        if inline:
                            knobs["inline"] = True
                        grid = (images, height, width, channels)
                        seconds = _window_s(anchor, workload, device, grid, lanes, knobs)
                        found.append(Candidate.make("window", seconds, **knobs))
                        is_seen = (inline or not anchor.is_padded) and not anchor.is_tabled
                        if workload.nbytes > device.l3_bytes and is_seen:
                            gain = _AHEAD_WINDOW + _AHEAD_PIXEL * (mr - 1)
                            found.append(Candidate.make("window", seconds * gain, ahead=True, **knobs))
    return found


def _window_s(
    anchor: Window,
    workload: Workload,
    device: CPUModel,
    grid: tuple[int, int, int, int],
    lanes: int,
    knobs: dict[str, int | str | bool],
) -> float:
    """Seconds: the vectors' arithmetic and loads, or the bytes, whichever takes longer."""
    images, height, width, channels = grid
    ht, mr, cb = (int(knobs[name]) for name in ("ht", "mr", "cb"))
    vectors = cb // lanes
    taps = prod(axis.extent for axis in anchor.of_role("k"))
    grains = images * height // ht * (channels // cb if knobs["order"] == "c" else 1)
    imbalance = ceil(grains / device.threads) * device.threads / grains
    loads = (mr + (1 if anchor.to_pack else 0)) * vectors / LOADS_PER_CYCLE
    per_tap = max(mr * vectors / 2.0, loads, float(device.fma_latency))
    if anchor.is_padded and knobs.get("inline"):
        per_tap += mr * _BRANCH_CYCLES
    spills = 1.0 + _SPILL * max(0, mr * vectors - _FREE_ACCUMULATORS) * 32 / device.vector_registers
    tiles = images * height * width * channels / (mr * cb)
    cycles = tiles * (taps * per_tap * spills + mr * vectors + _TILE_CYCLES)
    read = max((arg.nbytes for arg in workload.args if not arg.is_output), default=0)
    moved = float(workload.nbytes)
    if anchor.is_padded and not knobs.get("inline"):  # a copy, with the rows that neighbouring tiles both make
        cycles += 2 * read / 4 / lanes * (1.0 + (2.0 / ht if knobs["order"] == "h" else 0.2))
        moved += 2 * read
    # A narrow tile reads one line of every pixel; pixels a power of two apart lie in a few sets of L1.
    scattered = 1.2 if channels * 4 % (8 * device.line_bytes) == 0 else 0.3
    memory_s = stream_s(moved, device) * (1.0 + scattered / vectors**2 if cb < channels else 1.0)
    seconds = max(cycles / device.cycles_per_s / device.threads, memory_s) + 0.25 * min(
        cycles / device.cycles_per_s / device.threads, memory_s
    )
    return seconds * imbalance + grains * _GRAIN_COST_S


def _as_columns(anchor: Window, workload: Workload, device: CPUModel) -> list[Candidate]:
    """Whole axes that are reduced, as by a global pooling, are no windows."""
    taps = prod(axis.extent for axis in anchor.of_role("k"))
    if taps < _MIN_COLUMN or anchor.to_pack:
        return []
    columns = anchor.of_role("n")[0].extent
    outer = prod(axis.extent for axis in anchor.of_role("m"))
    return _columns(Columns(outer, columns, taps, 1), workload, device)


def rowwise_candidates(anchor: Rowwise, workload: Workload, device: CPUModel) -> list[Candidate]:
    """One to eight vectors of partial results per reduction: more hide the latency of sums, and cost at a row's end."""
    lanes = device.lanes()
    imbalance = ceil(anchor.rows / device.threads) * device.threads / max(anchor.rows, 1)
    memory_s = stream_s(workload.nbytes, device)
    found = []
    for unroll in (1, 2, 4, 8):
        if unroll * lanes > max(anchor.length // 2, lanes):
            continue
        vectors = ceil(anchor.length / (lanes * unroll)) * unroll  # rows are padded to whole steps
        waits = _ROW_PASSES * vectors * max(0.5, device.fma_latency / unroll)
        per_row = waits + _ROW_PASSES * (_ROW_CYCLES + 2.0 * unroll) + vectors * _ROW_VECTOR_CYCLES
        seconds = anchor.rows * per_row / device.cycles_per_s / device.threads
        whole = max(seconds, memory_s) * imbalance + 0.1 * seconds
        found.append(Candidate.make("rowwise", whole, unroll=unroll))
        if workload.nbytes > device.l2_bytes:  # what lies nearer arrives in time by itself
            gain = _AHEAD if workload.nbytes <= device.l3_bytes else _AHEAD_OF_MEMORY
            found.append(Candidate.make("rowwise", whole * gain, ahead=True, unroll=unroll))
    return found


def dot_candidates(anchor: Contraction, workload: Workload, device: CPUModel) -> list[Candidate]:
    """A matrix times a vector where the matrix lies along k: each row a dot product, the matrix read once, unpacked.

    Also a convolution to one channel, where every tap is a dot product along the input's channels.
    """
    k = anchor.of_role("k")
    m, n = prod(axis.extent for axis in anchor.of_role("m")), anchor.n.extent
    matrix, other = (anchor.b, anchor.a) if m == 1 else (anchor.a, anchor.b)
    if min(m, n) != 1 or (m == 1 and anchor.b.is_constant) or not k:
        return []
    if any(operand.axes[-1] != k[-1].index for operand in ((matrix, other) if len(k) > 1 else (matrix,))):
        return []
    rows = prod(axis.extent for axis in anchor.axes if axis.role != "k")
    found = rowwise_candidates(Rowwise(rows, prod(axis.extent for axis in k)), workload, device)
    lanes = device.lanes()
    return [c for c in found if len(k) == 1 or k[-1].extent % (lanes * int(c["unroll"])) == 0]


def columns_candidates(anchor: Columns, workload: Workload, device: CPUModel) -> list[Candidate]:
    """Tiles of columns, rows in pieces, and the moments of a norm, which is as large as what it reads."""
    return _columns(anchor, workload, device) + _moments(anchor, workload, device)


def _columns(anchor: Columns, workload: Workload, device: CPUModel) -> list[Candidate]:
    """Tiles of one to eight vectors of columns, and all columns of a row."""
    lanes = device.lanes()
    widths = {cb for cb in range(lanes, 8 * lanes + 1, lanes) if anchor.columns % cb == 0 and cb % anchor.group == 0}
    if anchor.columns <= 64 * lanes:
        widths.add(anchor.columns)
    # The widest for every thread to have one: whole pages are read in a row.
    for pieces in (device.threads, 2 * device.threads):
        each, left = divmod(anchor.columns, pieces)
        if each <= 64 * lanes and left == 0 and each % lanes == 0 and each % anchor.group == 0:
            widths.add(each)
    is_read_once = _is_read_once(workload)
    found = []
    for cb in sorted(widths):
        grains = anchor.outer * anchor.columns // cb
        imbalance = ceil(grains / device.threads) * device.threads / grains
        is_cached = is_read_once or anchor.length * cb * 4 <= device.l2_bytes
        # few accumulators do not hide the latency of the sums; narrow tiles read short pieces of lines far apart
        stalls = 1.0 + 2.0 / max(cb / lanes, 0.5)
        seconds = stream_s(workload.nbytes, device) * imbalance * stalls * (1.0 if is_cached else 2.0)
        seconds += grains * _GRAIN_COST_S
        found.append(Candidate.make("columns", seconds, cb=cb))
        if workload.nbytes > device.l2_bytes:
            found.append(Candidate.make("columns", seconds * _AHEAD, ahead=True, cb=cb))
    return found + _pieces(anchor, workload, device, is_read_once)


def _pieces(anchor: Columns, workload: Workload, device: CPUModel, is_read_once: bool) -> list[Candidate]:
    """Rows for every thread, a few at a time: they lie in memory one after the other."""
    reads = 1 if is_read_once else _NORM_READS
    if device.threads == 1 or workload.nbytes <= device.l2_bytes or anchor.columns % device.lanes():
        return []
    read = max(arg.nbytes for arg in workload.args)
    seconds = stream_s(workload.nbytes, device) + (reads - 1) * stream_s(read, device)
    return [
        Candidate.make("pieces", seconds * (1.0 + 1.0 / rows), rows=rows)
        for rows in _ROWS_AT_A_TIME
        if anchor.length % (rows * device.threads) == 0
    ]


def _is_read_once(workload: Workload) -> bool:
    """A sum; a norm reads its input again."""
    written = sum(arg.nbytes for arg in workload.args if arg.is_output)
    return written * _MIN_COLUMN <= workload.nbytes


def _moments(anchor: Columns, workload: Workload, device: CPUModel) -> list[Candidate]:
    """Pieces of rows that stay in L1 beside the next one, for the mean and the variance of a norm."""
    row_bytes = 4 * anchor.columns
    most = device.l1d_bytes // 3 // row_bytes
    rows = max((n for n in range(1, most + 1) if anchor.length % n == 0), default=0)
    if _is_read_once(workload) or workload.nbytes <= device.l2_bytes:
        return []
    if anchor.columns % device.lanes() or rows < _MIN_COLUMN:
        return []
    read = max(arg.nbytes for arg in workload.args)
    seconds = stream_s(workload.nbytes, device) + stream_s(read, device)
    return [Candidate.make("moments", seconds, rows=rows)]


def elementwise_candidates(anchor: Elementwise, workload: Workload, device: CPUModel) -> list[Candidate]:
    """The three loop shapes, the vector by the widest or by the narrowest element; tiles for transposed operands."""
    wides = (False, True) if any(dtype_bits(arg.dtype) < 32 for arg in workload.args) else (False,)
    outputs = [arg.shape for arg in workload.args if arg.is_output]
    # An element of the output reads one of each input at most: a slice leaves the rest of it where it is.
    base = stream_s(sum(min(arg.nbytes, anchor.extent * dtype_bits(arg.dtype) / 8) for arg in workload.args), device)
    alike = all(arg.shape in outputs or prod(map(int, arg.shape)) == 1 for arg in workload.args)
    parts = sum(prod(map(int, arg.shape)) * 8 > anchor.extent for arg in workload.args if not arg.is_output)
    # Where operands are not alike, a flat index is taken apart again, and every unrolled piece of several inputs
    # joined asks where it comes from.
    flat = 1.0 if alike else 1.1 if parts < 2 else 1.2
    costs = {("flat", 1): flat, ("flat", 4): 0.99 if alike else flat if parts < 2 else 4.0,
             ("rows", 1): 1.0 if not alike else 1.02, ("tile", 1): 1.05 if alike else 1.4}  # fmt: skip
    joined = len(workload.args) - len(outputs)
    if not alike and joined > _FEW_INPUTS:  # a chain of questions for every vector; a tile asks once for its rows
        costs = {
            how: cost * joined / (_FEW_INPUTS if how[0] != "tile" else 4 * _FEW_INPUTS) for how, cost in costs.items()
        }
    gathered_s = 0.0
    if anchor.transposed:
        gathered_s = base + anchor.extent * _GATHERED_CYCLES / device.cycles_per_s / device.threads
        gathered_s = max(gathered_s, base * _CROSSWISE)
    found = [
        Candidate.make("elementwise", max(base, gathered_s) * cost, shape=shape, unroll=unroll, wide=wide)
        for wide in wides
        for (shape, unroll), cost in costs.items()
    ]
    if alike and workload.nbytes > device.l3_bytes:
        found += [
            Candidate.make(c.family, c.predicted_s * _AHEAD_ELEMENTS, ahead=True, **dict(c.knobs))
            for c in found
            if c["shape"] == "flat"
        ]
    if anchor.transposed:
        found += _transposes(anchor.transposed, base, workload, device)
    return found


def _transposes(turned: TransposedAccess, base: float, workload: Workload, device: CPUModel) -> list[Candidate]:
    """Tiles in place; blocks that are staged as wholes, beyond L2; from memory, while others are turned.

    Args:
        base: seconds that reading and writing all bytes once takes.
    """
    found = [Candidate.make("transpose", base * cost, inner=inner) for inner, cost in _TILES.items()]
    if workload.nbytes > device.l3_bytes:
        found += [Candidate.make("transpose", base * _IN_BLOCKS, rows=rows) for rows in _BLOCK_ROWS]
    if workload.nbytes > device.l2_bytes:
        extents = turned.extents[turned.a], turned.extents[turned.b]  # a row of the output's, and of the operand's
        collide = any(extent * 4 % _FEW_SETS_BYTES == 0 for extent in extents)
        seconds = base * _TILES["a"] * (_ALIKE if collide else _APART)
        found += [
            Candidate.make("transpose", seconds, rows=rows, columns=columns)
            for rows, columns in _WHOLE_BLOCKS
            if rows <= extents[0] and columns <= extents[1]
        ]
    return found

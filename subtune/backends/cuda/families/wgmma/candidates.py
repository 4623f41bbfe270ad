"""Candidates for Hopper's warp-specialised kernels: tiles, stages, consumers, and what they are predicted to take.

A tile takes the time of its slowest resource for every step of k, then that of its epilogue, unless another consumer or
block multiplies meanwhile. Tiles come in waves over the multiprocessors, the last one is paid in full. What DRAM has
to move is added: a kernel that is short of bytes is seldom short of nothing else. Constants were fitted to 581 kernels
of 39 products and convolutions on an H200: the first choice is within 1.15 of the best measured one on 34, and on 35
where each quarter is predicted with constants from the others.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import ceil, prod

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.wgmma.source import copied_obstacle
from subtune.backends.cuda.families.wgmma.store_copies import copied_bytes, product_alone
from subtune.backends.cuda.families.wgmma.tiling import ROW_BYTES, SWIZZLES, Tiling, are_multiplied, wgmma_obstacle
from subtune.backends.cuda.families.wgmma.walk import taps_below
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload, dtype_bits
from subtune.patterns.contraction import Contraction
from subtune.patterns.gemm_view import Dim, GemmView, gemm_view

_COLUMNS = (16, 32, 64, 96, 128, 192, 256)
_CONSUMERS = ((1, False), (2, False), (2, True), (3, False))
_FEW_COLUMNS, _MOST_ROWS = 128, 256  # of a tile of swapped operands
_EXCHANGED = ("float32", "float16")
_MAX_STAGES = 8
_WASTE = 1.5  # padded rows or columns to real ones, unless nothing wastes less
_SHAPES = 2  # of tiles over several groups of rows, per number of rows: of least waste, and most compact
_RASTER = 8
_RASTER_ROWS = 2048
_ACROSS = 64  # columns of a box across k
_LONG = 4  # waves of tiles from which clusters may pay although they wait for one another
_SPLITS = (2, 4, 8)
_UNPLACED = {2: 0, 4: 3, 8: 1}  # clusters for which an H100 has no room: its driver was asked
_CLUSTER_S = 0.6e-6
_EXCHANGED_BYTES = 20.0  # of sums, a cycle and block
_STRADDLING = 3.0  # times as long as rows that begin with a line
_FILL_S = 1.4e-6  # the first stage's way from memory, and the last tile's way there
_L2_SHARE = 3.1  # of the nominal rate: copies reach that where neighbours ask for the same rows
_MMA_SHARE = 0.97  # of the peak; what power takes away from long kernels it takes from all of them
_OTHERS = 0.03  # of the resources that do not bound a step
_TILE_CYCLES = 165.0  # of a tile: barriers, addresses
_STEP_CYCLES = 32.0  # of a step that waits for the one before
_EPILOGUE_CYCLES = 200.0  # of one operation on 64 rows x 64 columns: sums, exchange, stores
_BYTE_EPILOGUE_CYCLES = 30.0  # the same where bytes are stored: no exchange, and an operation is an instruction
_HOT_S = 100e-6  # from here on an H200's clock is what its power leaves: fewer joules are fewer seconds
_FILLING, _READING = 9.6, 1.9  # per element of shared memory, and multiply-add; measured at 4096^3 and 8192^3
_MEMORY_BOUND = 0.7  # of the time: then copies run ahead of the stores by little, as reads and writes slow one another
_AHEAD_BYTES = 32 * 1024  # of A, on a multiprocessor; 64 rows with them took 0.95 of 128 rows with 64 KB
_COARSE = 0.03  # of the time more, where a memory-bound tile has more rows
_SCATTERED = 0.06  # where its rows are runs of a single line, and half of it where they are of four
_DTYPES = ("float16", "bfloat16", "int8", "uint8", "float8_e4m3fn", "float8_e5m2")


def multiplied_obstacle(problem: Problem[CUDAModel]) -> str:
    """Why Hopper's instructions do not multiply a contraction's operands; "" where they do."""
    anchor = problem.pattern
    if why := wgmma_obstacle(problem):
        return why
    if not isinstance(anchor, Contraction):
        return "no contraction"
    if not are_multiplied(anchor.a.dtype, anchor.b.dtype, problem.numerics):
        return f"wgmma does not multiply {anchor.a.dtype} by {anchor.b.dtype} here"
    return "" if sum(arg.is_output for arg in problem.workload.args) == 1 else "several outputs"


def is_misaligned(view: GemmView, dtype: str) -> bool:
    """Whether rows begin where no tensor map lets them: copies of the hardware's own need multiples of 16 bytes."""
    size = dtype_bits(dtype) // 8
    return any(dim.stride * size % 16 for dims in (view.a, view.b) for dim in dims[:-1])


def accepts(problem: Problem[CUDAModel]) -> str:
    alone = product_alone(problem)
    return multiplied_obstacle(alone) or copied_obstacle(alone.workload)


def has_tiles(problem: Problem[CUDAModel]) -> bool:
    """Whether there are tilings of the problem's contraction: Hopper multiplies it, and copies its rows."""
    if accepts(problem):
        return False
    view = gemm_view(problem.pattern)
    return not isinstance(view, NotApplicable) and not is_misaligned(view, problem.pattern.a.dtype)


def candidates(problem: Problem[CUDAModel]) -> list[Candidate]:
    """Every sensible tiling of a contraction that wgmma can compute; none where it cannot."""
    return of_product(product_alone(problem), copied_bytes(problem))


def of_product(problem: Problem[CUDAModel], copied: int) -> list[Candidate]:
    """Those of a contraction; `copied`: bytes of copies of its result, which it stores as well."""
    anchor, workload = problem.pattern, problem.workload
    view = gemm_view(anchor)
    if isinstance(view, NotApplicable) or is_misaligned(view, anchor.a.dtype):
        return []
    moved = workload.nbytes - unread_bytes(view, workload.args[0].nbytes) + copied
    found = tilings(view, workload, moved, problem.device, anchor.a.dtype)
    return [Candidate.make("cuda.wgmma", seconds, **tiling.knobs()) for tiling, seconds in found]


def tilings(
    view: GemmView, workload: Workload, moved: float, device: CUDAModel, dtype: str
) -> list[tuple[Tiling, float]]:
    """Every sensible one of a contraction of `dtype`, and the seconds of a run in which DRAM moves `moved` bytes."""
    size = dtype_bits(dtype) // 8
    across = [dims[-1].group != view.inner for dims in (view.a, view.b)]
    if any(across) and size != 2:
        return []
    found = []
    promote = dtype.startswith("float8")
    widths = (ROW_BYTES,) if any(across) else _row_bytes(view.extent(view.inner) * size)
    is_8 = 8 in (dtype_bits(dtype), dtype_bits(workload.args[-1].dtype))
    forms = _forms(view, can_swap=not is_8, can_tap=not (promote or across[0]))
    for form, width in product(forms, widths):
        rows, columns = form.rows, form.columns
        if columns == 256 and dtype in ("int8", "uint8"):  # TVM's table of instructions ends at 224
            continue
        if (across[0] and prod(rows) % 64) or (across[1] and columns % 64):
            continue
        for (consumers, alternate), blocks in product(_CONSUMERS, (1, 2)):
            if form.swapped and (consumers, blocks) != (2, 1):
                continue
            plain = replace(form, consumers=consumers, alternate=alternate, blocks_per_sm=blocks, promote=promote,
                            row_bytes=width)  # fmt: skip
            for tiling in _variants(plain, view, device, size):
                seconds = predict(view, tiling, workload, device, dtype, moved)
                if _moved_s(view, tiling, workload, device, moved) > _MEMORY_BOUND * seconds:
                    shallow = max(2, _AHEAD_BYTES // (tiling.m * width * blocks))
                    tiling = replace(tiling, stages=min(tiling.stages, shallow))
                    seconds *= 1.0 + _COARSE * (tiling.m > 64)
                found.append((tiling, seconds))
    return found


def _variants(plain: Tiling, view: GemmView, device: CUDAModel, size: int) -> list[Tiling]:
    """`plain` with the stages that fit and rasterised; in boxes, with a B for several tiles or blocks, k in parts."""
    found = []
    tiling = fitted(plain, device)
    if tiling is not None:
        batch, rows, columns = _tiles(view, tiling)
        tiles = batch * rows * columns
        steps = view.extent(*view.steps) * ceil(view.extent(view.inner) * size / tiling.row_bytes) // tiling.taps
        is_gemm = len(view.rows) == 1
        if tiles > device.sms and rows > 1 and is_gemm:
            tiling = replace(tiling, raster=min(_RASTER, rows))
        found.append(tiling)
        if (tiling.swapped or tiling.taps > 1) and batch * columns == 1 and tiles > device.sms:
            resident = fitted(replace(plain, resident=steps), device)
            found += [replace(resident, raster=tiling.raster)] if resident is not None else []
        is_long = tiles > _LONG * device.sms and tiling.m * tiling.columns >= 128**2
        if rows > 1 and tiling.blocks_per_sm == 1 and (is_long or (is_gemm and _straddles(view.a, size))):
            raster = min(rows, _RASTER_ROWS // tiling.m) if is_long else tiling.raster
            width = 8 if view.b[-1].group == view.inner else _ACROSS
            for cluster in (2,) if is_long or rows % 4 else (2, 4):
                if tiling.columns % (cluster * width) == 0:
                    found.append(replace(tiling, cluster=cluster, raster=raster))
        for split in _SPLITS:
            places = device.sms // split - _UNPLACED[split]
            if tiles > places or steps < 4 * split or tiling.alternate or tiling.blocks_per_sm > 1:
                continue
            parts = fitted(replace(plain, split=split), device)
            if parts is not None and (split - 1) * ceil(steps / split) < steps:
                found.append(parts)
    if plain.consumers > 1 and not plain.alternate and len(view.rows) > 1 and prod(plain.rows) in (64, 128):
        boxes = fitted(replace(plain, boxes=plain.consumers), device)
        found += [boxes] if boxes is not None else []
    return found


def _straddles(dims: tuple[Dim, ...], size: int) -> bool:
    """Whether the rows of a box begin anywhere in a line of L2's: each is two requests."""
    return any(dim.stride * size % ROW_BYTES for dim in dims[:-1])


def _forms(view: GemmView, can_swap: bool, can_tap: bool) -> list[Tiling]:
    """Rows and columns of tiles; with operands swapped, few columns and as many rows as can be; with several taps."""
    shapes, n = _row_tiles(view), view.extent(view.n)
    few = ceil(n / 64) * 64
    can_swap = can_swap and few <= _FEW_COLUMNS
    found = [Tiling(rows, columns, 2) for rows, columns in product(shapes, _column_tiles(n))]
    if can_swap:
        found += [Tiling(rows, few, 2, swapped=True) for rows in shapes if prod(rows) == _MOST_ROWS][:_SHAPES]
    window = taps_below(view)
    if can_tap and window >= 0:
        taps = view.extent(window)
        found += [replace(form, taps=taps) for form in found if not form.swapped and form.rows[-1] % 8 == 0]
        found += [Tiling(rows, few, 2, swapped=True, taps=taps) for rows in _images(view, taps) if can_swap]
    return found


def _images(view: GemmView, taps: int) -> list[tuple[int, ...]]:
    """The tile of one image that copies least, if one wastes little: 8 pixels side by side are swizzled as one."""
    height, width = (view.groups[g].extent for g in view.rows[-2:])
    found = []
    for side in (8, 16, 32):
        most = _MOST_ROWS // side
        down = ceil(height / ceil(height / most))
        down += down * side % 16 // 8
        padded = ceil(height / down) * down * ceil(width / side) * side
        if padded <= _WASTE * height * width:
            found.append((padded * (down + taps - 1) / down, (*(1 for _ in view.rows[:-2]), down, side)))
    return [min(found)[1]] if found else []


def _row_tiles(view: GemmView) -> list[tuple[int, ...]]:
    """Tiles of 64, 128, 192 and 256 rows: of a convolution, boxes of images x rows x pixels that waste little."""
    extents = [view.groups[g].extent for g in view.rows]
    if len(extents) == 1:
        return [(m,) for m in (64, 128, 192, 256) if m <= 64 or ceil(extents[0] / m) * m <= extents[0] * _WASTE]
    found: list[tuple[int, ...]] = []
    for m in (64, 128, 256):
        shapes = []
        sides = [[1 << i for i in range(m.bit_length()) if 1 << i < 2 * extent] for extent in extents]
        for shape in product(*sides):
            if prod(shape) == m:
                waste = prod(ceil(e / s) * s for e, s in zip(extents, shape, strict=True)) / prod(extents)
                # neighbouring pixels share what a window reads of them
                shapes.append((waste, -min(shape[1:]), shape))
        shapes = [shape for shape in sorted(shapes) if shape[0] <= _WASTE * min(shapes)[0]]
        compact = sorted(shapes, key=lambda shape: (shape[1], shape[0], shape[2]))
        # and long runs of memory, for what has little else to do than to move it
        longest = sorted(shapes, key=lambda shape: (-shape[2][-1], shape[0]))
        found += dict.fromkeys(shape for _, _, shape in (*shapes[:_SHAPES], *compact[:_SHAPES], *longest[:1]))
    return found


def _row_bytes(nbytes: int) -> list[int]:
    """Of the widths of a stage's rows, those that fill less with zeros than all longer ones; `nbytes` of k at once."""
    found: list[int] = []
    for width in sorted(SWIZZLES, reverse=True):
        if all(ceil(nbytes / width) * width < ceil(nbytes / longer) * longer for longer in found):
            found.append(width)
    return found


def _column_tiles(n: int) -> list[int]:
    fits = [c for c in _COLUMNS if ceil(n / c) * c <= n * _WASTE]
    return fits or [next((c for c in _COLUMNS if c >= n), _COLUMNS[-1])]


def fitted(tiling: Tiling, device: CUDAModel) -> Tiling | None:
    """`tiling` with as many stages as fit, or None."""
    limits = device.shared_per_block_bytes, device.shared_per_sm_bytes
    none, one = replace(tiling, stages=0), replace(tiling, stages=1)
    # whichever is exchanged: of swapped operands more halves at once than elements of float32
    beside = max(none.shared_bytes(stored) for stored in _EXCHANGED)
    stages = min(_MAX_STAGES, (tiling.room(*limits) - beside) // (one.ring_bytes() - none.ring_bytes()))
    if stages < (2 if tiling.blocks_per_sm == 1 else 3):
        return None
    found = replace(tiling, stages=stages)
    return None if any(found.obstacle(stored, *limits) for stored in _EXCHANGED) else found


def _tiles(view: GemmView, tiling: Tiling) -> tuple[int, int, int]:
    """Tiles of batch, rows and columns."""
    rows = prod(ceil(view.groups[g].extent / r) for g, r in zip(view.rows, tiling.rows, strict=True))
    return view.extent(*view.batch), ceil(rows / tiling.boxes), ceil(view.extent(view.n) / tiling.columns)


def predict(
    view: GemmView, tiling: Tiling, workload: Workload, device: CUDAModel, dtype: str, moved: float | None = None
) -> float:
    """Seconds of one run; `moved`: bytes that DRAM moves, without which all arguments are, but for unread rows of A."""
    if moved is None:
        moved = workload.nbytes - unread_bytes(view, workload.args[0].nbytes)
    size = dtype_bits(dtype) // 8
    bk = tiling.row_bytes // size
    count = prod(_tiles(view, tiling)) * tiling.split
    steps = ceil(view.extent(*view.steps) * ceil(view.extent(view.inner) / bk) / (tiling.split * tiling.taps))
    kind = "tfloat32" if dtype == "float32" else dtype
    flops_per_cycle = device.mma_flops(kind) / device.sms / device.cycles_per_s * _MMA_SHARE
    l2_per_cycle = _L2_SHARE * device.l2_bytes_per_s / device.sms / device.cycles_per_s
    m, n = tiling.m, tiling.columns
    multiply = 2.0 * m * n * bk * tiling.taps / flops_per_cycle
    count64, width = tiling.multiplied
    # of a multiplication: 64 rows at half the rate, and all columns; below 128 that takes longer than to multiply
    read = (2 * 64 + width) * tiling.taps * (m * n // (64 * width)) * tiling.row_bytes / device.shared_bytes_per_cycle
    lines_a, lines_b = (_STRADDLING if _straddles(dims, size) else 1.0 for dims in (view.a, view.b))
    copied_a = tiling.copied_rows * lines_a
    copied_b = 0.0 if tiling.resident else tiling.taps * n * lines_b / tiling.cluster
    copy = (copied_a + copied_b) * tiling.row_bytes / l2_per_cycle
    add = m * n / device.fma_per_cycle if tiling.promote else 0.0
    times = (multiply, read, copy, add)
    busy = steps * (max(times) + _OTHERS * (sum(times) - max(times)))
    is_byte = dtype_bits(workload.args[-1].dtype) == 8
    operation = _BYTE_EPILOGUE_CYCLES if is_byte else _EPILOGUE_CYCLES
    epilogue = operation * _operations(view, workload) * count64 * width / 64
    alone = _TILE_CYCLES + busy + _STEP_CYCLES * steps + epilogue
    places = (device.sms // tiling.cluster - _UNPLACED.get(tiling.cluster, 0)) * tiling.cluster * tiling.blocks_per_sm
    if count <= places:
        cycles = max(ceil(count / device.sms) * busy, alone)
    else:
        turns, at_once = ceil(count / places), 2 if tiling.alternate else 1
        cycles = max(tiling.blocks_per_sm * turns * busy, turns * alone / at_once) + alone * (1 - 1 / at_once)
    memory = _moved_s(view, tiling, workload, device, moved)
    seconds = cycles / device.cycles_per_s + memory + _FILL_S + device.launch_s + _together_s(tiling, device)
    return seconds * _energy(tiling) if seconds > _HOT_S and multiply == max(times) else seconds


def _energy(tiling: Tiling) -> float:
    """Of a tile's multiplications, with what they move through shared memory, relative to 128 x 256."""
    m, n = tiling.m, tiling.columns
    _, width = tiling.multiplied
    return 1.0 + _FILLING * ((m + n) / (m * n) - 3 / 256) + _READING * ((128 + width) / (64 * width) - 3 / 128)


def _together_s(tiling: Tiling, device: CUDAModel) -> float:
    """What the blocks of a cluster cost: they begin together, and hand one another their sums."""
    if tiling.cluster * tiling.split == 1:
        return 0.0
    exchanged = tiling.m * tiling.columns * 4 / _EXCHANGED_BYTES if tiling.split > 1 else 0.0
    return _CLUSTER_S + exchanged / device.cycles_per_s


def _operations(view: GemmView, workload: Workload) -> float:
    """Of an element's epilogue, as TVM counts them; 0 where the sums are the result."""
    elements = view.extent(*view.batch, *view.rows, view.n)
    try:
        total = float(workload.flops)
    except Exception:  # TVM counts none where an extent is data
        return 1.0
    return max(0.0, total / elements - 2.0 * view.extent(*view.steps, view.inner))


def _moved_s(view: GemmView, tiling: Tiling, workload: Workload, device: CUDAModel, moved: float) -> float:
    """Seconds that DRAM takes for `moved` bytes; longer where a tile's rows lie apart."""
    run_bytes = tiling.rows[-1] * view.extent(view.n) * dtype_bits(workload.args[-1].dtype) / 8
    scattered = 1.0 + _SCATTERED * min(1.0, ROW_BYTES / run_bytes) ** 0.5 if len(tiling.rows) > 1 else 1.0
    return moved / device.dram_bytes_per_s * scattered


def unread_bytes(view: GemmView, nbytes: int) -> float:
    """Of A's `nbytes`, those in rows that no window looks at."""
    share = 1.0
    for dim in view.a[:-1]:
        taps = view.groups[dim.window].extent if dim.window >= 0 else 1
        share *= min(1.0, taps / dim.scale)
    return (1.0 - share) * nbytes

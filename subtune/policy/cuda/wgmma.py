"""Candidates for Hopper's warp-specialised kernels: tiles, stages, consumers, and what they are predicted to take.

The time of a tile is that of its slowest resource: tensor cores, L2 to shared memory; then its stores, unless another
consumer or block multiplies meanwhile. Tiles come in waves over the multiprocessors, the last one is paid in full.
"""

from __future__ import annotations

from itertools import product
from math import ceil, prod

from subtune.anchor import Contraction
from subtune.candidate import Candidate
from subtune.cuda import CUDAModel
from subtune.gemm_view import GemmView, gemm_view
from subtune.kernel import NotApplicable
from subtune.policy.cuda.stem import stem_candidates
from subtune.wgmma_tiling import ROW_BYTES, Tiling
from subtune.workload import Workload, dtype_bits

_COLUMNS = (16, 32, 64, 96, 128, 192, 256)
_CONSUMERS = ((1, False), (2, False), (2, True), (3, False))
_MAX_STAGES = 8
_WASTE = 1.5  # padded rows or columns to real ones, unless nothing wastes less
_SHAPES = 2  # of tiles over several groups of rows, per number of rows: of least waste, and most compact
_RASTER = 8
_FILL_S = 1.2e-6  # the first stage's way from memory, and the last tile's way there
_L2_SHARE = 2.2  # of the published rate, which boxes of 128-byte rows exceed (measured: 50 bytes a cycle and SM)
_MMA_SHARE = 0.88  # of the peak that the best kernels sustain (power)
_STORE_CYCLES = 4.0  # of a warp per 32 elements: epilogue, exchange
_DTYPES = ("float16", "bfloat16", "int8", "uint8", "float8_e4m3fn", "float8_e5m2")


def wgmma_candidates(anchor: Contraction, workload: Workload, device: CUDAModel) -> list[Candidate]:
    """Every sensible tiling of a contraction that wgmma can compute; none where it cannot."""
    if device.arch != "sm_90a" or not device.wgmma or device.tensor_core == "off":
        return []
    dtype = anchor.a.dtype
    if dtype != anchor.b.dtype or not (dtype in _DTYPES or (dtype == "float32" and device.allow_tf32)):
        return []
    view = gemm_view(anchor)
    if isinstance(view, NotApplicable) or sum(arg.is_output for arg in workload.args) != 1:
        return []
    size = dtype_bits(dtype) // 8
    if any(dim.stride * size % 16 for dims in (view.a, view.b) for dim in dims[:-1]):
        return stem_candidates(anchor, view, workload, device)
    bk = ROW_BYTES // size
    across = [dims[-1].group != view.inner for dims in (view.a, view.b)]
    if any(across) and size != 2:
        return []
    found = []
    for rows, columns in product(_row_tiles(view), _column_tiles(view.extent(view.n))):
        if columns == 256 and dtype in ("int8", "uint8"):  # TVM's table of instructions ends at 224
            continue
        if (across[0] and prod(rows) % 64) or (across[1] and columns % 64):
            continue
        for (consumers, alternate), blocks in product(_CONSUMERS, (1, 2)):
            tiling = _fitted(Tiling(rows, columns, 2, consumers, alternate, blocks), device)
            if tiling is None:
                continue
            tiles = _tiles(view, tiling)
            if tiles[0] * tiles[1] * tiles[2] > device.sms and tiles[1] > 1 and len(view.rows) == 1:
                tiling = Tiling(rows, columns, tiling.stages, consumers, alternate, blocks, min(_RASTER, tiles[1]))
            seconds = predict(view, tiling, workload, device, bk, dtype)
            found.append(Candidate.make("cuda.wgmma", seconds, **tiling.knobs()))
    return found


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
        found += dict.fromkeys(shape for _, _, shape in (*shapes[:_SHAPES], *compact[:_SHAPES]))
    return found


def _column_tiles(n: int) -> list[int]:
    fits = [c for c in _COLUMNS if ceil(n / c) * c <= n * _WASTE]
    return fits or [next((c for c in _COLUMNS if c >= n), _COLUMNS[-1])]


def _fitted(tiling: Tiling, device: CUDAModel) -> Tiling | None:
    """`tiling` with as many stages as fit, or None."""
    for stages in range(_MAX_STAGES, 1, -1):
        found = Tiling(tiling.rows, tiling.columns, stages, tiling.consumers, tiling.alternate, tiling.blocks_per_sm)
        # float32 is the widest that may be exchanged
        if not found.obstacle("float32", device.shared_per_block_bytes, device.shared_per_sm_bytes):
            return found if stages > 2 or tiling.blocks_per_sm == 1 else None
    return None


def _tiles(view: GemmView, tiling: Tiling) -> tuple[int, int, int]:
    """Tiles of batch, rows and columns."""
    rows = prod(ceil(view.groups[g].extent / r) for g, r in zip(view.rows, tiling.rows, strict=True))
    return view.extent(*view.batch), rows, ceil(view.extent(view.n) / tiling.columns)


def predict(view: GemmView, tiling: Tiling, workload: Workload, device: CUDAModel, bk: int, dtype: str) -> float:
    """Seconds of one run."""
    count = prod(_tiles(view, tiling))
    steps = view.extent(*view.steps) * ceil(view.extent(view.inner) / bk)
    kind = "tfloat32" if dtype == "float32" else dtype
    flops_per_cycle = device.mma_flops(kind) / device.sms / device.cycles_per_s * _MMA_SHARE
    l2_per_cycle = _L2_SHARE * device.l2_bytes_per_s / device.sms / device.cycles_per_s
    dram_per_cycle = device.dram_bytes_per_s / device.sms / device.cycles_per_s
    m, n = tiling.m, tiling.columns
    multiply = 2.0 * m * n * bk / flops_per_cycle
    read_b = (
        (n + 64) / (n * 64) * m * n * ROW_BYTES / device.shared_bytes_per_cycle
    )  # 64 rows of A and all of B at once
    copy = (m + n) * ROW_BYTES / l2_per_cycle
    busy = steps * max(multiply, read_b, copy)
    elements = view.extent(*view.batch) * view.extent(*view.rows) * view.extent(view.n)
    own = [arg for arg in workload.args if arg.is_output or (not arg.is_constant and prod_of(arg.shape) == elements)]
    stored = sum(arg.nbytes for arg in own) / elements * m * n
    store = m * n / 32 * _STORE_CYCLES / 4 + stored / dram_per_cycle
    places = device.sms * tiling.blocks_per_sm
    waves = ceil(count / places)
    if tiling.alternate or tiling.blocks_per_sm > 1:
        cycles = waves * tiling.blocks_per_sm * max(busy, store) + min(busy, store)
    else:
        cycles = waves * (busy + store)
    memory = workload.nbytes / device.dram_bytes_per_s
    return max(cycles / device.cycles_per_s, memory) + _FILL_S + device.launch_s


def prod_of(shape: tuple[int | str, ...]) -> int:
    return prod(int(dim) for dim in shape)

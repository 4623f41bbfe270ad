"""Which products tensor cores can compute, which tiles fit a device, and the reasons where not. Arithmetic only."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.model.block_tile import block_obstacle
from subtune.core.numerics import BYTES, FLOAT8, Numerics
from subtune.core.workload import dtype_bits
from subtune.patterns.gemm import Gemm

WARP_TILE = 16
_FRAGMENT_OVERHEAD = 40  # registers: addresses, loop counters, what the epilogue keeps
_DTYPES = {
    "float16": "float32", "bfloat16": "float32", FLOAT8: "float32", "float32": "float32",
    "int8": "int32", "uint8": "int32",
}  # fmt: skip
_WHOLE = 80  # compute capability from which 16 x 8 x 32 bytes are one instruction, and copies asynchronous
_OLDEST = 75  # which multiplies bytes in parts of 8 x 8 x 16
_OLDEST_OF_FLOAT8 = 89
_STAGES_COPIED_BY_THREADS = 2  # one that is filled, one that is read


@dataclass(frozen=True, slots=True)
class MmaTile:
    """A block computes bm x bn sums with wm x wn warps, `stages` tiles of depth bk in flight; K cut into `split`.

    `raster`: blocks of so many rows of tiles share their columns in time, so that L2 holds them.
    """

    bm: int
    bn: int
    bk: int
    wm: int
    wn: int
    stages: int
    raster: int = 1
    split: int = 1

    @property
    def threads(self) -> int:
        return 32 * self.wm * self.wn

    def shared_bytes(self, gemm: Gemm) -> int:
        """What a block allocates: the stages of A and B, or the sums on their way out, which come after."""
        itemsize = dtype_bits(gemm.a.dtype) // 8
        pad = 0 if _swizzles(self, gemm) else 16 * max(self.bm, self.bn, self.bk)
        loads = self.stages * ((self.bm + self.bn) * self.bk * itemsize + 2 * pad)
        return max(loads, self.bm * (self.bn + 32) * 4)

    def registers(self, gemm: Gemm) -> int:
        """Of one thread, as far as they are known before ptxas has its say."""
        sums = self.bm * self.bn // self.threads
        fragments = (self.bm // self.wm + self.bn // self.wn) // WARP_TILE * 4
        return sums + fragments + _FRAGMENT_OVERHEAD

    def blocks(self, gemm: Gemm) -> int:
        return ceil(gemm.m / self.bm) * ceil(gemm.n / self.bn) * gemm.batch * self.split

    def steps(self, gemm: Gemm) -> int:
        """Tiles of depth bk that one block walks through."""
        return ceil(gemm.k / (self.bk * self.split))

    def vector(self, gemm: Gemm, operand: str) -> int:
        """Elements per copy to shared memory: as many as are aligned, and divide the tile among the threads."""
        rows, side = (self.bm, gemm.a) if operand == "a" else (self.bn, gemm.b)
        vector = side.vector if side.inner == inner_of(gemm, operand) else 1
        while vector > 1 and (rows * self.bk) % (self.threads * vector):
            vector //= 2
        return vector


def inner_of(gemm: Gemm, operand: str) -> str:
    """The axis along which a tile of A or B is contiguous in shared memory: `ldmatrix` turns 16-bit elements only."""
    side = gemm.a if operand == "a" else gemm.b
    return side.inner if dtype_bits(side.dtype) == 16 else "k"


def _swizzles(tile: MmaTile, gemm: Gemm) -> bool:
    rows = (
        tile.bk if inner_of(gemm, "a") == "k" else tile.bm,
        tile.bk if inner_of(gemm, "b") == "k" else tile.bn,
    )
    bits = dtype_bits(gemm.a.dtype)
    return all(row * bits // 8 % 128 == 0 or row * bits // 8 in (32, 64) for row in rows)


def tensor_core_obstacle(gemm: Gemm, device: CUDAModel, numerics: Numerics) -> str:
    """Why tensor cores cannot compute `gemm` by `mma.sync` with `ldmatrix`; "" where they can."""
    if numerics.tensor_core == "off":
        return "tensor cores are switched off"
    a, b = gemm.a.dtype, gemm.b.dtype
    are_bytes = {a, b} <= BYTES
    if device.capability < _WHOLE and not (are_bytes and device.capability >= _OLDEST):
        return f"{device.arch} has no mma.sync of 32-byte depth, sm_80 and later do"
    if a != b and not are_bytes:
        return f"operands of {a} and {b}: they must be of one dtype"
    if a == FLOAT8 and device.capability < _OLDEST_OF_FLOAT8:
        return f"{device.arch} multiplies no {FLOAT8}, sm_{_OLDEST_OF_FLOAT8} and later do"
    if a not in _DTYPES:
        return f"operands of {a}: tensor cores multiply {', '.join(_DTYPES)}"
    if a == "float32" and numerics.exact and not numerics.tf32:
        return "operands of float32, exact: rounding them to tf32 is not allowed (allow_tf32)"
    if gemm.acc_dtype not in (_DTYPES[a], a) or (are_bytes and gemm.acc_dtype != "int32"):
        return f"sums of {gemm.acc_dtype} from operands of {a}: tensor cores sum in {_DTYPES[a]}"
    if gemm.a.read > gemm.b.read:
        return "the product is written with its operands exchanged"
    if gemm.m == 1 or gemm.n == 1:
        return "a matrix times a vector: memory bounds it, and 15 of 16 rows of a fragment would be empty"
    return ""


def copies_async(device: CUDAModel) -> bool:
    """Whether memory is copied to shared memory while the warps multiply."""
    return device.capability >= _WHOLE


def multiplies_whole(device: CUDAModel) -> bool:
    """Whether one instruction multiplies 16 x 8 sums, 32 bytes of k deep."""
    return device.capability >= _WHOLE


def splits_operands(gemm: Gemm, numerics: Numerics) -> bool:
    """Whether operands are sums of two numbers of tf32, as float32 has more digits than one of them."""
    return gemm.a.dtype == "float32" and not numerics.tf32


def tile_obstacle(tile: MmaTile, gemm: Gemm, device: CUDAModel) -> str:
    """Why a block of this tile does not work on `device`; "" where it does."""
    k = 256 // dtype_bits(gemm.a.dtype)
    if tile.bm % (WARP_TILE * tile.wm) or tile.bn % (WARP_TILE * tile.wn) or tile.bk % k:
        return f"the tile is no multiple of {WARP_TILE}x{WARP_TILE}x{k} per warp"
    if reason := block_obstacle(tile, gemm, device):
        return reason
    if tile.stages > _STAGES_COPIED_BY_THREADS and not copies_async(device):
        return f"{tile.stages} stages without asynchronous copies"
    if tile.split > 1 and gemm.batch > 1:
        return "split-K of a batch"
    if (tile.bm * tile.bk) % tile.threads or (tile.bn * tile.bk) % tile.threads:
        return "the threads do not share the copies evenly"
    return ""

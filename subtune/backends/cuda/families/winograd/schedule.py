"""Winograd convolution F(m x m, 3 x 3) on CUDA cores, stride 1, NHWC, float32: a quarter of the multiplications.

    V   = B^T x B of every tile of (m + 2)^2 pixels        [(m + 2)^2][tiles][channels]
    M   = V times the weights' transform, (m + 2)^2 products of [tiles, channels] x [channels, columns] (`fma_kernel`)
    out = epilogue(A^T M A)

Three kernels, one after another; V and M are taken from memory while they run. The weights' transform and the choice of
points are `templates.winograd`'s, and so is the rounding error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import ScheduleError

from subtune.backends.algorithms.winograd import WinogradWeights, winograd_obstacle
from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.fma.kernel import Walk, multiply
from subtune.backends.cuda.families.fma.schedule import store_epilogue
from subtune.backends.cuda.families.fma.tensor import tensor_obstacle
from subtune.backends.cuda.families.wgmma.source import padded_param
from subtune.backends.cuda.families.winograd.source import transforms
from subtune.backends.cuda.model.core_tiles import FmaTile
from subtune.backends.cuda.source.calls import address, called, end
from subtune.backends.cuda.source.emit import Code, const, load, prim_func
from subtune.backends.cuda.source.lanes import Lanes, Unsupported, decoded, not_applicable
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.contraction import contraction
from subtune.patterns.stages import anchored

_THREADS = 256
_IN, _OUT = 2, 1
"""Channels of a thread in the transforms of the input and of the output: measured."""
_MAX_ELEMENTS = 1 << 31


@dataclass(frozen=True, slots=True)
class WinogradKnobs:
    """F(m x m, 3 x 3), and the tile of its products."""

    m: int
    bm: int
    bn: int
    bk: int
    tm: int
    tn: int
    stages: int
    blocks: int
    slices: int = 1
    split: int = 1
    tensor: bool = False

    @property
    def tile(self) -> FmaTile:
        return FmaTile(*(getattr(self, name) for name in FmaTile.__slots__))


def schedule(problem: Problem[CUDAModel], knobs: WinogradKnobs) -> Kernel | NotApplicable:
    if problem.numerics.exact:
        return NotApplicable("Winograd's algorithm rounds otherwise than the model says")
    if knobs.tensor and (reason := tensor_obstacle(problem.device, problem.numerics)):
        return NotApplicable(reason)
    try:
        return _schedule(problem, knobs.m, knobs.tile)
    except (ScheduleError, Unsupported) as e:
        return not_applicable(e)


def _schedule(problem: Problem[CUDAModel], m: int, tile: FmaTile) -> Kernel | NotApplicable:
    workload, device, exact = problem.workload, problem.device, problem.numerics.exact
    found = anchored(workload, contraction)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    if reason := winograd_obstacle(info) or tile.obstacle(4, device):
        return NotApplicable(reason)
    if len(stages.producers) > int(info.a.param < 0) or info.a.dtype != "float32":
        return NotApplicable("the input is computed before it is read")
    func = sch.mod["main"]
    params = list(func.params)
    source: Any = (info.a.param, info.a.shape, (0,) * 4)
    if info.a.param < 0:
        source = padded_param(sch.get(stages.producers[0]), params)
        if isinstance(source, NotApplicable):
            return source
    param, shape, before = source
    batch, height, width = (axis.extent for axis in info.of_role("m"))
    channels, columns = shape[-1], info.n.extent
    if before[0] or before[3] or shape[0] != batch or channels % 4 or columns % 4:
        return NotApplicable(f"{channels} channels, {columns} columns, or padding of other than pixels")
    grid = _Grid(m, batch, height, width, -(-height // m), -(-width // m))
    if (m + 2) ** 2 * grid.tiles * max(channels, columns) >= _MAX_ELEMENTS:
        return NotApplicable("more elements than 32 bits count")
    weights = WinogradWeights(m, columns, columns, channels)
    u = tirx.decl_buffer(list(weights.shape), "float32", "u")
    elements = (m + 2) ** 2
    v, products = (
        tirx.decl_buffer([elements, grid.tiles, extent], "float32", name)
        for name, extent in (("v", channels), ("products", columns))
    )
    outputs = [sch.get(block) for block in stages.outputs]
    kernels = [
        _input(grid, params[param], shape, before, v, exact),
        _products(grid, tile, channels, columns, v, u, products),
        _output(grid, sch.get(stages.anchors[0]).body.buffer, columns, products, outputs, exact),
    ]
    written = prim_func(func, kernels, (v, products))
    params[info.b.param] = u
    return Kernel(tirx.PrimFunc(params, written.body, func.ret_type, func.attrs), ((info.b.param, weights),))


@dataclass(frozen=True, slots=True)
class _Grid:
    """Images of `height` x `width` results, `high` x `wide` tiles of m x m each."""

    m: int
    batch: int
    height: int
    width: int
    high: int
    wide: int

    @property
    def tiles(self) -> int:
        return self.batch * self.high * self.wide

    def threads(self, code: Code, chunks: int) -> tuple[Any, Any, Any]:
        """(is one, tile, chunk) of a thread, where every tile is `chunks` threads' work."""
        total = self.tiles * chunks
        block = code.thread("blockIdx.x", -(-total // _THREADS))
        item = block * _THREADS + code.thread("threadIdx.x", _THREADS)
        return (
            tirx.LT(item, const(total)) if total % _THREADS else None,
            tirx.floordiv(item, const(chunks)),
            tirx.floormod(item, const(chunks)),
        )

    def corner(self, code: Code, tile: Any) -> tuple[Any, Any, Any]:
        """Image, and first row and column of a tile's results."""
        image, h, w = decoded(tile, (self.batch, self.high, self.wide), code.analyzer)
        return (
            code.bind("image", image, self.batch),
            code.bind("h", h * self.m, self.high * self.m),
            code.bind("w", w * self.m, self.wide * self.m),
        )


def _input(grid: _Grid, x: Any, shape: tuple[int, ...], before: tuple[int, ...], v: Any, exact: bool) -> Any:
    code = Code(exact)
    _, height, width, channels = shape
    is_one, tile, chunk = grid.threads(code, channels // _IN)
    with code.when(is_one):
        image, h, w = grid.corner(code, tile)
        numbers = (_IN, height, width, channels, grid.tiles)
        name = f"subtune::winograd{grid.m}::input<{', '.join(map(str, numbers))}>"
        channel = chunk * _IN
        to = address(v, tile * channels + channel)
        source = address(x, image * (height * width * channels) + channel)
        code.emit(called(name, (to, source, h - before[1], w - before[2]), transforms(grid.m)))
    return code.kernel()


def _products(grid: _Grid, tile: FmaTile, channels: int, columns: int, v: Any, u: Any, products: Any) -> Any:
    code = Code()
    rows, across = grid.tiles, -(-columns // tile.bn)
    block = code.thread("blockIdx.x", -(-rows // tile.bm) * across)
    element = code.thread("blockIdx.z", (grid.m + 2) ** 2)
    thread = code.thread("threadIdx.x", tile.threads)
    row, column = tirx.floordiv(block, const(across)), tirx.floormod(block, const(across))
    first = row * tile.bm, column * tile.bn, const(0)
    operands = address(v, element * (rows * channels)), address(u, element * (channels * columns))
    walk = Walk(channels)
    sums = multiply(
        code,
        tile,
        walk,
        (rows, columns),
        first,
        operands,
        lambda row: (row * channels, const(0), const(0), const(0)),
        thread,
        (end(v),),
    )
    width = sums.vector
    lane = code.variable("lane", width)
    for j in range(tile.tn // width):
        with code.unrolled(sums.rows) as i:
            row, column = sums.row(i), sums.column(j)
            inside = [tirx.LT(row, const(rows))] if rows % tile.bm else []
            inside += [tirx.LT(column, const(columns))] if columns % tile.bn else []
            with code.when(tirx.all(*inside) if inside else None):
                total = load(sums.registers, i * tile.tn + j * width + lane)
                Lanes(code, lane, width).write(products, [element, row, column + lane], total)
    return code.kernel(tile.blocks)


def _output(grid: _Grid, result: Any, columns: int, products: Any, outputs: list[Any], exact: bool) -> Any:
    code, m = Code(exact), grid.m
    is_one, tile, chunk = grid.threads(code, columns // _OUT)
    y = code.local("float32", m * m * _OUT, "y")
    lane = code.variable("lane", _OUT)
    with code.when(is_one):
        image, h, w = grid.corner(code, tile)
        name = f"subtune::winograd{m}::output<{_OUT}, {grid.tiles * columns}>"
        source = address(products, tile * columns + chunk * _OUT)
        code.emit(called(name, (address(y, const(0)), source), transforms(m)))
        for r in range(m):
            for s in range(m):
                inside = [tirx.LT(h + r, const(grid.height))] if grid.height % m else []
                inside += [tirx.LT(w + s, const(grid.width))] if grid.width % m else []
                with code.when(tirx.all(*inside) if inside else None):
                    place = [image, h + r, w + s, chunk * _OUT + lane]
                    total = load(y, const((r * m + s) * _OUT) + lane)
                    store_epilogue(code, result, outputs, place, lane, _OUT, total)
    return code.kernel()

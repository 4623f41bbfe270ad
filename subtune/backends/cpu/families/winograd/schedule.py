"""Winograd convolution F(m x m, 3 x 3), stride 1, NHWC: fewer multiplications, bounded rounding error.

    Xp  the input, padded so that tiles of (m + 2)^2 cover it
    V   = B^T x B of every tile, vectorised over channels
    M   = one GEMM per element of the tile, and per group: [tiles, IC] x [IC, OC]
    Y   = A^T M A, and the epilogue on it, before the store

The weights' transform G w G^T is done once, at compile time. With `fuse` the three stages run per row of tiles, so
that V and M stay in cache. Error relative to float64 on random data, measured: F(2) 4e-7, F(4) 2e-6, about that of
the sums of a direct convolution (1e-6).
Sources: Lavin & Gray, "Fast Algorithms for Convolutional Neural Networks", 2016; on the choice of points Barabasz et
al., "Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks", 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import te, tirx
from tvm.s_tir import Schedule, ScheduleError
from tvm.tirx import PrimFunc

from subtune.backends.algorithms.winograd import TRANSFORMS, Matrix, WinogradWeights
from subtune.backends.cpu.families.winograd.candidates import Knobs, obstacle
from subtune.backends.cpu.family import CPUProblem
from subtune.backends.cpu.loops.prefetch import MicroKernel, prefetch_panels
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.contraction import Contraction, contraction
from subtune.patterns.stages import Stages, anchored
from subtune.tir.blocks import all_blocks, root_stages, stage_block, with_stages
from subtune.tir.expressions import loads
from subtune.tir.substitute import substitute
from subtune.tir.tile import place_in_registers


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    m, nr = knobs.m, knobs.nr
    found = anchored(problem.workload, contraction)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    if reason := obstacle(info, problem):
        return NotApplicable(reason)
    if m not in TRANSFORMS:
        return NotApplicable(f"no F({m})")
    columns, lanes = info.per_group or info.n.extent, info.lanes(problem.device.lanes())
    if nr % lanes or columns % nr:
        return NotApplicable(f"{columns} channels are no multiple of nr={nr} in vectors of {lanes}")
    func, geometry = _rewrite(sch, stages, info, m, nr)
    rewritten = Schedule(func)
    try:
        _schedule(rewritten, geometry, knobs, lanes, problem.device.lanes())
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])
    weights = WinogradWeights(m, nr, info.n.extent, info.b.shape[-1])
    scheduled = rewritten.mod["main"]
    if knobs.prefetch:
        kernel = MicroKernel("wino_m_update", depth=5 if knobs.fuse else 3, rows=1, reduce=1)
        scheduled = prefetch_panels(scheduled, scheduled.params[info.b.param], kernel)
    return Kernel(scheduled, ((info.b.param, weights),))


@dataclass(frozen=True, slots=True)
class _Geometry:
    """Names of the rewritten function's blocks."""

    outputs: tuple[str, ...]
    pads: tuple[str, ...]


def _dims(*extents: int) -> list[Any]:
    """Extents as Relax makes them, so that indices of both functions agree."""
    return [tirx.const(extent, "int64") for extent in extents]


def _element(matrix: Matrix, row: Any, column: Any) -> Any:
    """`matrix[row][column]` for loop variables that will be unrolled: folds to a literal, and x * 0 vanishes."""
    result: Any = None
    for r in reversed(range(len(matrix))):
        value: Any = tirx.const(float(matrix[r][column]), "float32")
        result = value if result is None else tirx.Select(row == tirx.const(r, "int64"), value, result)
    return result


def _sum(terms: list[Any]) -> Any:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _rewrite(sch: Schedule, stages: Stages, info: Contraction, m: int, nr: int) -> tuple[Any, _Geometry]:
    """The workload with its convolution computed by Winograd's algorithm, its weights already transformed."""
    func = sch.mod["main"]
    anchor = sch.get(stages.anchors[0])
    source = anchor.reads[info.a.read].source
    result = anchor.writes[0].source
    n, height, width, channels = (int(d) for d in source.shape)
    out_h, out_w, out_c = (int(d) for d in result.shape[1:])
    tiles_h, tiles_w = -(-out_h // m), -(-out_w // m)
    tiles = n * tiles_h * tiles_w
    a = m + 2
    bt, _, at = TRANSFORMS[m]

    dtype = str(source.dtype)  # bfloat16 is widened where the input's transform reads it
    data = te.placeholder(_dims(n, height, width, channels), dtype, name="data")
    u = te.placeholder(_dims(a, a, out_c // nr, info.b.shape[-1], nr), "float32", name="u")
    xp = _covering(data, tiles_h * m + 2, tiles_w * m + 2)

    def pixel(p: Any, h: Any, w: Any, c: Any) -> Any:
        value = xp[p // (tiles_h * tiles_w), p // tiles_w % tiles_h * m + h, p % tiles_w * m + w, c]
        return value if dtype == "float32" else value.astype("float32")

    t = te.compute(
        _dims(tiles, a, a, channels),
        lambda p, e, s, c: _sum([pixel(p, r, s, c) * _element(bt, e, r) for r in range(a)]),
        name="wino_t",
    )
    v = te.compute(
        _dims(a, a, tiles, channels),
        lambda e, s, p, c: _sum([t[p, e, r, c] * _element(bt, s, r) for r in range(a)]),
        name="wino_v",
    )
    gemm = _products(anchor, info, v, u)
    rows = te.compute(
        _dims(tiles, m, a, out_c),
        lambda p, i, s, o: _sum([gemm[r, s, p, o] * _element(at, i, r) for r in range(a)]),
        name="wino_s",
    )
    y = te.compute(
        _dims(tiles, m, m, out_c),
        lambda p, i, j, o: _sum([rows[p, i, r, o] * _element(at, j, r) for r in range(a)]),
        name="wino_y",
    )
    conv = te.compute(
        _dims(n, out_h, out_w, out_c),
        lambda i, h, w, o: y[(i * tiles_h + h // m) * tiles_w + w // m, h % m, w % m, o],
        name="wino_out",
    )
    inner = te.create_prim_func([data, u, conv])
    return _graft(func, inner, source, result, info.b.param, sch, stages)


def _products(anchor: Any, info: Contraction, v: Any, u: Any) -> Any:
    """A GEMM per element of the tile, over the channels that the anchor's columns multiply: of groups, their own."""
    source = anchor.reads[info.a.read].source
    nr = int(u.shape[-1])
    k = te.reduce_axis((_dims(0)[0], u.shape[3]), "k")
    (load,) = (found for found in loads(anchor.body.value) if found.source.same_as(source))
    of_column, of_depth = anchor.iter_vars[info.n.index].var, anchor.iter_vars[info.b.axes[-1]].var

    def channel(o: Any) -> Any:
        return substitute(load.indices[-1], {of_column: o, of_depth: k.var})

    return te.compute(
        [*v.shape[:3], _dims(info.n.extent)[0]],
        lambda e, s, p, o: te.sum(v[e, s, p, channel(o)] * u[e, s, o // nr, k, o % nr], axis=k),
        name="wino_m",
    )


def _covering(data: Any, least_height: int, least_width: int) -> Any:
    """`data` (n, h, w, c), with zeros below and on the right where it is smaller than whole tiles."""
    n, height, width, channels = (int(d) for d in data.shape)
    if least_height <= height and least_width <= width:
        return data
    return te.compute(
        _dims(n, least_height, least_width, channels),
        lambda i, h, w, c: te.if_then_else(
            te.all(h < height, w < width), data[i, h, w, c], tirx.const(0, data.dtype)
        ),
        name="wino_xp",
    )  # fmt: skip


def _graft(
    func: PrimFunc, inner: PrimFunc, source: Any, result: Any, weights: int, sch: Schedule, stages: Stages
) -> tuple[Any, _Geometry]:
    """Put the stages of `inner(data, u, conv)` in the place of the anchor of `func`."""
    data, u, conv = inner.params
    inner_root = substitute(inner.body, {data: source, conv: result}).block
    anchor = sch.get(stages.anchors[0]).name_hint
    merged: list[Any] = []
    for stage in root_stages(func):
        merged += list(inner_root.body.seq) if stage_block(stage).name_hint == anchor else [stage]
    params = list(func.params)
    params[weights] = u
    buffers = [*func.body.block.alloc_buffers, *inner_root.alloc_buffers]
    outputs = tuple(sch.get(b).name_hint for b in stages.outputs) or ("wino_out",)
    pads = tuple(sch.get(b).name_hint for b in stages.producers)
    return with_stages(func, merged, buffers, params), _Geometry(outputs, pads)


def _schedule(sch: Schedule, names: _Geometry, knobs: Knobs, lanes: int, widest: int) -> None:
    """The products in vectors of `lanes`, the transforms, which run over all groups, in those of `widest`."""
    m, mr, nr, fuse = knobs.m, knobs.mr, knobs.nr, knobs.fuse
    block = sch.get_sblock
    has_xp = any(sch.get(b).name_hint == "wino_xp" for b in all_blocks(sch))
    if names.outputs != ("wino_out",):
        sch.compute_inline(block("wino_out"))
    if has_xp:
        for pad in names.pads:
            sch.compute_inline(block(pad))
    padded = "wino_xp" if has_xp else (names.pads[-1] if names.pads else None)

    # output: one tile of m x m pixels, one vector of channels
    copy = sch.cache_write(block("wino_m"), 0, "local")
    (first,) = (block(name) for name in names.outputs)
    n, h, w, o = sch.get_loops(first)
    th, i = sch.split(h, [None, m])
    tw, j = sch.split(w, [None, m])
    oo, ov = sch.split(o, [None, widest])
    sch.reorder(n, th, tw, oo, i, j, ov)
    sch.vectorize(ov)
    sch.unroll(i)
    sch.unroll(j)
    tile_rows = sch.fuse(n, th)
    sch.parallel(tile_rows)
    for name in ("wino_y", "wino_s"):
        place_in_registers(sch, block(name), oo)

    # products
    stage = copy
    if fuse:
        sch.compute_at(stage, tile_rows)
    e, s, p, c = sch.get_loops(stage)[-4:]
    po, pi = sch.split(p, [None, mr])
    co, cv, ci = sch.split(c, [None, nr // lanes, lanes])
    sch.reorder(e, s, co, po, pi, cv, ci)
    if not fuse:
        sch.parallel(sch.fuse(e, s))
    sch.vectorize(ci)
    sch.unroll(cv)
    sch.unroll(pi)
    gemm = block("wino_m")
    sch.compute_at(gemm, po)
    pi2, c2, k = sch.get_loops(gemm)[-3:]
    cv2, ci2 = sch.split(c2, [None, lanes])
    sch.reorder(k, pi2, cv2, ci2)
    sch.vectorize(ci2)
    sch.unroll(cv2)
    sch.unroll(pi2)

    _schedule_input(sch, padded, tile_rows if fuse else None, widest)
    sch.decompose_reduction(gemm, k)


def _schedule_input(sch: Schedule, padded: str | None, at: Any | None, lanes: int) -> None:
    """The input's transform, inside the loop `at`, or by itself; `padded`: the block that it reads, if one pads."""
    stage = sch.get_sblock("wino_v")
    if at is not None:
        sch.compute_at(stage, at)
    e, s, p, c = sch.get_loops(stage)[-4:]
    co, ci = sch.split(c, [None, lanes])
    sch.reorder(p, co, e, s, ci)
    sch.vectorize(ci)
    sch.unroll(e)
    sch.unroll(s)
    if at is None:
        sch.parallel(p)
    place_in_registers(sch, sch.get_sblock("wino_t"), co)
    if padded is not None:
        stage = sch.get_sblock(padded)
        if at is not None:
            sch.compute_at(stage, at)
        loops = sch.get_loops(stage)
        _, vec = sch.split(loops[-1], [None, lanes])
        sch.vectorize(vec)
        if at is None:
            sch.parallel(sch.fuse(*loops[:2]))

"""Winograd convolution F(m x m, 3 x 3), stride 1, NHWC: fewer multiplications, bounded rounding error.

    Xp  the input, padded so that tiles of (m + 2)^2 cover it
    V   = B^T x B of every tile, vectorised over channels
    M   = one GEMM per element of the tile, and per group: [tiles, IC] x [IC, OC]; in whole register tiles
    Y   = A^T M A, and the epilogue on it, before the store

Of bytes it is computed in integers, and exact (`arithmetic`): F(4) alone, and up to as many channels as leave
sums small enough. The weights' transform G w G^T is done once, at compile time. With `fuse` the three stages run per
row of tiles, so that V and M stay in cache. Error relative to float64 on random data, measured: F(2) 4e-7, F(4) 2e-6,
about that of the sums of a direct convolution (1e-6).
Sources: Lavin & Gray, "Fast Algorithms for Convolutional Neural Networks", 2016; on the choice of points Barabasz et
al., "Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks", 2020.
"""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.algorithms.winograd import TRANSFORMS
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.families.winograd.arithmetic import FLOATS, INTEGERS, arithmetic_of
from subtune.backends.cpu.families.winograd.candidates import Knobs, obstacle, shares_columns
from subtune.backends.cpu.families.winograd.coming_rows import prefetch_coming_rows
from subtune.backends.cpu.families.winograd.stages import Geometry, rewritten
from subtune.backends.cpu.family import CPUProblem
from subtune.backends.cpu.loops.prefetch import L1, L2_AND_BEYOND, MicroKernel, prefetch_panels
from subtune.backends.cpu.math.int16_ops import pair_dots, with_int16_ops
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import dtype_bits
from subtune.patterns.contraction import contraction
from subtune.patterns.stages import anchored
from subtune.tir.blocks import all_blocks
from subtune.tir.tile import extent_of, place_in_registers, vector_width


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    m, nr = knobs.m, knobs.nr
    found = anchored(problem.workload, contraction)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    if reason := obstacle(info, problem):
        return NotApplicable(reason)
    by = arithmetic_of(info)
    if m not in (TRANSFORMS if by is FLOATS else (4,)):
        return NotApplicable(f"no F({m})")
    columns, lanes = info.per_group or info.n.extent, info.lanes(problem.device.lanes())
    if nr % lanes or columns % nr:
        return NotApplicable(f"{columns} channels are no multiple of nr={nr} in vectors of {lanes}")
    if knobs.shares and not shares_columns(info, nr, problem.device):
        return NotApplicable("columns are not shared out evenly")
    weights = by.weights(info, m, nr)
    func, geometry = rewritten(sch, stages, info, m, weights, 1 if knobs.fuse else knobs.mr)
    new = Schedule(func)
    try:
        _schedule(new, geometry, knobs, lanes, problem.device, by.count)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])
    scheduled = new.mod["main"]
    if knobs.prefetch:
        ahead = columns // nr if knobs.shares else 1  # the next element's
        depth = 6 if knobs.shares else 5 if knobs.fuse else 3
        kernel = MicroKernel("wino_m_update", depth, rows=1, reduce=1, passes=knobs.passes, ahead=ahead)
        panels = scheduled.params[info.b.param]
        scheduled = prefetch_panels(scheduled, panels, kernel, _next_panel(panels, knobs.mr, problem))
    if knobs.fuse:
        out_h = info.of_role("m")[1].extent
        scheduled = prefetch_coming_rows(scheduled, ("wino_t", "wino_xp", *geometry.pads), m, out_h)
    if by is INTEGERS:
        dot = pair_dots(problem.device.features, problem.device.lanes())
        assert dot is not None, "accepted"
        scheduled = with_int16_ops(scheduled, dot)
    return Kernel(scheduled, ((info.b.param, weights),))


def _next_panel(panels: Any, rows: int, problem: CPUProblem) -> int:
    """The cache that the next panel of weights is fetched into: L1 where two of them and the tile's rows fit.

    Measured of 256 channels of 14x14 whose weights come from memory, on a Zen 4: 1.1 times as fast as from L2.
    """
    depth, nr = (int(extent) for extent in panels.shape[-2:])
    return L1 if 4 * depth * (2 * nr + rows) <= problem.device.l1d_bytes else L2_AND_BEYOND


def _schedule(sch: Schedule, names: Geometry, knobs: Knobs, lanes: int, device: CPUModel, count: int) -> None:
    """The products in vectors of `lanes`, the transforms, which run over all groups, in the widest.

    What is transformed of the input has `count` elements where the products have one.
    """
    mr, nr, fuse, widest = knobs.mr, knobs.nr, knobs.fuse, device.lanes()
    block = sch.get_sblock
    has_xp = any(sch.get(b).name_hint == "wino_xp" for b in all_blocks(sch))
    if names.outputs != ("wino_out",):
        sch.compute_inline(block("wino_out"))
    if has_xp:
        for pad in names.pads:
            sch.compute_inline(block(pad))
    padded = "wino_xp" if has_xp else (names.pads[-1] if names.pads else None)

    copy = sch.cache_write(block("wino_m"), 0, "local")
    # what the output's transform reads of a tile lies side by side: of 36 places a page apart, L1 prefetches none
    sch.transform_layout(copy, ("write", 0), lambda e, s, p, o: [p, o // widest, e, s, o % widest])
    shared, at = _schedule_output(sch, names, knobs, device)
    is_apart = not fuse and not knobs.shares

    # products
    stage = copy
    if not is_apart:
        sch.compute_at(stage, at)
    e, s, p, c = sch.get_loops(stage)[-4:]
    po, pi = sch.split(p, [None, mr])
    co, cv, ci = sch.split(c, [None, nr // lanes, lanes])
    sch.reorder(e, s, co, po, pi, cv, ci)
    if is_apart:
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

    _schedule_input(sch, padded, None if is_apart else shared, widest * count, 4 * widest)
    sch.decompose_reduction(gemm, k)


def _schedule_output(sch: Schedule, names: Geometry, knobs: Knobs, device: CPUModel) -> tuple[Any, Any]:
    """One tile of m x m pixels, one vector of channels at a time.

    Returns:
        the loop that threads share, and the one in which the products are computed if they are not by themselves.
    """
    block, widest = sch.get_sblock, device.lanes()
    (first,) = (block(name) for name in names.outputs)
    n, h, w, o = sch.get_loops(first)
    th, i = sch.split(h, [None, knobs.m])
    tw, j = sch.split(w, [None, knobs.m])
    oo, ov = sch.split(o, [None, widest])
    sch.reorder(n, th, tw, oo, i, j, ov)
    sch.vectorize(ov)
    sch.unroll(i)
    sch.unroll(j)
    if knobs.shares:
        shared, at, oo = sch.split(oo, [device.threads, None, knobs.nr // widest])
        sch.reorder(shared, at, n, th, tw, oo)
    else:
        shared = at = sch.fuse(n, th)
    sch.parallel(shared)
    for name in ("wino_y", "wino_s"):
        place_in_registers(sch, block(name), oo)
    return shared, at


def _schedule_input(sch: Schedule, padded: str | None, at: Any | None, lanes: int, vector_bytes: int) -> None:
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
        widest = vector_bytes * 8 // dtype_bits(str(sch.get(stage).writes[0].source.dtype))
        _, vec = sch.split(loops[-1], [None, vector_width(extent_of(sch, loops[-1]), widest)])
        sch.vectorize(vec)
        if at is None:
            sch.parallel(sch.fuse(*loops[:2]))

"""Split-K GEMM with a constant B, for reductions so long that no panel of B stays in a cache.

    for chunks of k (parallel):  for n tile, m tile:  micro-kernel over the chunk  ->  partial[chunk, m, n]
    for m (parallel):  sum of the partial results, epilogue

A chunk of A and of B stays in L2 while all of its tiles are computed, so each is read from memory once.
Source: the stream and split-K decompositions of GPU GEMMs; here for the sake of the caches, and of parallelism when
the output is small.
"""

from __future__ import annotations

from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.families.contraction.schedule import packed_index, packing_of
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload, dtype_bits
from subtune.patterns.contraction import Contraction, contraction
from subtune.patterns.stages import Stages, anchored
from subtune.tir.prepack import PREPROC_ATTR, split_prepack
from subtune.tir.tile import vectorize_tile


def schedule(workload: Workload, candidate: Candidate, device: CPUModel) -> Kernel | NotApplicable:
    mr, nr, kc = (int(candidate[name]) for name in ("mr", "nr", "kc"))
    found = anchored(workload, contraction)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    if stages.producers:
        return NotApplicable("split-K is for a matrix product alone")
    lanes = device.lanes(dtype_bits(info.acc_dtype))
    if [axis.role for axis in info.axes] != ["m", "n", "k"] or not info.b.is_constant or -1 in info.b.axes:
        return NotApplicable("split-K is for a matrix times a constant matrix")
    m, n, k = (axis.extent for axis in info.axes)
    if m % mr or n % nr or nr % lanes or k % kc or kc == k:
        return NotApplicable(f"the tile {mr} x {nr} x {kc} does not divide {m} x {n} x {k}")
    if len(stages.outputs) > 1:
        return NotApplicable("several outputs")
    try:
        return _schedule(sch, stages, info, (mr, nr, kc), lanes)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])


def _schedule(
    sch: Schedule, stages: Stages, info: Contraction, tile: tuple[int, int, int], lanes: int
) -> Kernel | NotApplicable:
    mr, nr, kc = tile
    total = stages.anchors[0]
    packed = sch.cache_read(total, info.b.read, "global")
    layout = [info.n.index, info.of_role("k")[0].index]
    dims = {axis: dim for dim, axis in enumerate(info.b.axes)}
    sch.transform_layout(total, ("read", info.b.read), packed_index(dims, layout, info.n.index, nr))
    sch.annotate(packed, PREPROC_ATTR, True)

    _, _, k = sch.get_loops(total)
    chunk, _ = sch.split(k, [None, kc])
    partial = sch.rfactor(chunk, 0)
    tile_copy = sch.cache_write(partial, 0, "local")
    m, n, chunk, ki = sch.get_loops(partial)
    mo, mi = sch.split(m, [None, mr])
    no, nv, ni = sch.split(n, [None, nr // lanes, lanes])
    sch.reorder(chunk, no, mo, ki, mi, nv, ni)
    sch.reverse_compute_at(tile_copy, mo)
    sch.vectorize(ni)
    sch.unroll(nv)
    sch.unroll(mi)
    sch.parallel(chunk)
    sch.decompose_reduction(partial, ki)
    vectorize_tile(sch, tile_copy, 3, lanes)

    if stages.outputs:
        (output,) = stages.outputs
        *rows, columns = sch.get_loops(output)
        outer, vec = sch.split(columns, [None, lanes])
        sch.set_scope(total, 0, "local")
        sch.compute_at(total, outer)
        chunk, inner = sch.get_loops(total)[len(rows) + 1 :]  # rfactor puts the new reduction axis first
        sch.vectorize(inner)
        sch.vectorize(vec)
        sch.parallel(rows[0])
    else:
        m, n, chunk = sch.get_loops(total)
        no, ni = sch.split(n, [None, lanes])
        sch.reorder(m, no, chunk, ni)
        sch.vectorize(ni)
        sch.parallel(m)
    sch.decompose_reduction(total, chunk)
    func = split_prepack(sch.mod["main"], info.b.param)
    return Kernel(func, ((info.b.param, packing_of(info, layout, nr)),), sch.trace)

"""Register-blocked contraction of bfloat16 operands with float32 accumulators, through `vdpbf16ps`.

The loops are those of `templates.contraction`, over pairs of the reduction axis (`bf16_pairs`): the micro-kernel
broadcasts two bfloat16 of A (32 bits) and multiplies them with a vector of pairs of B, packed `[n / nr][k / 2][nr][2]`.

Products of two bfloat16 are exact in float32; `vdpbf16ps` rounds their sums to nearest even, takes denormals for zero
and flushes results that are denormal.
"""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule, ScheduleError

from subtune.anchor import Contraction, contraction
from subtune.candidate import Candidate
from subtune.device import CPUModel
from subtune.kernel import Kernel, NotApplicable
from subtune.stages import anchored, classify
from subtune.templates.bf16_ops import DOT_LANES, FEATURE
from subtune.templates.bf16_pairs import Paired, PairPacking, in_pairs
from subtune.templates.contraction import packed_index, packing_of
from subtune.templates.padding import pad_axes
from subtune.templates.prefetch import MicroKernel, prefetch_panels
from subtune.templates.prepack import split_prepack
from subtune.templates.tile import extent_of, place_pad, vector_width, vectorize_tile
from subtune.workload import Workload


def schedule(workload: Workload, candidate: Candidate, device: CPUModel) -> Kernel | NotApplicable:
    mr, nr = int(candidate["mr"]), int(candidate["nr"])
    if FEATURE not in device.features:
        return NotApplicable("the processor has no AVX512-BF16")
    found = anchored(workload, contraction)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    if info.acc_dtype != "float32" or nr % DOT_LANES:
        return NotApplicable(f"needs float32 accumulators in vectors of {DOT_LANES}")
    name = sch.get(stages.anchors[0]).name_hint
    func, param = sch.mod["main"], info.b.param if info.b.is_constant else -1
    if padded := _padding(info, mr, nr):
        func = pad_axes(func, name, info, padded)
        sch = Schedule(func)
        padded_info = contraction(sch, sch.get_sblock(name))
        assert isinstance(padded_info, Contraction), padded_info.reason
        info = padded_info
    paired = in_pairs(func, name, info)
    if isinstance(paired, NotApplicable):
        return paired
    try:
        return _schedule(paired, name, param, candidate)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])


def _padding(info: Contraction, mr: int, nr: int) -> dict[int, int]:
    """New extents of the axes that the tile does not divide: the last m axis and the n axis."""
    rows = info.of_role("m")
    tiles = [(info.n, nr)] + ([(rows[-1], mr)] if rows else [])
    return {axis.index: -(-axis.extent // tile) * tile for axis, tile in tiles if axis.extent % tile}


def _schedule(paired: Paired, name: str, param: int, candidate: Candidate) -> Kernel | NotApplicable:
    mr, nr, mt = (int(candidate[knob]) for knob in ("mr", "nr", "mt"))
    order, info = str(candidate["order"]), paired.info
    sch = Schedule(paired.func)
    stages = classify(sch)
    if isinstance(stages, NotApplicable):
        return stages
    block = sch.get_sblock(name)
    pads = _feeders(sch, paired)
    k_axes = [axis.index for axis in info.of_role("k")]
    layout = [*(axis.index for axis in info.of_role("batch")), info.n.index, *k_axes]
    dims = {axis: dim for dim, axis in enumerate(info.b.axes)}
    sch.transform_layout(block, ("read", info.b.read), packed_index(dims, layout, info.n.index, nr))

    loops = sch.get_loops(block)
    batch = [loops[axis.index] for axis in info.of_role("batch")]
    rows = [loops[axis.index] for axis in info.of_role("m")]
    reduce = [loops[axis] for axis in k_axes]
    no, nv, ni = sch.split(loops[info.n.index], [None, nr // DOT_LANES, DOT_LANES])
    if not rows:
        rows = [sch.add_unit_loop(no)]
    *outer_rows, last_row = rows
    if outer_rows:  # convolution: a tile is mt output rows of mr pixels each
        ho, hi = sch.split(outer_rows[-1], [None, mt])
        wo, wi = sch.split(last_row, [None, mr])
        outer, middle = [*outer_rows[:-1], ho], [hi, wo]
    else:
        mo, mm, wi = sch.split(last_row, [None, mt, mr])
        outer, middle = [mo], [mm]
    if order == "n":
        nest, parallel = [*batch, no, *outer, *middle], [*batch, no]
    else:
        nest = [*batch, *outer, no, *middle]
        parallel = [*batch, *outer] if order == "m" else [*batch, *outer, no]
    packs_online = param < 0
    if packs_online and batch:
        parallel = batch  # each batch's B is packed once, by the thread that uses it
    sch.reorder(*nest, *reduce, wi, nv, ni)

    outputs = list(stages.outputs)
    if outputs:
        sch.set_scope(block, 0, "local")
    else:
        outputs = [sch.cache_write(block, 0, "local")]
    for output in outputs:
        sch.reverse_compute_at(output, nest[-1])
    depth = len(sch.get_loops(block)) - len(reduce) - 3 - (len(parallel) - 1)
    fused = sch.fuse(*parallel)
    if packs_online:
        _place_online_pack(sch, sch.get_sblock(paired.b_pairs), info, fused if batch else None, candidate.is_serial)
    for pad in pads:
        place_pad(sch, pad, fused if order == "m" else None, 2 * DOT_LANES, candidate.is_serial)
    sch.vectorize(ni)
    sch.unroll(nv)
    sch.unroll(wi)
    if not candidate.is_serial:
        sch.parallel(fused)
    sch.decompose_reduction(block, reduce[0])
    for output in outputs:
        vectorize_tile(sch, output, depth, DOT_LANES)
    if packs_online:
        return Kernel(sch.mod["main"])
    func = split_prepack(sch.mod["main"], param)
    if candidate.get("prefetch"):
        depth, inside = 1 + len(nest) - len(parallel), len(nest) - nest.index(no) - 1
        kernel = MicroKernel(sch.get(block).name_hint, depth, inside, len(reduce))
        func = prefetch_panels(func, func.params[param], kernel)
    return Kernel(func, ((param, PairPacking(paired.k_dim, packing_of(info, layout, nr))),))


def _feeders(sch: Schedule, paired: Paired) -> list[Any]:
    """The blocks that make A (its padding or its copy, never both). What feeds B's pairs is inlined into them."""
    keep = []
    stages = classify(sch)
    assert not isinstance(stages, NotApplicable), stages.reason
    for name in [sch.get(block).name_hint for block in stages.producers]:
        block = sch.get_sblock(name)
        readers = {sch.get(reader).name_hint for reader in sch.get_consumers(block)}
        if name == paired.b_pairs:
            continue
        if readers & {paired.b_pairs, paired.a_copy}:
            sch.compute_inline(block)
        else:
            keep.append(block)
    return keep


def _place_online_pack(sch: Schedule, pairs: Any, info: Contraction, at: Any | None, is_serial: bool) -> None:
    """Pair and pack a B that is no constant inside the kernel: per batch inside the parallel loop, or at the root."""
    if at is not None:
        sch.compute_at(pairs, at, preserve_unit_loops=True)
    loops = sch.get_loops(pairs)[-len(info.b.axes) :]
    inside = loops[1:] if at is not None else loops
    n_dim = info.b.axes.index(info.n.index)
    n = loops[n_dim]
    others = [loop for loop in inside if not loop.same_as(n)]
    width = vector_width(extent_of(sch, n), DOT_LANES)
    no, ni = sch.split(n, [None, width])
    sch.reorder(*others[:-1], no, *others[-1:], ni)
    if at is None and not is_serial:
        sch.parallel(no if not others[:-1] else others[0])
    sch.vectorize(ni)

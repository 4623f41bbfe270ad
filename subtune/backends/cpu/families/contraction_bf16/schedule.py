"""Register-blocked contraction of bfloat16 operands with float32 accumulators, through `vdpbf16ps`.

The loops are those of `loop_nest`, over pairs of the reduction axis (`bf16_pairs`): the micro-kernel
broadcasts two bfloat16 of A (32 bits) and multiplies them with a vector of pairs of B, packed `[n / nr][k / 2][nr][2]`.

Products of two bfloat16 are exact in float32; `vdpbf16ps` rounds their sums to nearest even, takes denormals for zero
and flushes results that are denormal.
"""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.families.contraction.schedule import packed_index, packing_of
from subtune.backends.cpu.loops.last_tile import narrowed
from subtune.backends.cpu.loops.loop_nest import Tiling, mark, micro_kernel, place
from subtune.backends.cpu.loops.padding import pad_axes
from subtune.backends.cpu.loops.prefetch import prefetch_panels
from subtune.backends.cpu.math.bf16_ops import DOT_LANES, FEATURE
from subtune.backends.cpu.math.bf16_pairs import Paired, PairPacking, in_pairs
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.contraction import Contraction, contraction
from subtune.patterns.stages import anchored, classify
from subtune.tir.prepack import split_prepack
from subtune.tir.tile import extent_of, vector_width


def schedule(workload: Workload, candidate: Candidate, device: CPUModel) -> Kernel | NotApplicable:
    tiling = Tiling.of(candidate, DOT_LANES)
    if FEATURE not in device.features:
        return NotApplicable("the processor has no AVX512-BF16")
    found = anchored(workload, contraction)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    if info.acc_dtype != "float32" or tiling.nr % DOT_LANES:
        return NotApplicable(f"needs float32 accumulators in vectors of {DOT_LANES}")
    name, columns = sch.get(stages.anchors[0]).name_hint, info.n.extent
    func, param = sch.mod["main"], info.b.param if info.b.is_constant else -1
    if padded := tiling.padding(info):
        func = pad_axes(func, name, info, padded)
        sch = Schedule(func)
        padded_info = contraction(sch, sch.get_sblock(name))
        assert isinstance(padded_info, Contraction), padded_info.reason
        info = padded_info
    paired = in_pairs(func, name, info)
    if isinstance(paired, NotApplicable):
        return paired
    try:
        return _schedule(paired, name, param, columns, tiling, bool(candidate.get("prefetch")))
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])


def _schedule(
    paired: Paired, name: str, param: int, columns: int, tiling: Tiling, prefetches: bool
) -> Kernel | NotApplicable:
    info, nr = paired.info, tiling.nr
    sch = Schedule(paired.func)
    stages = classify(sch)
    if isinstance(stages, NotApplicable):
        return stages
    block = sch.get_sblock(name)
    pads = _feeders(sch, paired)
    batch, k_axes = ([axis.index for axis in info.of_role(role)] for role in ("batch", "k"))
    layout = [*batch, info.n.index, *k_axes]
    dims = {axis: dim for dim, axis in enumerate(info.b.axes)}
    sch.transform_layout(block, ("read", info.b.read), packed_index(dims, layout, info.n.index, nr))

    packs_online = param < 0
    nest = place(sch, block, stages.outputs, info, tiling, packs_online)
    if packs_online:
        _place_online_pack(sch, sch.get_sblock(paired.b_pairs), info, nest.batch, tiling.is_serial)
    mark(sch, nest, tiling, pads, 2 * DOT_LANES)
    kernel = micro_kernel(sch, nest)
    func = sch.mod["main"] if packs_online else split_prepack(sch.mod["main"], param)
    if prefetches and not packs_online:
        func = prefetch_panels(func, func.params[param], kernel)
    func = narrowed(func, kernel, info.n.index, columns, nr, tiling.lanes)
    if packs_online:
        return Kernel(func)
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

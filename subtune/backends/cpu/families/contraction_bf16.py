"""Register-blocked contraction of bfloat16 operands with float32 accumulators, through `vdpbf16ps`.

The loops are those of `loop_nest`, over pairs of the reduction axis (`bf16_pairs`): the micro-kernel
broadcasts two bfloat16 of A (32 bits) and multiplies them with a vector of pairs of B, packed `[n / nr][k / 2][nr][2]`.

Products of two bfloat16 are exact in float32; `vdpbf16ps` rounds their sums to nearest even, takes denormals for zero
and flushes results that are denormal.

Candidates are those of a float32 contraction over pairs: `vdpbf16ps` multiplies two bfloat16 pairs and adds both
products per 32-bit lane, at the rate of a float32 fused multiply-add (measured on Zen 5: two 512-bit instructions a
cycle), so that a contraction of K bfloat16 costs what one of K / 2 float32 costs, in arithmetic, in loads and in bytes
of both operands. Its result takes longer (six cycles on Zen 5 where a float32 takes four), so that more accumulators
are needed to keep the pipelines busy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.base import Family
from subtune.backends.cpu.families.contraction.candidates import tilings
from subtune.backends.cpu.families.contraction.schedule import packed_index, packing_of
from subtune.backends.cpu.families.products import pairs_obstacle
from subtune.backends.cpu.family import SERIAL, CPUProblem
from subtune.backends.cpu.loops.last_tile import narrowed
from subtune.backends.cpu.loops.loop_nest import TileKnobs, Tiling, mark, micro_kernel, place
from subtune.backends.cpu.loops.padding import pad_axes
from subtune.backends.cpu.loops.prefetch import prefetch_panels
from subtune.backends.cpu.math.bf16_ops import DOT_LANES, FEATURE
from subtune.backends.cpu.math.bf16_pairs import Paired, PairPacking, in_pairs
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.axes import Operand
from subtune.patterns.contraction import Contraction, contraction
from subtune.patterns.stages import anchored, classify
from subtune.tir.prepack import split_prepack
from subtune.tir.tile import extent_of, vector_width


def accepts(problem: CPUProblem) -> str:
    anchor = problem.pattern
    return pairs_obstacle(anchor, problem) if isinstance(anchor, Contraction) else "no contraction"


def candidates(problem: CPUProblem) -> list[Candidate]:
    anchor, device = problem.pattern, problem.device
    pair = anchor.a.axes[-1]
    halved = Contraction(
        tuple(replace(axis, extent=-(-axis.extent // 2)) if axis.index == pair else axis for axis in anchor.axes),
        _in_pairs(anchor.a, pair),
        _in_pairs(anchor.b, pair),
        anchor.acc_dtype,
    )
    slower = replace(device, fma_latency=max(device.fma_latency, device.calibration.bf16_latency_cycles))
    found = tilings(halved, problem.workload, slower, reads_as_it_lies=False)
    return [Candidate.of("contraction_bf16", knobs, seconds) for knobs, seconds in found]


def _in_pairs(operand: Operand, pair: int) -> Operand:
    """The operand as elements of 32 bits, two along the axis `pair`."""
    shape = tuple(
        -(-extent // 2) if axis == pair else extent for extent, axis in zip(operand.shape, operand.axes, strict=True)
    )
    return replace(operand, shape=shape, dtype="int32")


def schedule(problem: CPUProblem, knobs: TileKnobs) -> Kernel | NotApplicable:
    tiling = Tiling.of(knobs, DOT_LANES)
    if FEATURE not in problem.device.features:
        return NotApplicable("the processor has no AVX512-BF16")
    found = anchored(problem.workload, contraction)
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
        return _schedule(paired, name, param, columns, tiling, knobs.prefetch)
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
        _place_online_pack(sch, paired, nest.batch, tiling.is_serial)
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


def _place_online_pack(sch: Schedule, paired: Paired, at: Any | None, is_serial: bool) -> None:
    """Pair and pack a B that is no constant inside the kernel: per batch inside the parallel loop, or at the root.

    Where pairs lie side by side in memory they are read as they are, one by one: a vector of them along n would be one
    of vectors, whose lanes TVM orders otherwise.
    """
    info, pairs = paired.info, sch.get_sblock(paired.b_pairs)
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
    (sch.unroll if paired.k_dim == len(info.b.axes) - 1 else sch.vectorize)(ni)


FAMILY = Family("contraction_bf16", 2, TileKnobs, accepts, candidates, schedule, (SERIAL,))

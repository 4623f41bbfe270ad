"""Register-blocked contraction of narrow operands, through instructions that sum the products of a word of 32 bits.

Of bfloat16 with accumulators of float32 that is `vdpbf16ps`; of bytes, uint8 or int8, with int8 and accumulators of
int32 it is `vpdpbusd`, Arm's `usdot` and `sdot`, or four instructions that do the same (`byte_dots`). The loops are
those of `loop_nest`, over words of the reduction axis (`words`) or of windows' rows (`word_rows`): the micro-kernel
broadcasts a word of A and multiplies it with a vector of words of B, packed `[n / nr][word][nr][element]`.

Sums of bytes are exact, in any order. Products of two bfloat16 are exact in float32; `vdpbf16ps` rounds their sums to
nearest even, takes denormals for zero and flushes results that are denormal.

Candidates are those of a float32 contraction over words: an instruction multiplies two words and adds their products
per 32-bit lane, at the rate of a float32 fused multiply-add (measured on Zen 5: two 512-bit instructions a cycle) or at
what `ByteDot.cost` says. So a contraction of K bfloat16 costs what one of K / 2 float32 costs, one of K bytes what one
of K / 4 does, in arithmetic, in loads and in bytes of both operands. The result of `vdpbf16ps` takes longer (six cycles
on Zen 5 where a float32 takes four), so that more accumulators are needed to keep the pipelines busy.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.base import Family
from subtune.backends.cpu.families.contraction.candidates import tilings
from subtune.backends.cpu.families.contraction.schedule import packed_index, packing_of
from subtune.backends.cpu.families.products import dot_of, words_obstacle
from subtune.backends.cpu.family import ALGORITHM, SERIAL, CPUProblem
from subtune.backends.cpu.loops.last_tile import narrowed
from subtune.backends.cpu.loops.loop_nest import TileKnobs, Tiling, mark, micro_kernel, place
from subtune.backends.cpu.loops.padding import pad_axes
from subtune.backends.cpu.loops.prefetch import prefetch_panels
from subtune.backends.cpu.math.bf16_ops import DOT_LANES
from subtune.backends.cpu.math.byte_dots import ByteDot
from subtune.backends.cpu.math.byte_ops import with_byte_dot
from subtune.backends.cpu.math.word_rows import (
    Row,
    RowPacking,
    in_row_words,
    in_rows,
    is_copied,
    saves_words,
    window_row,
)
from subtune.backends.cpu.math.words import (
    HALVES,
    InWords,
    WordPacking,
    axes_in_words,
    in_words,
    word_axis,
    words_of,
)
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.axes import Operand
from subtune.patterns.contraction import Contraction, contraction
from subtune.patterns.stages import anchored, classify
from subtune.runtime import triples
from subtune.tir.prepack import split_prepack
from subtune.tir.tile import extent_of, vector_width


@dataclass(frozen=True, slots=True)
class Knobs(TileKnobs):
    by_row: bool = field(default=False, metadata=ALGORITHM)
    """Words run along a row of a window, over pixels and channels, instead of along a pixel's channels."""


def accepts_halves(problem: CPUProblem) -> str:
    return _refuses(problem, of_halves=True)


def accepts_bytes(problem: CPUProblem) -> str:
    return _refuses(problem, of_halves=False)


def _refuses(problem: CPUProblem, of_halves: bool) -> str:
    anchor = problem.pattern
    if not isinstance(anchor, Contraction):
        return "no contraction"
    return words_obstacle(anchor, problem) or (
        "" if (words_of(anchor) is HALVES) == of_halves else "its operands are others"
    )


def candidates(problem: CPUProblem) -> list[Candidate]:
    anchor, device = problem.pattern, problem.device
    words, last = words_of(anchor), word_axis(anchor)
    assert words is not None, "accepted"
    dot = dot_of(words, problem)
    if dot is None:
        latency = max(device.fma_latency, device.calibration.bf16_latency_cycles)
        device, name, cost = replace(device, fma_latency=latency), _HALVES, 1.0
    else:
        device = replace(device, vector_registers=device.vector_registers - dot.registers)
        name, cost = _BYTES, dot.cost
    found = []
    for row in _rows_of(problem):
        shortened = _shortened(anchor, last, words.count) if row is None else in_row_words(anchor, row, words.count)
        tiles = tilings(shortened, problem.workload, device, reads_as_it_lies=False, cost=cost)
        kind = {} if row is None else {"by_row": True}
        found += [Candidate.make(name, seconds, **dict(Candidate.of(name, k).knobs), **kind) for k, seconds in tiles]
    return found


def _rows_of(problem: CPUProblem) -> tuple[Row | None, ...]:
    """Along what words run: the row of a window, or the channels of a pixel (None), or both, for measuring to decide.

    A copy with whole words for pixels costs more than any words that cross pixels. Where A is copied in any case, the
    copy of pixels is the faster one. Only x86 reads a word at any address for what one at a multiple of four costs.
    """
    row, words = window_row(problem.pattern), words_of(problem.pattern)
    if isinstance(row, NotApplicable) or words is None or triples.architecture(problem.device.triple) != "x86_64":
        return (None,)
    if row.channels % words.count and not is_copied(problem.pattern, row, words.count):
        return (row,)
    return (row, None) if saves_words(row, words.count) else (None,)


def _shortened(anchor: Contraction, last: int, count: int) -> Contraction:
    """The contraction as one of elements of 32 bits, `count` along the axis `last`."""
    a, b = _in_words(anchor.a, last, count), _in_words(anchor.b, last, count)
    return Contraction(axes_in_words(anchor.axes, last, count), a, b, anchor.acc_dtype, anchor.per_group)


def _in_words(operand: Operand, last: int, count: int) -> Operand:
    """The operand as elements of 32 bits, `count` along the axis `last`, or along the channels of all groups."""
    *_, innermost = range(len(operand.shape))
    shape = tuple(
        -(-extent // count) if axis == last or (dim == innermost and axis < 0) else extent
        for dim, (extent, axis) in enumerate(zip(operand.shape, operand.axes, strict=True))
    )
    return replace(operand, shape=shape, dtype="int32")


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    found = anchored(problem.workload, contraction)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    if why := words_obstacle(info, problem):
        return NotApplicable(why)
    words = words_of(info)
    assert words is not None, "words_obstacle"
    dot = dot_of(words, problem)
    tiling = Tiling.of(knobs, DOT_LANES if dot is None else dot.lanes)
    if tiling.nr % tiling.lanes:
        return NotApplicable(f"needs accumulators in vectors of {tiling.lanes}")
    if info.per_group % tiling.nr:
        return NotApplicable(f"nr={tiling.nr} does not divide the {info.per_group} columns of a group")
    row = window_row(info) if knobs.by_row else None
    if isinstance(row, NotApplicable):
        return row
    name, columns = sch.get(stages.anchors[0]).name_hint, info.n.extent
    func, param = sch.mod["main"], info.b.param if info.b.is_constant else -1
    if padded := tiling.padding(info):
        func = pad_axes(func, name, info, padded)
        sch = Schedule(func)
        padded_info = contraction(sch, sch.get_sblock(name))
        assert isinstance(padded_info, Contraction), padded_info.reason
        info = padded_info
    rewritten = in_words(func, name, info) if row is None else in_rows(func, name, info, row)
    if isinstance(rewritten, NotApplicable):
        return rewritten
    try:
        return _schedule(rewritten, name, param, columns, tiling, dot, knobs)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])


def _schedule(
    made: InWords, name: str, param: int, columns: int, tiling: Tiling, dot: ByteDot | None, knobs: Knobs
) -> Kernel | NotApplicable:
    info, nr = made.info, tiling.nr
    sch = Schedule(made.func)
    stages = classify(sch)
    if isinstance(stages, NotApplicable):
        return stages
    block = sch.get_sblock(name)
    pads = _feeders(sch, made)
    batch, k_axes = ([axis.index for axis in info.of_role(role)] for role in ("batch", "k"))
    layout = [*batch, info.n.index, *k_axes]
    dims = {axis: dim for dim, axis in enumerate(info.b.axes)}
    sch.transform_layout(block, ("read", info.b.read), packed_index(dims, layout, info.n.index, nr))

    packs_online = param < 0
    nest = place(sch, block, stages.outputs, info, tiling, packs_online)
    if packs_online:
        _place_online_pack(sch, made, nest.batch, tiling)
    mark(sch, nest, tiling, pads, 2 * tiling.lanes)
    kernel = micro_kernel(sch, nest)
    func = sch.mod["main"] if packs_online else split_prepack(sch.mod["main"], param)
    if knobs.prefetch and not packs_online:
        func = prefetch_panels(func, func.params[param], micro_kernel(sch, nest, knobs.passes))
    func = narrowed(func, kernel, info.n.index, columns, nr, tiling.lanes)
    func = func if dot is None else with_byte_dot(func, dot)
    if packs_online:
        return Kernel(func)
    packing, count = packing_of(info, layout, nr), made.words.count
    return Kernel(
        func, ((param, RowPacking(count, packing) if knobs.by_row else WordPacking(made.k_dim, count, packing)),)
    )


def _feeders(sch: Schedule, made: InWords) -> list[Any]:
    """The blocks that make A (its padding or its copy, never both). What feeds B's words is inlined into them."""
    keep = []
    stages = classify(sch)
    assert not isinstance(stages, NotApplicable), stages.reason
    for name in [sch.get(block).name_hint for block in stages.producers]:
        block = sch.get_sblock(name)
        readers = {sch.get(reader).name_hint for reader in sch.get_consumers(block)}
        if name == made.b_words:
            continue
        if readers & {made.b_words, made.a_copy}:
            sch.compute_inline(block)
        else:
            keep.append(block)
    return keep


def _place_online_pack(sch: Schedule, made: InWords, at: Any | None, tiling: Tiling) -> None:
    """Pack the words of a B that is no constant inside the kernel: per batch inside the parallel loop, or at the root.

    Where words lie side by side in memory they are read as they are, one by one: a vector of them along n would be one
    of vectors, whose lanes TVM orders otherwise.
    """
    info, packed = made.info, sch.get_sblock(made.b_words)
    if at is not None:
        sch.compute_at(packed, at, preserve_unit_loops=True)
    loops = sch.get_loops(packed)[-len(info.b.axes) :]
    inside = loops[1:] if at is not None else loops
    n_dim = info.b.axes.index(info.n.index)
    n = loops[n_dim]
    others = [loop for loop in inside if not loop.same_as(n)]
    width = vector_width(extent_of(sch, n), tiling.lanes)
    no, ni = sch.split(n, [None, width])
    sch.reorder(*others[:-1], no, *others[-1:], ni)
    if at is None and not tiling.is_serial:
        sch.parallel(no if not others[:-1] else others[0])
    (sch.unroll if made.k_dim == len(info.b.axes) - 1 else sch.vectorize)(ni)


_HALVES, _BYTES = "contraction_bf16", "contraction_int8"
FAMILY = Family(_HALVES, 3, Knobs, accepts_halves, candidates, schedule, (SERIAL,))
OF_BYTES = Family(_BYTES, 3, Knobs, accepts_bytes, candidates, schedule, (SERIAL,))

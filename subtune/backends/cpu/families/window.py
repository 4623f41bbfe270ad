"""Window reductions that keep the innermost axis: depthwise convolution, pooling, global pooling.

    for n, h tile (parallel) [or with the channel tile, when there are few rows]:
      for channel tile, h, w tile:  acc[mr pixels][cb channels] in registers;  for kh, kw: acc = reduce(acc, x)

With the knob `inline` the padding is not stored: every load asks whether it is inside the image, a branch that is
predicted, instead of a copy of the whole input. It pays wherever memory bounds the kernel.
With `ragged`, channels that whole vectors do not divide are computed in whole ones, the last of which overlaps its
neighbour (`overlap`).
With `ahead`, pixels to come are asked for (`prefetch.prefetch_windows`).
Source: XNNPACK's depthwise micro-kernels; measured in the project's recipes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import ceil, prod
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.base import OUTER, Family
from subtune.backends.cpu.balance import imbalance
from subtune.backends.cpu.bandwidth import LOADS_PER_CYCLE, stream_s
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.family import MODE, REGISTERS, SERIAL, STREAMED, CPUProblem
from subtune.backends.cpu.loops.overlap import lanes_of, overlapping
from subtune.backends.cpu.loops.prefetch import prefetch_windows
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable, Packing
from subtune.core.workload import Workload, dtype_bits
from subtune.patterns.stages import Stages, anchored
from subtune.patterns.window import Window, window
from subtune.tir.prepack import PREPROC_ATTR, split_prepack
from subtune.tir.tile import extent_of, place_pad, vector_width, vectorize_tile

_MAX_UNROLLED_WINDOW = 49  # elements: a 7x7 window; larger ones stay loops
_MAX_CHANNEL_VECTORS = 8
_TILE_CYCLES = 10.0  # beginning and ending a window's tile of accumulators
_FREE_ACCUMULATORS = 16  # with more, what an unrolled window's loads keep in registers spills


@dataclass(frozen=True, slots=True)
class Knobs:
    """Tiles of `ht` rows, `mr` pixels of which and `cb` channels are in registers."""

    ht: int
    mr: int = field(metadata=REGISTERS)
    cb: int = field(metadata=REGISTERS)
    order: str = field(metadata=OUTER)
    """"h": the threads share rows; "c": tiles of channels, too."""
    inline: bool = False
    ragged: bool = field(default=False, metadata=REGISTERS)
    ahead: bool = field(default=False, metadata=MODE)
    serial: bool = field(default=False, metadata=MODE)
    stream: bool = field(default=False, metadata=MODE)


def accepts(problem: CPUProblem) -> str:
    return "" if isinstance(problem.pattern, Window) else "no windows"


def candidates(problem: CPUProblem) -> list[Candidate]:
    found = tilings(problem.pattern, problem.workload, problem.device)
    return [Candidate.of("window", knobs, seconds) for knobs, seconds in found]


def tilings(anchor: Window, workload: Workload, device: CPUModel) -> list[tuple[Knobs, float]]:
    """Row tiles, pixels and channel blocks whose accumulators fit the registers, and the seconds they take."""
    rows = [axis.extent for axis in anchor.of_role("m")]
    width, height = (rows[-1] if rows else 1), (rows[-2] if len(rows) > 1 else 1)
    images = prod(rows[:-2]) if len(rows) > 2 else 1
    found = []
    for ragged, cb, lanes in _channel_blocks(anchor, device):
        channels = ceil(anchor.of_role("n")[0].extent / cb) * cb
        grid = (images, height, width, channels)
        for mr in (m for m in range(1, 15) if width % m == 0):
            if mr * cb // lanes + cb // lanes + 1 > device.vector_registers:
                continue
            tiles = product((h for h in range(1, height + 1) if height % h == 0 and h <= 28), ("h", "c"))
            for (ht, order), inline in product(tiles, (True, False) if anchor.is_padded else (False,)):
                knobs = Knobs(ht, mr, cb, order, inline, ragged)
                seconds = _predict(anchor, workload, device, grid, lanes, knobs)
                found.append((knobs, seconds))
                is_seen = (inline or not anchor.is_padded) and not anchor.is_tabled and not ragged
                if workload.nbytes > device.l3_bytes and is_seen:
                    gain = device.calibration.ahead_window + device.calibration.ahead_pixel * (mr - 1)
                    found.append((replace(knobs, ahead=True), seconds * gain))
    return found


def _lanes(anchor: Window, device: CPUModel, ragged: bool) -> int:
    channels, lanes = anchor.of_role("n")[0].extent, device.lanes(dtype_bits(anchor.acc_dtype))
    return lanes_of(channels, lanes) if ragged else vector_width(channels, lanes)


def _channel_blocks(anchor: Window, device: CPUModel) -> Iterator[tuple[bool, int, int]]:
    """Whether the last vector overlaps, channels of a block, and of a vector."""
    channels = anchor.of_role("n")[0].extent
    whole, widest = (_lanes(anchor, device, ragged) for ragged in (False, True))
    yield from ((False, whole * v, whole) for v in range(1, _MAX_CHANNEL_VECTORS + 1) if channels % (whole * v) == 0)
    if widest > whole:
        vectors = ceil(channels / widest)
        blocks = {ceil(vectors / n) for n in range(1, vectors + 1)}
        yield from ((True, widest * v, widest) for v in sorted(blocks) if v <= _MAX_CHANNEL_VECTORS)


def _predict(
    anchor: Window,
    workload: Workload,
    device: CPUModel,
    grid: tuple[int, int, int, int],
    lanes: int,
    knobs: Knobs,
) -> float:
    """Seconds: the vectors' arithmetic and loads, or the bytes, whichever takes longer."""
    images, height, width, channels = grid
    ht, mr, cb = knobs.ht, knobs.mr, knobs.cb
    vectors = cb // lanes
    taps = prod(axis.extent for axis in anchor.of_role("k"))
    grains = images * height // ht * (channels // cb if knobs.order == "c" else 1)
    uneven = imbalance(grains, device)
    loads = (mr + (1 if anchor.to_pack else 0)) * vectors / LOADS_PER_CYCLE
    per_tap = max(mr * vectors / 2.0, loads, float(device.fma_latency))
    if anchor.is_padded and knobs.inline:
        per_tap += mr * device.calibration.branch_cycles
    spills = 1.0 + device.calibration.spill * max(0, mr * vectors - _FREE_ACCUMULATORS) * 32 / device.vector_registers
    tiles = images * height * width * channels / (mr * cb)
    cycles = tiles * (taps * per_tap * spills + mr * vectors + _TILE_CYCLES)
    read = max((arg.nbytes for arg in workload.args if not arg.is_output), default=0)
    moved = float(workload.nbytes)
    if anchor.is_padded and not knobs.inline:  # a copy, with the rows that neighbouring tiles both make
        cycles += 2 * read / 4 / lanes * (1.0 + (2.0 / ht if knobs.order == "h" else 0.2))
        moved += 2 * read
    # A narrow tile reads one line of every pixel; pixels a power of two apart lie in a few sets of L1.
    scattered = 1.2 if channels * 4 % (8 * device.line_bytes) == 0 else 0.3
    memory_s = stream_s(moved, device) * (1.0 + scattered / vectors**2 if cb < channels else 1.0)
    seconds = max(cycles / device.cycles_per_s / device.threads, memory_s) + 0.25 * min(
        cycles / device.cycles_per_s / device.threads, memory_s
    )
    return seconds * uneven + grains * device.calibration.grain_s


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    found = anchored(problem.workload, window)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    try:
        packings = _pack(sch, stages.anchors[0], info)
        return placed(sch, stages, info, knobs, problem.device, packings)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])


def placed(
    sch: Schedule,
    stages: Stages,
    info: Window,
    knobs: Knobs,
    device: CPUModel,
    packings: Sequence[tuple[int, Packing]] = (),
) -> Kernel | NotApplicable:
    """The loops of `knobs` round the anchor of `stages`, its weights packed by `packings`. Raises ScheduleError."""
    ht, mr, cb, lanes = knobs.ht, knobs.mr, knobs.cb, _lanes(info, device, knobs.ragged)
    if cb % lanes:
        return NotApplicable(f"cb={cb} is no multiple of the {lanes} lanes of a vector of channels")
    if knobs.ragged:
        overlapped = _overlapped(sch, stages, info, cb, lanes)
        if isinstance(overlapped, NotApplicable):
            return overlapped
        sch, stages = overlapped
    (block,) = stages.anchors
    pads, outputs = list(stages.producers), list(stages.outputs)
    loops = sch.get_loops(block)
    rows = [loops[axis.index] for axis in info.of_role("m")]
    reduce = [loops[axis.index] for axis in info.of_role("k")]
    co, cv, ci = sch.split(loops[info.of_role("n")[0].index], [None, cb // lanes, lanes])
    while len(rows) < 2:
        rows.insert(0, sch.add_unit_loop(rows[0] if rows else co))
    *outer, h, w = rows
    if ht > extent_of(sch, h) or mr > extent_of(sch, w):
        return NotApplicable("the tile is larger than the output")
    ho, hi = sch.split(h, [None, ht])
    wo, wi = sch.split(w, [None, mr])
    sch.reorder(*outer, ho, co, hi, wo, *reduce, wi, cv, ci)
    if knobs.inline:
        for pad in pads:
            sch.compute_inline(pad)
        pads = []
    if outputs:
        sch.set_scope(block, 0, "local")
    else:
        outputs = [sch.cache_write(block, 0, "local")]
    for output in outputs:
        sch.reverse_compute_at(output, wo)
    by_channels = knobs.order == "c"
    fused = sch.fuse(*outer, ho, *([co] if by_channels else []))
    for pad in pads:
        place_pad(sch, pad, None if by_channels else fused, device.lanes(), knobs.serial, knobs.ragged)
    if not knobs.serial:
        sch.parallel(fused)
    _unroll(sch, block, reduce, (wi, cv, ci), outputs, lanes)
    func = sch.mod["main"]
    if knobs.ahead:
        func = prefetch_windows(func, str(sch.get(block).name_hint), sch.get(hi), sch.get(wo), cb)
    for param, _ in packings:
        func = split_prepack(func, param)
    return Kernel(func, tuple(packings), None if knobs.ahead or knobs.ragged else sch.trace)


def _unroll(
    sch: Schedule, block: Any, reduce: Sequence[Any], tile: tuple[Any, Any, Any], outputs: Sequence[Any], lanes: int
) -> None:
    """The tile in registers: its pixels and vectors of channels written out, and its window if that is small."""
    depth = len(sch.get_loops(block)) - len(reduce) - len(tile)
    wi, cv, ci = tile
    sch.vectorize(ci)
    sch.unroll(cv)
    sch.unroll(wi)
    if prod(extent_of(sch, loop) for loop in reduce) <= _MAX_UNROLLED_WINDOW:
        for loop in reduce:
            sch.unroll(loop)
    sch.decompose_reduction(block, reduce[0])
    for output in outputs:
        vectorize_tile(sch, output, depth, lanes)


def _overlapped(
    sch: Schedule, stages: Stages, info: Window, cb: int, lanes: int
) -> tuple[Schedule, Stages] | NotApplicable:
    """The same stages over whole blocks of `cb` channels, in a schedule that begins anew."""
    names = [sch.get(stage).name_hint for stage in (*stages.producers, *stages.anchors)]
    channels = info.of_role("n")[0]
    func = overlapping(sch.mod["main"], names[-1], channels.index, lanes, ceil(channels.extent / cb) * cb)
    if isinstance(func, NotApplicable):
        return func
    sch = Schedule(func)
    *producers, anchor = map(sch.get_sblock, names)
    outputs = sch.get_output_blocks(sch.get_sblock("root"))
    return sch, Stages(tuple(producers), (anchor,), tuple(outputs))


def _pack(sch: Schedule, block: Any, info: Window) -> list[tuple[int, Packing]]:
    """Weights with their channels last; the parameter and the packing of each."""
    packings = []
    for operand in info.to_pack:
        packed = sch.cache_read(block, operand.read, "global")
        order = tuple(sorted(range(len(operand.axes)), key=lambda dim: operand.axes[dim] == info.of_role("n")[0].index))
        sch.transform_layout(block, ("read", operand.read), permutation(order))
        sch.annotate(packed, PREPROC_ATTR, True)
        packings.append((operand.param, Packing(tuple((extent,) for extent in operand.shape), order)))
    return packings


def permutation(order: tuple[int, ...]) -> Any:
    def index_map(*index: Any) -> list[Any]:
        return [index[dim] for dim in order]

    return tirx.IndexMap.from_func(index_map, ndim=len(order))


FAMILY = Family("window", 2, Knobs, accepts, candidates, schedule, (SERIAL, STREAMED))

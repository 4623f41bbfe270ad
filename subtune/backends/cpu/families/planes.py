"""Windows over planes: pooling and convolution with channels first, where nothing asks for channels last.

Vectors lie along x. A column's plane makes what a strided window reads for one tap contiguous. The last vector of a row
overlaps its neighbour where the width is no multiple: it computes the same values. Without padding and stride the
input itself is read. The channels that a group of a convolution makes share what is staged, and those of a tile each
load of it. `loops.planes` has the loops.
Source: MLAS' and XNNPACK's depthwise kernels for channels first (dwconv2d-chw).
"""

from __future__ import annotations

from math import ceil, prod
from typing import Any

from tvm.s_tir import Schedule

from subtune.backends.base import Family
from subtune.backends.cpu.balance import imbalance
from subtune.backends.cpu.bandwidth import LOADS_PER_CYCLE, stream_s
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.family import SERIAL, CPUProblem
from subtune.backends.cpu.loops.planes import Knobs, Writer
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.planes import Border, Planes, border, planes
from subtune.patterns.rows import Rowwise
from subtune.patterns.stages import Stages, anchored
from subtune.patterns.window import Window
from subtune.tir.blocks import with_stages
from subtune.tir.expressions import is_load_of, loads

_LEAST_WIDTH = 4
_MOST_STRIDE = 4
_LEAST_BAND = 7
_MAX_STAGED = 65536  # elements of a band: they are to stay in L2
_TILE_CYCLES = 10.0  # beginning and ending a tile
_MOST_PLANES = 16  # of C, of one tile
_GRAINS = 8  # for each thread: with as many, a group is not taken apart


def accepts(problem: CPUProblem) -> str:
    if not isinstance(problem.pattern, Rowwise | Window):
        return "no windows over planes"
    found = anchored(problem.workload, planes)
    if isinstance(found, NotApplicable):
        return found.reason
    info = found[2]
    if info.shape[-1] < _LEAST_WIDTH or info.slides[1].stride > _MOST_STRIDE:
        return "rows too short for vectors, or strides too long"
    return ""


def lanes_for(width: int, lanes: int) -> int:
    """The widest vectors that a row of `width` elements fills."""
    while lanes > width:
        lanes //= 2
    return lanes


def candidates(problem: CPUProblem) -> list[Candidate]:
    """Bands of all rows, a half, a quarter; tiles whose accumulators fit the registers."""
    found = anchored(problem.workload, planes)
    assert not isinstance(found, NotApplicable), "accepts() has read it"
    info, device = found[2], problem.device
    height, width = info.shape[-2:]
    pieces = ceil(width / lanes_for(width, device.lanes()))
    return [
        Candidate.of("planes", knobs, _predict(info, problem.workload, device, knobs))
        for band in _bands(info)
        for mr in (m for m in range(1, 9) if band % m == 0)
        for vectors in (v for v in range(1, 9) if pieces % v == 0)
        for nr in range(1, min(info.shared, _MOST_PLANES) + 1)
        if _registers(mr * vectors, nr) <= device.vector_registers
        for results in _parts(info, nr, info.groups * prod(info.shape[:-3]) * height // band, device)
        for knobs in [Knobs(band, mr, vectors, nr, results)]
    ]


def _bands(info: Planes) -> list[int]:
    """Heights that divide the plane's, and of which what is staged stays in L2; low ones only where no other does."""
    height = info.shape[-2]
    fit = [b for b in range(1, height + 1) if height % b == 0 and _staged_size(info, b) <= _MAX_STAGED]
    return [b for b in fit if b == height or b >= _LEAST_BAND] or fit[-1:] or [1]


def _registers(vectors: int, nr: int) -> int:
    """Accumulators, what they share the loads of, and two more."""
    return nr * vectors + min(nr, vectors) + 2


def _parts(info: Planes, nr: int, grains: int, device: CPUModel) -> list[int]:
    """How many planes of C a grain makes: all that share what is staged, and fewer where there are few `grains`."""
    most = info.shared
    few = grains < _GRAINS * device.threads
    return [size for size in range(nr, most + 1) if most % size == 0 and (size == most or few)]


def _staged_size(info: Planes, band: int) -> int:
    down = info.slides[0]
    width = (info.shape[-1] - 1) * info.slides[1].stride + info.reach[1]
    return info.depth * ((band - 1) * down.stride + info.reach[0]) * width


def _predict(info: Planes, workload: Any, device: CPUModel, knobs: Knobs) -> float:
    """Seconds: staging, the vectors' arithmetic and loads, or the bytes, whichever takes longer."""
    height, width = info.shape[-2:]
    lanes = lanes_for(width, device.lanes())
    grains = prod(info.shape[:-2]) // knobs.results * height // knobs.band
    uneven = imbalance(grains, device)
    tiles = ceil(knobs.results / knobs.nr) * (knobs.band // knobs.mr) * ceil(width / lanes) // knobs.vectors
    read = knobs.mr * knobs.vectors
    vectors = read * knobs.nr
    lines = 1 + 4 * lanes / device.line_bytes  # of which a vector is parts that begins anywhere
    loaded = (read * lines + knobs.nr) / LOADS_PER_CYCLE
    per_tap = max(vectors / 2.0, loaded, float(device.fma_latency))
    cycles = tiles * (info.depth * prod(info.taps) * per_tap + vectors + _TILE_CYCLES)
    cycles += 2.0 * info.slides[1].stride * _staged_size(info, knobs.band) / lanes
    busy = grains * cycles / device.cycles_per_s / device.threads
    return max(busy, stream_s(workload.nbytes, device)) * uneven + grains * device.calibration.grain_s


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    found = anchored(problem.workload, planes)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    height, width = info.shape[-2:]
    lanes = lanes_for(width, problem.device.lanes())
    if height % knobs.band or knobs.band % knobs.mr or ceil(width / lanes) % knobs.vectors:
        return NotApplicable("the tile does not divide the output")
    if info.shared % knobs.results or knobs.nr > knobs.results:
        return NotApplicable("the planes of a grain do not divide those of a group")
    return _write(sch, stages, info, knobs, lanes)


def _write(sch: Schedule, stages: Stages, info: Planes, knobs: Knobs, lanes: int) -> Kernel | NotApplicable:
    anchor = sch.get(stages.anchors[0])
    outputs = [sch.get(rv) for rv in stages.outputs]
    is_output = any(anchor.body.buffer.same_as(param) for param in sch.mod["main"].params)
    if any(list(block.body.indices) != [iv.var for iv in block.iter_vars] for block in outputs) or any(
        is_load_of(load, anchor.body.buffer) and list(load.indices) != list(block.body.indices)
        for block in outputs
        for load in loads(block.body.value)
    ):
        return NotApplicable("an output is not computed element by element from the window's")
    edge: Border | None = None
    if len(stages.producers) > 1:
        return NotApplicable("more than one stage before the windows")
    if stages.producers:
        pad = sch.get(stages.producers[0])
        read = border(pad)
        if isinstance(read, NotApplicable) or not pad.body.buffer.same_as(info.window):
            return NotApplicable(read.reason if isinstance(read, NotApplicable) else "a stage that is no padding")
        edge = read
    writer = Writer(info, anchor, outputs, edge, knobs, lanes, is_output)
    return Kernel(with_stages(sch.mod["main"], [writer.stage()], []))


FAMILY = Family("planes", 4, Knobs, accepts, candidates, schedule, (SERIAL,))

"""Windows on a GPU: depthwise convolution and pooling, channels last.

    a thread: `lanes` neighbouring channels (16 bytes) of `rows` x `cols` output pixels

What the windows of its pixels share is read once, into registers. Padding is not stored: loads below conditions that
are the same for all lanes. Depthwise weights, constants `[c, kh, kw, 1]`, are packed `[kh, kw, 1, c]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.window.byte_pairs import BytePairs
from subtune.backends.cuda.lowering.dependent_launch import STARTS_LATE
from subtune.backends.cuda.source.axes import substituted
from subtune.backends.cuda.source.emit import Code, const, load, prim_func
from subtune.backends.cuda.source.lanes import Lanes, Unsupported, decoded, not_applicable, wide, widened_constant
from subtune.backends.cuda.source.packed import Packed
from subtune.backends.cuda.source.results import Results
from subtune.backends.cuda.source.stages import combination
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.stages import Stages, anchored
from subtune.patterns.window import Window, window

_MAX_UNROLLED = 300  # window elements of a thread: a 7x7 window over six pixels


@dataclass(frozen=True, slots=True)
class WindowKnobs:
    """`threads` of a block, `lanes` channels and `rows` times `cols` pixels of a thread.

    `pairs`: bytes are compared two at a time, see `byte_pairs`.
    """

    threads: int
    lanes: int
    rows: int
    cols: int
    pairs: bool = False


def schedule(problem: Problem[CUDAModel], knobs: WindowKnobs) -> Kernel | NotApplicable:
    try:
        found = anchored(problem.workload, window)
        if isinstance(found, NotApplicable):
            return found
        sch, stages, info = found
        for pad in stages.producers:
            sch.compute_inline(pad)
        return _schedule(sch, stages, info, knobs, problem.numerics.exact)
    except (ScheduleError, Unsupported) as e:
        return not_applicable(e)


def _schedule(sch: Schedule, stages: Stages, info: Window, knobs: WindowKnobs, exact: bool) -> Kernel | NotApplicable:
    lanes, rows, cols = knobs.lanes, knobs.rows, knobs.cols
    anchor = sch.get(stages.anchors[0])
    shape = tuple(axis.extent for axis in info.axes if axis.role != "k")
    if info.of_role("n")[0].index != len(shape) - 1 or shape[-1] % lanes:
        return NotApplicable(f"{lanes} lanes do not divide the channels of {shape}")
    pixels = (1,) * (2 - len(shape[:-1])) + shape[:-1]
    if rows > pixels[-2] or cols > pixels[-1]:
        return NotApplicable("the tile is larger than the output")
    if rows * cols * prod(axis.extent for axis in info.of_role("k")) > _MAX_UNROLLED:
        return NotApplicable("too large a window for so many pixels")
    outputs = [sch.get(output) for output in stages.outputs]
    packed = Packed.of(sch.mod["main"], info.to_pack, info.of_role("n")[0].index)
    writer = _WindowWriter(anchor, outputs, shape, knobs, exact, packed)
    return packed.kernel(prim_func(sch.mod["main"], [writer.write()]).with_attr(STARTS_LATE, 1))


class _WindowWriter:
    def __init__(
        self, anchor: Any, outputs: list[Any], shape: tuple[int, ...], knobs: WindowKnobs, exact: bool, packed: Packed
    ) -> None:
        self._anchor, self._shape, self._packed = anchor, shape, packed
        self._threads, self._lanes, self._rows, self._cols = knobs.threads, knobs.lanes, knobs.rows, knobs.cols
        self._is_in_pairs = knobs.pairs
        self._code = Code(exact)
        self._results = Results(self._code, anchor, outputs, shape)

    def write(self) -> Any:
        code, lanes = self._code, self._lanes
        *outer, height, width, channels = (1,) * (3 - len(self._shape)) + self._shape
        tiles = (*outer, -(-height // self._rows), -(-width // self._cols), channels // lanes)
        total = prod(tiles)
        threads = min(self._threads, -(-total // 32) * 32)
        bx, tx = code.thread("blockIdx.x", -(-total // threads)), code.thread("threadIdx.x", threads)
        with code.when(tirx.LT(bx * threads + tx, const(total)) if total % threads else None):
            item = code.bind("item", bx * threads + tx, total)
            *images, y, x, chunk = decoded(item, tiles, code.analyzer)
            starts = []
            for name, at, step, extent in (("y", y, self._rows, height), ("x", x, self._cols, width)):
                first = at * step  # the last tile overlaps the one before it where the tile does not divide
                ragged = extent % step != 0
                starts.append(code.bind(name, tirx.min(first, const(extent - step)) if ragged else first,
                                        extent - step + 1))  # fmt: skip
            images = [code.bind("n", image, extent) for image, extent in zip(images, outer, strict=True)]
            lane = code.variable("lane", lanes)
            channel = code.bind("chunk", chunk, channels // lanes) * lanes + lane
            self._body(images, starts, channel, lane)
        return code.kernel()

    def _body(self, images: list[Any], starts: list[Any], channel: Any, lane: Any) -> None:
        code, anchor = self._code, self._anchor
        reader = Lanes(code, lane, self._lanes, self._results.known)
        combiner, element, identity = combination(anchor)
        element = self._packed.moved(element)
        pixels = list(product(range(self._rows), range(self._cols)))
        spatial = [iv for iv in anchor.iter_vars if int(iv.iter_type) == tirx.IterVar.DataPar]
        places = []
        for i, j in pixels:
            place = [*images, starts[0] + i, starts[1] + j, channel]
            places.append(place[len(place) - len(spatial) :])
        axes = [{iv.var: index for iv, index in zip(spatial, place, strict=True)} for place in places]
        if self._is_in_pairs:
            pairs = BytePairs(code, reader, combiner, identity, len(pixels))
            for taps in self._taps():
                words = [(pixel, pairs.read(substituted(element, one | tap)))
                         for tap in taps for pixel, one in enumerate(axes)]  # fmt: skip
                for pixel, word in words:
                    pairs.add(pixel, word)
            for pixel, place in enumerate(places):
                self._results.store(reader, place, pairs.extreme(pixel))
            return
        lanes = self._lanes
        sums = code.local(wide(str(anchor.body.buffer.dtype)), len(pixels) * lanes, "sum")
        with code.unrolled(len(pixels) * lanes) as i:
            code.store(sums, i, widened_constant(identity))
        for taps in self._taps():
            values = [(pixel, reader.compute(element, one | tap)) for tap in taps for pixel, one in enumerate(axes)]
            for pixel, value in values:
                with code.unrolled(lanes) as v:
                    held = const(pixel * lanes) + v
                    code.store(sums, held, combiner(load(sums, held), reader.at(value, v)))
        for pixel, place in enumerate(places):
            self._results.store(reader, place, load(sums, const(pixel * lanes) + lane))

    def _taps(self) -> list[list[dict[Any, Any]]]:
        """The window's axes at each of its elements, row by row: all of a row is asked for before any is combined."""
        reduced = [iv for iv in self._anchor.iter_vars if int(iv.iter_type) == tirx.IterVar.CommReduce]
        first, *others = [range(int(iv.dom.extent)) for iv in reduced] or [range(1)]
        taps = [[(tap, *other) for other in product(*others)] for tap in first]
        return [[{iv.var: const(at) for iv, at in zip(reduced, tap, strict=False)} for tap in row] for row in taps]

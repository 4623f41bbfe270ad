"""What a first convolution is, read from the TIR once, and how its kernel computes it in bands of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm.s_tir import Schedule
from tvm.script import tirx as T

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.stem.kernel import Sink, stem_func
from subtune.backends.cuda.families.stem.shape import Stem, StemPacking, row_of
from subtune.backends.cuda.families.wgmma.epilogue import Epilogue, epilogue_of
from subtune.backends.cuda.families.wgmma.in_place import InPlace, may_be_in_place
from subtune.backends.cuda.families.wgmma.source import padded_param, source_of
from subtune.backends.cuda.families.wgmma.store import Store
from subtune.backends.cuda.families.wgmma.store_form import MAX_FETCHED, store_of
from subtune.backends.cuda.families.wgmma.tiling import Tiling, wgmma_obstacle
from subtune.backends.cuda.families.wgmma.walk import Walk
from subtune.backends.cuda.lowering.tirx_pipeline import TIRX_ATTR
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.numerics import BYTES
from subtune.core.workload import Workload
from subtune.patterns.axes import Operand
from subtune.patterns.contraction import Contraction, contraction
from subtune.patterns.gemm_view import GemmView, gemm_view
from subtune.patterns.stages import Stages, anchored

_MAX_CHANNELS = 8
_PLANAR = (0, 3, 1, 2)
"""Of an image, the dims of one that lies channels last."""
_BARRIER_BYTES = 2048  # with what aligns the weights
_PER_WORD = {"float16": 2, "bfloat16": 2, **dict.fromkeys(BYTES, 4)}
"""Elements of a word that are multiplied."""
_OTHER_REGISTERS = 48  # of a thread, beside its sums and fragments


@dataclass(frozen=True, slots=True)
class StemKnobs:
    """`rows` of pixels and `groups` of warps of a block, `blocks_per_sm`."""

    rows: int
    groups: int
    blocks_per_sm: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A first convolution as its kernel computes it: sizes, and the kernel's buffers by the workload's parameters."""

    stem: Stem
    images: int
    tiling: Tiling
    store: Store
    buffers: dict[Any, Any]
    image: Any
    weights: Any
    packing: StemPacking

    def kernel(self, sink: Sink, buffers: tuple[Any, ...], sms: int) -> Kernel:
        """With the parameters `buffers`."""
        grid = min(self.images * sink.bands, sms * self.tiling.blocks_per_sm)
        a, b = self.buffers[self.image], self.buffers[self.weights]
        func = stem_func(buffers, a, b, self.stem, (self.images, grid), self.tiling, sink)
        attrs = {"global_symbol": "main", TIRX_ATTR: 1, "tirx.is_scheduled": 1, "tirx.noalias": True}
        return Kernel(func.with_attrs(attrs), ((list(self.buffers).index(self.weights), self.packing),))


@dataclass(frozen=True, slots=True)
class Front:
    """A first convolution: `stem` with one row of pixels to a block; `image` is among `params`, `b` has the weights."""

    stem: Stem
    view: GemmView
    epilogue: Epilogue
    params: tuple[Any, ...]
    image: int
    b: Operand
    packing: StemPacking
    dtype: str

    @property
    def columns(self) -> int:
        """As multiplied; the last ones may be nobody's."""
        return self.packing.shape[0]

    @property
    def images(self) -> int:
        return self.view.extent(*self.view.rows[:-2])

    def rows(self, rows: int) -> Stem:
        """With so many rows of pixels to a block."""
        return replace(self.stem, rows=rows)

    def fits(self, knobs: StemKnobs, stem: Stem, beside_weights: int, device: CUDAModel) -> bool:
        """Whether so many blocks with `beside_weights` bytes of shared memory, and their registers, have room."""
        shared = self.columns * self.packing.shape[1] * 4 // stem.per_word + beside_weights + _BARRIER_BYTES
        shared += MAX_FETCHED * self.columns * 4
        if shared > device.shared_per_block_bytes or knobs.blocks_per_sm * (shared + 1024) > device.shared_per_sm_bytes:
            return False
        threads = 128 * knobs.groups * knobs.blocks_per_sm
        return self.columns // 2 + stem.steps * 4 + _OTHER_REGISTERS <= min(255, 65536 // threads)

    def plan(self, knobs: StemKnobs, sms: int, in_place: bool = True) -> Plan | NotApplicable:
        """`in_place`: a thread may store its own sums."""
        stem = self.rows(knobs.rows)
        tile = (1,) * (len(self.view.rows) - 2) + (stem.rows, stem.out_width)
        tiling = Tiling(tile, self.columns, 2, knobs.groups, blocks_per_sm=knobs.blocks_per_sm)
        shapes = [[int(d) for d in p.shape] for p in self.params]
        shapes[self.b.param] = list(self.packing.shape)
        buffers = {
            p: T.buffer(shape, str(p.dtype), align=16, buffer_name=p.name)
            for p, shape in zip(self.params, shapes, strict=True)
        }
        may_be = in_place and may_be_in_place(tiling, self.view, self.b, self.epilogue.dtype)
        store = store_of(self.epilogue, Walk(self.view, tiling, self.dtype, sms), buffers, in_place=may_be)
        if isinstance(store, NotApplicable):
            return store
        packing = replace(self.packing, in_place=isinstance(store.exchange, InPlace))
        image, weights = self.params[self.image], self.params[self.b.param]
        return Plan(stem, self.images, tiling, store, buffers, image, weights, packing)


def front(workload: Workload, problem: Problem[CUDAModel]) -> Front | NotApplicable:
    """The convolution `workload` as one that the problem's device can compute so, or why it cannot."""
    if why := wgmma_obstacle(problem):
        return NotApplicable(why)
    found = anchored(workload, contraction)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    view = gemm_view(info)
    if isinstance(view, NotApplicable):
        return view
    dtype = info.a.dtype
    per_word = _PER_WORD.get(dtype, 0)
    if not per_word or _PER_WORD.get(info.b.dtype) != per_word or not info.b.is_constant or view.packs:
        return NotApplicable("a stem multiplies activations of 16 bits, or bytes, by constant OHWI weights")
    if info.b.dtype != dtype and not {info.b.dtype, dtype} <= BYTES:
        return NotApplicable(f"no product of {dtype} by {info.b.dtype}")
    if len(view.a) not in (3, 4) or len(view.rows) != len(view.a) - 1 or len(view.steps) != 2 or len(view.b) != 4:
        return NotApplicable("no 2-D convolution")
    source = _image(sch, stages, info)
    if isinstance(source, NotApplicable):
        return source
    stem = _stem(view, source, per_word)
    if isinstance(stem, NotApplicable):
        return stem
    epilogue = epilogue_of(sch, stages, info)
    if isinstance(epilogue, NotApplicable):
        return epilogue
    weights = tuple(d for d in info.b.shape)
    if weights[0] > 256:
        return NotApplicable(f"{weights[0]} channels")
    lead = stem.before[1] * per_word - source.before[-2] * stem.channels
    packing = StemPacking(weights, lead, stem.row, source.is_planar, per_word)
    params = tuple(sch.mod["main"].params)
    return Front(stem, view, epilogue, params, source.param, info.b, packing, dtype)


@dataclass(frozen=True, slots=True)
class _Image:
    """The parameter that is convolved: extents and the padding before, as if it lay channels last."""

    param: int
    extents: tuple[int, ...]
    before: tuple[int, ...]
    is_planar: bool


def _image(sch: Schedule, stages: Stages, info: Contraction) -> _Image | NotApplicable:
    found = source_of(sch, stages, info)
    if not isinstance(found, NotApplicable):
        return _Image(*found, is_planar=False)
    if len(stages.producers) != 1 or info.a.param >= 0 or info.b.param < 0 or len(info.a.shape) != len(_PLANAR):
        return found
    planar = padded_param(sch.get(stages.producers[0]), list(sch.mod["main"].params), _PLANAR)
    if isinstance(planar, NotApplicable):
        return found
    param, shape, before = planar
    kept = [i for i, extent in enumerate(info.a.shape) if extent > 1]
    last = [_PLANAR.index(i) for i in kept]
    return _Image(param, tuple(shape[d] for d in last), tuple(before[d] for d in last), is_planar=True)


def _stem(view: GemmView, image: _Image, per_word: int) -> Stem | NotApplicable:
    down, right, channel = view.a[-3:]
    if (down.window, right.window) != view.steps or (down.dilation, right.dilation) != (1, 1):
        return NotApplicable("a window with holes")
    if down.scale != right.scale or channel.group != view.inner:
        return NotApplicable("strides that differ")
    kh, kw = (view.groups[g].extent for g in view.steps)
    oh, ow = (view.groups[g].extent for g in view.rows[-2:])
    height, width, c = image.extents[-3:]
    planes, channels = (c, 1) if image.is_planar else (1, c)
    if right.scale * channels % per_word or width * channels % per_word:
        return NotApplicable("windows or rows that do not begin with a word")
    if c > _MAX_CHANNELS:
        return NotApplicable(f"{c} channels")
    if image.before[-1]:
        return NotApplicable("padded channels")
    left = image.before[-2] * channels
    lead = -left % per_word
    row = row_of(lead + kw * channels, image.is_planar, per_word)
    before = image.before[-3], (left + lead) // per_word
    words = width * channels // per_word
    found = Stem(height, words, channels, oh, ow, (kh, kw), right.scale, before, row, 1, planes, per_word)
    if image.is_planar and (per_word != 2 or not found.is_copied):
        return NotApplicable("rows of a plane that the hardware does not copy")
    return found

"""1x1 convolution, depthwise convolution, 1x1 convolution, recognised from the TIR; the first may be missing.

    S[o, y, x, c] = sum over k of     a(o, y, x, k) * w(c, k)
    T[o, y, x, c] = f(S[o, y, x, c])                     elementwise; 0 outside of the image
    D[o, h, w, c] = sum over kh, kw of T[o, h * stride + kh * dilation - pad, w ..., c] * v(kh, kw, c)
    O[o, h, w, j] = sum over c of     g(D[o, h, w, c]) * u(j, c)
    out[o, h, w, j] = e(O[o, h, w, j])

Without the first convolution, T is elementwise in parameters. Names are never looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, sym, tirx
from tvm.tirx import PrimFunc

from subtune.core.kernel import NotApplicable
from subtune.patterns.reductions import Blocks, Scope, common_indices, product, sums_of_products
from subtune.tir.blocks import is_reduction
from subtune.tir.expressions import loads, replace_loads, variables
from subtune.tir.substitute import substitute


@dataclass(frozen=True, slots=True)
class Taps:
    """A window along one axis: output `i` reads inputs `i * stride + tap * dilation - pad`."""

    taps: int
    stride: int
    dilation: int
    pad: int

    @property
    def span(self) -> int:
        """Inputs from the first to the last that one output reads."""
        return (self.taps - 1) * self.dilation + 1


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """`images` x `height` x `width` pixels of `channels` between the 1x1 convolutions; `rows` and `columns` select.

    The first 1x1 convolution reads `inputs` channels; 0 where there is none, and the depthwise one reads a parameter.
    The last gives `outputs` channels of `out_height` x `out_width` pixels.
    """

    images: int
    height: int
    width: int
    inputs: int
    channels: int
    outputs: int
    out_height: int
    out_width: int
    rows: Taps
    columns: Taps

    def ring_rows(self, step: int) -> int:
        """Rows kept of what the depthwise convolution reads, while it makes `step` rows at a time."""
        return (step - 1) * self.rows.stride + self.rows.span

    @property
    def ring_width(self) -> int:
        """Pixels of such a row, with the zeros left and right of the image."""
        last = (self.out_width - 1) * self.columns.stride + self.columns.span
        return max(self.columns.pad + self.width, last)

    def cached_bytes(self, step: int) -> int:
        """What a thread keeps from one step to the next, and between the depthwise and the last convolution."""
        kept = self.ring_rows(step) * self.ring_width + step * self.out_width
        return 4 * self.channels * kept


@dataclass(frozen=True, slots=True)
class Weights:
    """A constant parameter, and which of its dims runs along what; the other dims have extent one."""

    param: int
    shape: tuple[int, ...]
    dims: tuple[int, ...]
    """Of a 1x1 convolution: (output channel, input channel); of the depthwise one: (kh, kw, channel)."""


@dataclass(frozen=True, slots=True)
class BottleneckExpressions:
    """The block as expressions over the variables below; `score`, `mean` and `total` stand for S, D and O.

    `a` is over (image, row, column, k), `f` over (image, row, column, channel) of what the depthwise convolution reads,
    `g` over (image, row, column, channel) and `e` over (image, row, column, out) of what it gives.
    """

    pattern: Bottleneck
    image: Any
    row: Any
    column: Any
    k: Any
    channel: Any
    out: Any
    score: Any
    mean: Any
    total: Any
    a: Any
    f: Any
    g: Any
    e: Any
    expand: Weights | None
    depthwise: Weights
    project: Weights


class _Unfit(Exception):
    """Why a function is no such block."""


def bottleneck_expressions(func: PrimFunc, num_outputs: int) -> BottleneckExpressions | NotApplicable:
    """An unscheduled PrimFunc as such a block, or why it is none."""
    found = sums_of_products(func, num_outputs, (2, 3), "1x1 convolutions around a depthwise one")
    if isinstance(found, NotApplicable):
        return found
    blocks, sums = found
    try:
        return _Reader(blocks, Scope(blocks, sym.Analyzer())).read(sums)
    except _Unfit as e:
        return NotApplicable(str(e))


def _need(condition: Any, reason: str) -> None:
    if not condition:
        raise _Unfit(reason)


@dataclass(frozen=True, slots=True)
class _Axes:
    """The variables of a reduction's block: those of its output `[image, row, column, channel]`, and the reduced."""

    store: tuple[Any, ...]
    sizes: tuple[int, ...]
    reduced: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Reader:
    blocks: Blocks
    scope: Scope

    def read(self, sums: Sequence[Any]) -> BottleneckExpressions:
        *before, depthwise, project = sums
        image, row, column, k, channel, out = (
            tirx.Var(n, "int64") for n in ("image", "row", "column", "k", "channel", "out")
        )
        score, mean, total = (tirx.Var(n, "float32") for n in ("score", "mean", "total"))
        place = (image, row, column)

        axes = self._axes(project)
        _need(len(axes.reduced) == 1, "the last convolution is not 1x1")
        left, right = self._sides(project, depthwise)
        last = self._weights(right, (axes.store[3], axes.reduced[0]))
        at = common_indices(left, depthwise.body.buffer)
        self._need_same(at, (*axes.store[:3], axes.reduced[0]), "the last convolution is not 1x1")
        g = replace_loads(substitute(left, {**_pairs(axes.store[:3], place), axes.reduced[0]: channel}),
                          depthwise.body.buffer, mean)  # fmt: skip
        e = self._epilogue(project, total, (*place, out))
        outer = axes
        self.scope.analyzer.bind(image, ir.Range(0, axes.sizes[0]))

        axes = self._axes(depthwise)
        source = before[0].body.buffer if before else None
        left, right = self._window(depthwise, axes)
        taps = self._weights(right, (*axes.reduced, axes.store[3]))
        value, load, size = self._inside(left, source, axes)
        at = load.indices
        rows, columns = (self._taps(at[i + 1], axes.store[i + 1], axes.reduced[i]) for i in (0, 1))
        self._need_same((at[0], at[3]), (axes.store[0], axes.store[3]), "the convolution is not depthwise")
        self._need_zeros(left, at, (rows, columns), axes, size)
        _need(rows.span >= rows.stride and columns.span >= columns.stride, "the windows leave pixels out")
        f = self._at(value, axes, (rows, columns), (*place, channel))

        expand, a, inputs = None, tirx.const(0.0, "float32"), 0
        if before:
            self._need_same(common_indices(f, source), (*place, channel), "the image is read at several places")
            f = replace_loads(f, source, score)
            axes_of = self._axes(before[0])
            _need(len(axes_of.reduced) == 1, "the first convolution is not 1x1")
            own, right = self._sides(before[0], None)
            if axes_of.store[3] in variables(own):
                own, right = right, own
            expand = self._weights(right, (axes_of.store[3], axes_of.reduced[0]))
            _need(isinstance(own, ir.TensorLoad), "the first convolution's image is computed on the way")
            self._need_same(own.indices, (*axes_of.store[:3], axes_of.reduced[0]), "the first convolution is not 1x1")
            a = substitute(own, {**_pairs(axes_of.store[:3], place), axes_of.reduced[0]: k})
            inputs = self.scope.extent(axes_of.reduced[0])
        self._need_params((a, f, g, e), (expand, taps, last))
        images, _, _, channels = axes.sizes
        _, out_height, out_width, outputs = outer.sizes
        block = Bottleneck(images, *size, inputs, channels, outputs, out_height, out_width, rows=rows, columns=columns)
        return BottleneckExpressions(
            block, image, row, column, k, channel, out, score, mean, total, a, f, g, e, expand, taps, last
        )

    def _axes(self, block: Any) -> _Axes:
        """Binds the block's axes, too. Axes of extent one are replaced by 0 in all expressions."""
        self.scope.enter(block)
        store = tuple(block.body.indices)
        _need(len(store) == 4, "an image has four dims")
        reduced = [iv for iv in block.iter_vars if int(iv.iter_type) == tirx.IterVar.CommReduce]
        longer = tuple(iv.var for iv in reduced if int(iv.dom.extent) > 1)
        return _Axes(store, tuple(self.scope.extent(v) for v in store), longer)

    def _sides(self, block: Any, source: Any | None) -> tuple[Any, Any]:
        """Both factors, expanded; the one that reads what `source` makes first."""
        first, second = (self.scope.expand(side) for side in product(block) or ())
        if source is not None and not any(load.source.same_as(source.body.buffer) for load in loads(first)):
            first, second = second, first
        return first, second

    def _window(self, block: Any, axes: _Axes) -> tuple[Any, Any]:
        """Image and weights of the depthwise convolution."""
        _need(len(axes.reduced) == 2, "the convolution in the middle is not depthwise")
        left, right = self._sides(block, None)
        if {axes.store[1], axes.store[2]} & variables(right):
            left, right = right, left
        _need(axes.store[3] in variables(left), "the convolution in the middle is not depthwise")
        return left, right

    def _weights(self, expr: Any, along: tuple[Any, ...]) -> Weights:
        _need(isinstance(expr, ir.TensorLoad), "weights are computed on the way")
        param = next((i for i, p in enumerate(self.blocks.params) if p.same_as(expr.source)), -1)
        _need(param in self.blocks.constants, "weights are no constants")
        _need(str(expr.source.dtype) == "float32", "not in float32")
        shape = tuple(int(d) for d in expr.source.shape)
        dims = tuple(next((i for i, at in enumerate(expr.indices) if at.same_as(v)), -1) for v in along)
        whole = [shape[d] == self.scope.extent(v) for d, v in zip(dims, along, strict=True)]
        others = [size for i, size in enumerate(shape) if i not in dims]
        _need(-1 not in dims and all(whole) and all(size == 1 for size in others), "weights are indexed otherwise")
        return Weights(param, shape, dims)

    def _inside(self, left: Any, source: Any | None, axes: _Axes) -> tuple[Any, Any, tuple[int, int]]:
        """What is read inside of the image, one load of it, and the image's height and width."""
        value = left
        if _is_padded(left):
            value = left.args[1]
            _need(isinstance(left.args[2], tirx.FloatImm) and left.args[2].value == 0.0, "the padding is not zero")
        read = [load for load in loads(value) if {*axes.reduced} & variables(load.indices)]
        read = [load for load in read if source is None or load.source.same_as(source)]
        shapes = {tuple(int(d) for d in load.source.shape) for load in read}
        _need(len(shapes) == 1, "the depthwise convolution reads no image, or several")
        (shape,) = shapes
        _need(len(shape) == 4 and shape[3] == axes.sizes[3], "the convolution in the middle is not depthwise")
        return value, read[0], (shape[1], shape[2])

    def _taps(self, index: Any, output: Any, tap: Any) -> Taps:
        zero = tirx.const(0, "int64")

        def value(i: int, j: int) -> int:
            found = self.scope.analyzer.simplify(
                substitute(index, {output: tirx.const(i, "int64"), tap: tirx.const(j, "int64")})
            )
            _need(isinstance(found, tirx.IntImm), "a window is indexed otherwise")
            return int(found)

        origin = value(0, 0)
        stride = value(1, 0) - origin if self.scope.extent(output) > 1 else 1
        dilation = value(0, 1) - origin
        again = output * tirx.const(stride, "int64") + tap * tirx.const(dilation, "int64") + tirx.const(origin, "int64")
        same = self.scope.analyzer.can_prove_equal(index - again, zero)
        _need(same and stride >= 1 and dilation >= 1 and origin <= 0, "a window is indexed otherwise")
        return Taps(self.scope.extent(tap), stride, dilation, -origin)

    def _need_zeros(
        self, left: Any, at: Sequence[Any], taps: Sequence[Taps], axes: _Axes, size: tuple[int, int]
    ) -> None:
        """Zeros are read outside of the image, and only there."""
        reach = [(axes.sizes[i + 1] - 1) * t.stride + t.span - t.pad for i, t in enumerate(taps)]
        if not _is_padded(left):
            _need(all(t.pad == 0 and r <= s for t, r, s in zip(taps, reach, size, strict=True)), "no padding is stored")
            return
        inside = [tirx.all(i >= 0, i < s) for i, s in zip(at[1:3], size, strict=True)]
        # what lies outside cannot be read, so that only "inside means read" is left to be shown
        with self.scope.analyzer.constraint_scope(tirx.all(*inside)):
            _need(self.scope.analyzer.can_prove(left.args[0]), "the padding reaches into the image")

    def _at(self, value: Any, axes: _Axes, taps: Sequence[Taps], place: tuple[Any, ...]) -> Any:
        """`value` as a function of the image's pixel instead of the window's place."""
        zero = tirx.const(0, "int64")
        moved = {axes.store[0]: place[0], axes.store[3]: place[3]}
        for output, tap, t, at in zip(axes.store[1:3], axes.reduced, taps, place[1:3], strict=True):
            _need(1 in (t.dilation, t.stride), "strided and dilated at once")
            moving, still = (tap, output) if t.dilation == 1 else (output, tap)
            moved |= {moving: at + tirx.const(t.pad, "int64"), still: zero}
        return self.scope.analyzer.simplify(substitute(value, moved))

    def _epilogue(self, project: Any, total: Any, place: tuple[Any, ...]) -> Any:
        output = self.blocks.params[-1]
        block = self.blocks.made.get(output)
        if block is project:
            return total
        _need(block is not None and not is_reduction(block), "the output is another reduction's")
        assert block is not None
        axes = self._axes(block)
        value = self.scope.expand(block.body.value)
        at = common_indices(value, project.body.buffer)
        self._need_same(at, axes.store, "the output is rearranged")
        return replace_loads(substitute(value, _pairs(axes.store, place)), project.body.buffer, total)

    def _need_same(self, at: Sequence[Any] | None, axes: Sequence[Any], reason: str) -> None:
        _need(at is not None and len(at) == len(axes), reason)
        for index, axis in zip(at or (), axes, strict=True):
            _need(self.scope.analyzer.can_prove_equal(index, axis), reason)

    def _need_params(self, exprs: Sequence[Any], weights: Sequence[Weights | None]) -> None:
        read = [load.source for expr in exprs for load in loads(expr)]
        _need(all(self.blocks.is_param(source) for source in read), "an operand is computed by another reduction")
        _need(all(str(expr.ty.dtype) == "float32" for expr in exprs), "not in float32")
        packed = [self.blocks.params[w.param] for w in weights if w is not None]
        _need(not any(p.same_as(source) for p in packed for source in read), "weights are read twice")


def _is_padded(expr: Any) -> bool:
    return isinstance(expr, ir.Call) and "if_then_else" in str(expr.op)


def _pairs(keys: Sequence[Any], values: Sequence[Any]) -> Mapping[Any, Any]:
    return dict(zip(keys, values, strict=True))

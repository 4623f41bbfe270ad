"""1x1 convolution, depthwise convolution and 1x1 convolution in one kernel, row of pixels by row.

    for images, blocks of rows (parallel):
      for `step` rows:
        for panels of channels:  micro-kernel over k for the rows that are new   -> ring[panel, row % rows kept], in L1
                                 windows over the ring, in registers             -> between[pixels, channels], in L2
        for panels of outputs:   micro-kernel over channels, epilogue in registers -> out

The wide tensors between the convolutions never leave a core's caches; what blocks share, `span - stride` rows, is
computed by both. Sources: MobileNetV2's block (Sandler et al. 2018); line buffers as in Halide's sliding windows
(Ragan-Kelley et al. 2013); Goto & van de Geijn 2008 for the micro-kernels.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.tirx import PrimFunc

from subtune.backends.cpu.families.bottleneck.candidates import Knobs, obstacle
from subtune.backends.cpu.family import CPUProblem
from subtune.core.kernel import Kernel, NotApplicable, Packing
from subtune.patterns.bottleneck import BottleneckExpressions, Weights, bottleneck_expressions
from subtune.tir.expressions import variables
from subtune.tir.statements import (
    buffer,
    in_tiles,
    integer,
    load,
    named,
    parallel,
    sequence,
    serial,
    store,
    tile,
    unrolled,
)
from subtune.tir.substitute import substitute


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    workload, lanes = problem.workload, problem.device.lanes()
    form = bottleneck_expressions(workload.func, workload.num_outputs)
    if isinstance(form, NotApplicable):
        return form
    if reason := obstacle(form.pattern, knobs, lanes):
        return NotApplicable(reason)
    return _Writer(workload.func, form, knobs, lanes).kernel()


class _Writer:
    def __init__(self, func: PrimFunc, form: BottleneckExpressions, knobs: Knobs, lanes: int) -> None:
        self.func, self.form, self.block, self.knobs, self.lanes = func, form, form.pattern, knobs, lanes
        self.params = list(func.params)
        self.packings: list[tuple[int, Packing]] = []
        self.panels = self.block.channels // knobs.nr
        self.kept = self.block.ring_rows(knobs.step)
        self.ring = buffer("ring", (self.panels, self.kept, self.block.ring_width, knobs.nr))
        self.between = buffer("between", (knobs.step * self.block.out_width, self.block.channels))
        self.expand = None if form.expand is None else self._packed(form.expand, knobs.nr, "expand")
        self.project = self._packed(form.project, knobs.nr2, "project")
        dims = form.depthwise.dims
        order = (*(i for i in range(len(form.depthwise.shape)) if i not in dims), *dims)
        self.window = self._param(form.depthwise, tuple((d,) for d in form.depthwise.shape), order, "window")

    def kernel(self) -> Kernel:
        count = self.block.images * self.knobs.blocks
        body = serial(count, self._block) if self.knobs.serial else parallel(count, self._block)
        return Kernel(tirx.PrimFunc(self.params, body, self.func.ret_type, self.func.attrs), tuple(self.packings))

    def _packed(self, weights: Weights, nr: int, name: str) -> Any:
        """`[ones..., output / nr, input, nr]`."""
        column, reduced = weights.dims
        split: list[tuple[int, ...]] = []
        place: dict[int, int] = {}
        for dim, size in enumerate(weights.shape):
            place[dim] = sum(len(parts) for parts in split)
            split.append((-(-size // nr), nr) if dim == column else (size,))
        ones = [place[dim] for dim in range(len(split)) if dim not in weights.dims]
        order = (*ones, place[column], place[reduced], place[column] + 1)
        return self._param(weights, tuple(split), order, name)

    def _param(self, weights: Weights, split: tuple[tuple[int, ...], ...], order: tuple[int, ...], name: str) -> Any:
        packing = Packing(split, order)
        self.packings.append((weights.param, packing))
        self.params[weights.param] = buffer(name, packing.shape)
        ones = (0,) * (len(packing.shape) - 3)
        return lambda *at: load(self.params[weights.param], *ones, *at)

    def _block(self, index: Any) -> Any:
        block, knobs = self.block, self.knobs
        rows = -(-block.out_height // knobs.blocks)
        image = tirx.floordiv(index, integer(knobs.blocks))
        first = tirx.floormod(index, integer(knobs.blocks)) * integer(rows)
        steps = tirx.floordiv(tirx.min(integer(rows), integer(block.out_height) - first), integer(knobs.step))
        if block.out_height % rows == 0:
            steps = integer(rows // knobs.step)
        return sequence(
            tirx.AllocBuffer(self.ring),
            tirx.AllocBuffer(self.between),
            *self._margins(),
            serial(steps, lambda i: self._step(image, first + i * integer(knobs.step), tirx.EQ(i, integer(0)))),
        )

    def _margins(self) -> list[Any]:
        """Zeros left and right of the image, in every row of the ring."""
        left, right = self.block.columns.pad, self.block.columns.pad + self.block.width
        rows = self.panels * self.kept
        return [
            serial(rows, partial(self._zeros, start, width))
            for start, width in ((0, left), (right, self.block.ring_width - right))
            if width
        ]

    def _zeros(self, start: int, width: int, row: Any) -> Any:
        panel, slot = tirx.floordiv(row, integer(self.kept)), tirx.floormod(row, integer(self.kept))
        zero = tirx.const(0.0, "float32")
        pixel = lambda x: tile(  # noqa: E731
            1, self.knobs.nr, self.lanes, lambda _, c: store(self.ring, zero, panel, slot, x + integer(start), c)
        )
        return serial(width, pixel)

    def _step(self, image: Any, first: Any, is_first: Any) -> Any:
        """Rows `first` and on of the output, as many as a step has."""
        knobs, taps = self.knobs, self.block.rows
        new = knobs.step * taps.stride
        old = self.kept - new  # rows that the step before has made; the first step makes all
        count = tirx.Select(is_first, integer(self.kept), integer(new))
        begin = first * integer(taps.stride) + tirx.Select(is_first, integer(0), integer(old))  # padding counted

        def panel(p: Any) -> Any:
            fill = serial(count, lambda i: named("at", begin + i, lambda at: self._fill(image, at, p)))
            windows = serial(knobs.step // knobs.dr, lambda r: self._windows(image, first, r * integer(knobs.dr), p))
            return sequence(fill, windows)

        return sequence(serial(self.panels, panel), *self._project(image, first))

    def _fill(self, image: Any, at: Any, panel: Any) -> Any:
        """The ring's row `at`, counted from the first padded row: of the image, or zeros."""
        row, slot = at - integer(self.block.rows.pad), tirx.floormod(at, integer(self.kept))
        if self.expand is None:
            inside = serial(self.block.width, lambda x: self._copy(image, row, slot, x, panel))
        else:
            body = partial(self._expand, image, row, slot, panel)
            inside = sequence(*in_tiles(self.block.width, self.knobs.mr, body))
        reach = (self.block.out_height - 1) * self.block.rows.stride + self.block.rows.span
        if self.block.rows.pad == 0 and reach <= self.block.height:
            return inside
        exists = tirx.all(row >= integer(0), row < integer(self.block.height))
        width = self.block.width
        return tirx.IfThenElse(exists, inside, self._zero_row(slot, panel, width))

    def _zero_row(self, slot: Any, panel: Any, width: int) -> Any:
        return self._zeros(self.block.columns.pad, width, panel * integer(self.kept) + slot)

    def _copy(self, image: Any, row: Any, slot: Any, x: Any, panel: Any) -> Any:
        def element(_: Any, c: Any) -> Any:
            channel = panel * integer(self.knobs.nr) + c
            env = {self.form.image: image, self.form.row: row, self.form.column: x, self.form.channel: channel}
            return store(self.ring, substitute(self.form.f, env), panel, slot, x + integer(self.block.columns.pad), c)

        return tile(1, self.knobs.nr, self.lanes, element)

    def _expand(self, image: Any, row: Any, slot: Any, panel: Any, start: Any, rows: int) -> Any:
        form, nr, weights = self.form, self.knobs.nr, self.expand
        assert weights is not None
        sums = buffer("sums", (rows, nr), "local")

        def factor(i: Any, k: Any) -> Any:
            env = {form.image: image, form.row: row, form.column: start + i, form.k: k}
            return substitute(form.a, env)

        begin, rest = split_start(form.f, form.score)

        def at(expr: Any, i: Any, c: Any) -> Any:
            env = {form.image: image, form.row: row, form.column: start + i, form.channel: panel * integer(nr) + c}
            return substitute(expr, {**env, form.score: load(sums, i, c)})

        def finish(i: Any, c: Any) -> Any:
            return store(self.ring, at(rest, i, c), panel, slot, start + i + integer(self.block.columns.pad), c)

        weight = lambda k, c: weights(panel, k, c)  # noqa: E731
        last = tile(rows, nr, self.lanes, finish)
        return self._micro_kernel(sums, (rows, nr), self.block.inputs, factor, weight, last, partial(at, begin))

    def _windows(self, image: Any, first: Any, ahead: Any, panel: Any) -> Any:
        """Rows `first + ahead` and on of the depthwise convolution, `dr` of them at a time, one vector of channels."""
        rows = self.block.rows
        top = (first + ahead) * integer(rows.stride)
        slots = [tirx.Var(f"slot{j}", "int64") for j in range(self.block.ring_rows(self.knobs.dr))]
        binds = [tirx.Bind(slot, tirx.floormod(top + integer(j), integer(self.kept))) for j, slot in enumerate(slots)]

        def vector(v: Any) -> Any:
            body = partial(self._window, image, first, ahead, panel, v * integer(self.lanes), slots)
            return sequence(*in_tiles(self.block.out_width, self.knobs.dw, body))

        return sequence(*binds, serial(self.knobs.nr // self.lanes, vector))

    def _window(
        self, image: Any, first: Any, ahead: Any, panel: Any, c0: Any, slots: list[Any], start: Any, pixels: int
    ) -> Any:
        form, dr, rows, columns = self.form, self.knobs.dr, self.block.rows, self.block.columns
        sums = buffer("sums", (dr * pixels, self.lanes), "local")
        channel = panel * integer(self.knobs.nr) + c0

        def add(r: int, kh: int, kw: int) -> Any:
            slot = slots[r * rows.stride + kh * rows.dilation]

            def element(i: Any, c: Any) -> Any:
                x = (start + i) * integer(columns.stride) + integer(kw * columns.dilation)
                at = i + integer(r * pixels)
                product = load(self.ring, panel, slot, x, c0 + c) * self.window(kh, kw, channel + c)
                return store(sums, load(sums, at, c) + product, at, c)

            return tile(pixels, self.lanes, self.lanes, element)

        begin, rest = split_start(form.g, form.mean)

        def at(expr: Any, r: Any, i: Any, c: Any) -> Any:
            env = {form.image: image, form.row: first + ahead + r, form.column: start + i, form.channel: channel + c}
            return substitute(expr, {**env, form.mean: load(sums, r * integer(pixels) + i, c)})

        def init(r: Any, i: Any, c: Any) -> Any:
            return store(sums, at(begin, r, i, c), r * integer(pixels) + i, c)

        def finish(r: Any, i: Any, c: Any) -> Any:
            pixel = (ahead + r) * integer(self.block.out_width) + start + i
            return store(self.between, at(rest, r, i, c), pixel, channel + c)

        # row by row of the ring, so that what several windows read is loaded once
        taps = sorted(
            (r * rows.stride + kh * rows.dilation, kw, r, kh)
            for r in range(dr)
            for kh in range(rows.taps)
            for kw in range(columns.taps)
        )
        return sequence(
            tirx.AllocBuffer(sums),
            unrolled(dr, lambda r: tile(pixels, self.lanes, self.lanes, partial(init, r))),
            *(add(r, kh, kw) for _, kw, r, kh in taps),
            unrolled(dr, lambda r: tile(pixels, self.lanes, self.lanes, partial(finish, r))),
        )

    def _project(self, image: Any, first: Any) -> list[Any]:
        """The rows' last convolution: whole panels of outputs in a loop, what is left in one of fewer vectors."""
        pixels = self.knobs.step * self.block.out_width
        return in_tiles(
            self.block.outputs,
            self.knobs.nr2,
            lambda begin, width: sequence(
                *in_tiles(pixels, self.knobs.mr2, partial(self._outputs, image, first, begin, width))
            ),
        )

    def _outputs(self, image: Any, first: Any, begin: Any, width: int, start: Any, rows: int) -> Any:
        form, nr = self.form, self.knobs.nr2
        computed = -(-width // self.lanes) * self.lanes
        sums = buffer("sums", (rows, computed), "local")
        out = self.params[-1]

        def finish(i: Any, c: Any) -> Any:
            pixel = start + i
            row = first + tirx.floordiv(pixel, integer(self.block.out_width))
            column = tirx.floormod(pixel, integer(self.block.out_width))
            env = {form.image: image, form.row: row, form.column: column, form.out: begin + c}
            return store(out, substitute(form.e, {**env, form.total: load(sums, i, c)}), image, row, column, begin + c)

        weight = lambda k, c: self.project(tirx.floordiv(begin, integer(nr)), k, c)  # noqa: E731
        factor = lambda i, k: load(self.between, start + i, k)  # noqa: E731
        last = tile(rows, width, self.lanes, finish)
        return self._micro_kernel(sums, (rows, computed), self.block.channels, factor, weight, last)

    def _micro_kernel(
        self, sums: Any, shape: tuple[int, int], depth: int, factor: Any, weight: Any, finish: Any, begin: Any = None
    ) -> Any:
        """A tile of sums over `depth` products in registers, from `begin` or zero, then `finish` on them."""
        begin = begin or (lambda i, c: tirx.const(0.0, "float32"))

        def add(k: Any) -> Any:
            return tile(
                *shape, self.lanes, lambda i, c: store(sums, load(sums, i, c) + factor(i, k) * weight(k, c), i, c)
            )

        return sequence(
            tirx.AllocBuffer(sums),
            tile(*shape, self.lanes, lambda i, c: store(sums, begin(i, c), i, c)),
            serial(depth, add),
            finish,
        )


def split_start(expr: Any, total: Any) -> tuple[Any, Any]:
    """What a sum may start from instead of zero, and `expr` without it: a bias that is added to `total` right away."""
    found: list[Any] = []

    def follow(add: Any) -> Any:
        sides = (add.a, add.b)
        for total_side, other in (sides, sides[::-1]):
            if total_side.same_as(total) and total not in variables(other):
                found.append(other)
                return total
        return add

    rest = tvm_ffi.structural_map(expr, (tirx.Add, follow))
    if not found or any(not tvm_ffi.structural_equal(other, found[0]) for other in found):
        return tirx.const(0.0, "float32"), expr
    return found[0], rest

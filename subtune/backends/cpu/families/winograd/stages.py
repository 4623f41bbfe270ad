"""The stages of Winograd's algorithm, put in the place of a workload's convolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from subtune.backends.cpu.families.winograd.arithmetic import arithmetic_of
from subtune.backends.cpu.math import int16_ops
from subtune.patterns.contraction import Contraction
from subtune.patterns.stages import Stages
from subtune.tir.blocks import nest, root_stages, stage_block, with_stages
from subtune.tir.expressions import at_most, loads
from subtune.tir.substitute import substitute


@dataclass(frozen=True, slots=True)
class Geometry:
    """Names of the rewritten function's blocks."""

    outputs: tuple[str, ...]
    pads: tuple[str, ...]


def _dims(*extents: int) -> list[Any]:
    """Extents as Relax makes them, so that indices of both functions agree."""
    return [tirx.const(extent, "int64") for extent in extents]


def rewritten(
    sch: Schedule, stages: Stages, info: Contraction, m: int, weights: Any, together: int = 1
) -> tuple[Any, Geometry]:
    """The workload with its convolution computed by Winograd's algorithm, from weights that `weights` transforms.

    A multiple of `together` tiles is transformed and multiplied: the last one several times.
    """
    func = sch.mod["main"]
    anchor = sch.get(stages.anchors[0])
    source = anchor.reads[info.a.read].source
    result = anchor.writes[0].source
    n, height, width, channels = (int(d) for d in source.shape)
    out_h, out_w, out_c = (int(d) for d in result.shape[1:])
    tiles_h, tiles_w = -(-out_h // m), -(-out_w // m)
    tiles = n * tiles_h * tiles_w
    multiplied = -(-tiles // together) * together
    a, by, nr = m + 2, arithmetic_of(info), weights.shape[-1]
    data = te.placeholder(_dims(n, height, width, channels), str(source.dtype), name="data")
    u = te.placeholder(_dims(*weights.shape), by.weight, name="u")
    xp = _covering(data, tiles_h * m + 2, tiles_w * m + 2)

    def pixel(p: Any, h: Any, w: Any, c: Any) -> Any:
        p = at_most(p, tiles - 1) if tiles_h * tiles_w % together else p
        return by.pixel(xp[p // (tiles_h * tiles_w), p // tiles_w % tiles_h * m + h, p % tiles_w * m + w, c])

    def last_weights(o: Any) -> Any:
        return u[0, 0, o // nr, u.shape[3] - 1, o % nr]

    t = te.compute(
        _dims(multiplied, a, a, channels),
        lambda p, e, s, c: by.input_row(m, e, [pixel(p, r, s, c) for r in range(a)]),
        name="wino_t",
    )
    v = te.compute(
        _dims(a, a, multiplied, channels),
        lambda e, s, p, c: by.input_row(m, s, [t[p, e, r, c] for r in range(a)]),
        name="wino_v",
    )
    gemm = _products(anchor, info, v, u, by.count)
    rows = te.compute(
        _dims(tiles, m, a, out_c),
        lambda p, i, s, o: by.output_row(m, i, [gemm[r, s, p, o] for r in range(a)]),
        name="wino_s",
    )
    y = te.compute(
        _dims(tiles, m, m, out_c),
        lambda p, i, j, o: by.result(
            by.output_row(m, j, [rows[p, i, r, o] for r in range(a)]), i, j, lambda: last_weights(o)
        ),
        name="wino_y",
    )
    conv = te.compute(
        _dims(n, out_h, out_w, out_c),
        lambda i, h, w, o: y[(i * tiles_h + h // m) * tiles_w + w // m, h % m, w % m, o],
        name="wino_out",
    )
    inner = te.create_prim_func([data, u, conv])
    if by.count > 1:
        inner = _in_words(inner, by.count)
    return _graft(func, inner, source, result, info.b.param, sch, stages)


def _products(anchor: Any, info: Contraction, v: Any, u: Any, count: int) -> Any:
    """A GEMM per element of the tile, over the channels that the anchor's columns multiply: of groups, their own.

    Over words of `count` channels it is the product of the first of each: `_in_words` makes it that of all.
    """
    source = anchor.reads[info.a.read].source
    nr = int(u.shape[-1])
    k = te.reduce_axis((_dims(0)[0], _dims(info.b.shape[-1] // count)[0]), "k")
    if count > 1:
        return te.compute(
            [*v.shape[:3], _dims(info.n.extent)[0]],
            lambda e, s, p, o: te.sum(v[e, s, p, k * count].astype(u.dtype) * u[e, s, o // nr, k, o % nr], axis=k),
            name="wino_m",
        )
    (load,) = (found for found in loads(anchor.body.value) if found.source.same_as(source))
    of_column, of_depth = anchor.iter_vars[info.n.index].var, anchor.iter_vars[info.b.axes[-1]].var

    def channel(o: Any) -> Any:
        return substitute(load.indices[-1], {of_column: o, of_depth: k.var})

    return te.compute(
        [*v.shape[:3], _dims(info.n.extent)[0]],
        lambda e, s, p, o: te.sum(v[e, s, p, channel(o)] * u[e, s, o // nr, k, o % nr], axis=k),
        name="wino_m",
    )


def _in_words(func: PrimFunc, count: int) -> PrimFunc:
    """`func` with its products over words of the transformed activations."""
    stages = root_stages(func)
    at = next(i for i, stage in enumerate(stages) if stage_block(stage).name_hint == "wino_m")
    block = stage_block(stages[at])
    store = block.body
    v, u = store.value.b.a.value, store.value.b.b
    *outer, first = v.indices
    word = tirx.BufferLoad(v.source, [*outer, tirx.Ramp(first, tirx.const(1, "int64"), count)])
    total = int16_ops.pair_dot(store.value.a, tirx.reinterpret("int32", word), u)
    body = tirx.BufferStore(store.buffer, total, list(store.indices))
    stages = [*stages[:at], nest(block.name_hint, block.iter_vars, {}, body, block.init), *stages[at + 1 :]]
    return with_stages(func, stages, func.body.block.alloc_buffers)


def _covering(data: Any, least_height: int, least_width: int) -> Any:
    """`data` (n, h, w, c), with zeros below and on the right where it is smaller than whole tiles."""
    n, height, width, channels = (int(d) for d in data.shape)
    if least_height <= height and least_width <= width:
        return data
    return te.compute(
        _dims(n, least_height, least_width, channels),
        lambda i, h, w, c: te.if_then_else(
            te.all(h < height, w < width), data[i, h, w, c], tirx.const(0, data.dtype)
        ),
        name="wino_xp",
    )  # fmt: skip


def _graft(
    func: PrimFunc, inner: PrimFunc, source: Any, result: Any, weights: int, sch: Schedule, stages: Stages
) -> tuple[Any, Geometry]:
    """Put the stages of `inner(data, u, conv)` in the place of the anchor of `func`."""
    data, u, conv = inner.params
    inner_root = substitute(inner.body, {data: source, conv: result}).block
    anchor = sch.get(stages.anchors[0]).name_hint
    merged: list[Any] = []
    for stage in root_stages(func):
        merged += list(inner_root.body.seq) if stage_block(stage).name_hint == anchor else [stage]
    params = list(func.params)
    params[weights] = u
    buffers = [*func.body.block.alloc_buffers, *inner_root.alloc_buffers]
    outputs = tuple(sch.get(b).name_hint for b in stages.outputs) or ("wino_out",)
    pads = tuple(sch.get(b).name_hint for b in stages.producers)
    return with_stages(func, merged, buffers, params), Geometry(outputs, pads)

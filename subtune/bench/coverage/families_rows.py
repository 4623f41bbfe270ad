"""What goes along axes: norms, softmax, attention, reductions, what orders elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from subtune.bench.coverage.case import Sizes
from subtune.bench.coverage.dialect import Dialect, Value
from subtune.bench.coverage.family import Draw, Family

_MOST_DISTINCT = 30_000
"""Values that a half type tells apart: an order of more would be anybody's."""


def layer_norm(d: Dialect, s: Sizes) -> Value:
    width = s["shape"][-1]
    return d.layer_norm(d.input(s["shape"]), d.weight((width,), "positive"), d.weight((width,)), width)


def rms_norm(d: Dialect, s: Sizes) -> Value:
    width = s["shape"][-1]
    return d.rms_norm(d.input(s["shape"]), d.weight((width,), "positive"), width)


def group_norm(d: Dialect, s: Sizes) -> Value:
    channels = s["shape"][1]
    weights = d.weight((channels,), "positive"), d.weight((channels,))
    return d.group_norm(d.input(s["shape"]), s["groups"], *weights, s["shape"])


def batch_norm(d: Dialect, s: Sizes) -> Value:
    wide = (s["shape"][1],)
    weights = (d.weight(wide, kind) for kind in ("positive", "normal", "normal", "positive"))
    return d.batch_norm(d.input(s["shape"]), *weights)


def softmax(d: Dialect, s: Sizes) -> Value:
    return d.softmax(d.input(s["shape"]), s["axis"], s["log"])


def attention(d: Dialect, s: Sizes) -> Value:
    """Self-attention where `keys` equals `rows`, cross-attention or decoding where not."""
    batch, heads, groups, size = s["batch"], s["heads"], s["groups"], s["head"]
    mine, theirs = (batch, heads, s["rows"], size), (batch, groups, s["keys"], size)
    q, k, v = d.input(mine), d.input(theirs), d.input(theirs)
    mask: Value | None = None
    if s["mask"] == "causal":
        mask = True
    elif s["mask"] == "keys":
        mask = d.input((batch, 1, 1, s["keys"]), "mask")
    return d.attention(q, k, v, mask, (mine, theirs))


def reduce(d: Dialect, s: Sizes) -> Value:
    return d.reduce(s["kind"], d.input(s["shape"], "near-one" if s["kind"] == "prod" else "normal"), s["axes"])


def arg_max(d: Dialect, s: Sizes) -> Value:
    return d.arg_max(d.input(s["shape"], f"distinct:{s['axis']}"), s["axis"])


def top_k(d: Dialect, s: Sizes) -> tuple[Value, Value]:
    return d.top_k(d.input(s["shape"], f"distinct:{s['axis']}"), s["count"], s["axis"])


def cumsum(d: Dialect, s: Sizes) -> Value:
    return d.cumsum(d.input(s["shape"]), s["axis"])


def _rows(draw: Draw, low: int = 16, high: int = 4096) -> tuple[int, ...]:
    """[rows, width] or [batch, rows, width]."""
    rows, width = draw.extent(1, draw.larger(4096, 8)), draw.extent(low, draw.larger(high, 2))
    return (rows, width) if draw.chance(0.6) else (draw.extent(1, 16), draw.extent(1, draw.larger(512)), width)


def _normed(draw: Draw) -> dict[str, Any]:
    return {"shape": _rows(draw)}


def _image(draw: Draw, channels: int) -> tuple[int, ...]:
    return (
        draw.extent(1, draw.larger(8)),
        channels,
        *(draw.extent(4, draw.larger(96, 2)) for _ in range(draw.pick(1, 2, 2))),
    )


def _grouped(draw: Draw) -> dict[str, Any]:
    groups = draw.pick(2, 4, 8, 16, 32)
    return {"shape": _image(draw, groups * draw.extent(2, 24)), "groups": groups}


def _instances(draw: Draw) -> dict[str, Any]:
    channels = draw.extent(3, 256)
    return {"shape": _image(draw, channels), "groups": channels}


def _batches(draw: Draw) -> dict[str, Any]:
    return {"shape": _image(draw, draw.extent(3, 512))}


def _softmax(is_log: bool) -> Callable[[Draw], dict[str, Any]]:
    def drawn(draw: Draw) -> dict[str, Any]:
        shape = _rows(draw, 2, 8192)
        axis = len(shape) - 1 if draw.chance(0.75) else draw.pick(*range(len(shape)))
        return {"shape": shape, "axis": axis, "log": is_log}

    return drawn


def _attention(kind: str) -> Callable[[Draw], dict[str, Any]]:
    def drawn(draw: Draw) -> dict[str, Any]:
        groups = draw.pick(1, 2, 4, 8, 12)
        heads = groups * draw.pick(2, 3, 4, 8) if kind in ("gqa", "decode") and draw.chance(0.8) else groups
        rows = draw.extent(16, draw.larger(768))
        keys = draw.extent(16, draw.larger(768)) if kind in ("cross", "decode") else rows
        if kind == "decode":
            rows, keys = 1, draw.larger(keys)
        mask = {"causal": "causal", "masked": "keys", "gqa": draw.pick("none", "causal")}.get(kind, "none")
        return {
            "batch": draw.extent(1, draw.larger(4)), "heads": heads, "groups": groups, "rows": rows, "keys": keys,
            "head": draw.pick(32, 40, 64, 64, 80, 96, 128), "mask": mask,
        }  # fmt: skip

    return drawn


def _anywhere(draw: Draw) -> tuple[int, ...]:
    """A shape of two to four axes of as many elements as fill the caches."""
    rank = draw.pick(2, 3, 4)
    most = draw.larger({2: 4096, 3: 256, 4: 64}[rank], 2)
    return tuple(draw.extent(2, most) for _ in range(rank))


def _reduce(draw: Draw) -> dict[str, Any]:
    shape = _anywhere(draw)
    axes = tuple(sorted(draw.rng.sample(range(len(shape)), draw.pick(*range(1, len(shape) + 1)))))
    kinds = ["sum", "mean", "max", "min", "l2"]
    if math.prod(shape[axis] for axis in axes) <= 512:
        kinds.append("prod")
    return {"kind": draw.pick(*kinds), "shape": shape, "axes": axes}


def _ordered(draw: Draw) -> dict[str, Any]:
    shape = tuple(min(extent, _MOST_DISTINCT) for extent in _rows(draw, 8, 8192))
    axis = len(shape) - 1 if draw.chance(0.75) else draw.pick(*range(len(shape)))
    return {"shape": shape, "axis": axis}


def _top_k(is_sort: bool) -> Callable[[Draw], dict[str, Any]]:
    def drawn(draw: Draw) -> dict[str, Any]:
        found = _ordered(draw)
        extent = found["shape"][found["axis"]]
        return {**found, "count": extent if is_sort else min(extent, draw.pick(1, 5, 10, 50, 100))}

    return drawn


FAMILIES = (
    Family("layer-norm", _normed, layer_norm),
    Family("rms-norm", _normed, rms_norm),
    Family("group-norm", _grouped, group_norm),
    Family("instance-norm", _instances, group_norm),
    Family("batch-norm", _batches, batch_norm),
    Family("softmax", _softmax(False), softmax, takes_epilogue=False),
    Family("log-softmax", _softmax(True), softmax, takes_epilogue=False),
    *(
        Family(f"attention-{kind}", _attention(kind), attention, takes_epilogue=False)
        for kind in ("plain", "causal", "masked", "gqa", "cross", "decode")
    ),
    Family("reduce", _reduce, reduce, takes_epilogue=False),
    Family("arg-max", _ordered, arg_max, takes_epilogue=False),
    Family("top-k", _top_k(False), top_k, takes_epilogue=False, dtypes=("float32", "float16")),
    Family("sort", _top_k(True), top_k, takes_epilogue=False, dtypes=("float32", "float16")),
    Family("cumsum", _ordered, cumsum, takes_epilogue=False, dtypes=("float32",)),
)

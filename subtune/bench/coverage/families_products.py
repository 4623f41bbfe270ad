"""Matrix products: with constant weights and without, batched, ragged, of few rows, as wide as a vocabulary."""

from __future__ import annotations

import math
from typing import Any

from subtune.bench.coverage.case import Sizes
from subtune.bench.coverage.dialect import Dialect, Value
from subtune.bench.coverage.family import Draw, Family


def linear(d: Dialect, s: Sizes) -> Value:
    """x[m, k] or x[batch, m, k] times a constant, with a bias."""
    m, n, k = s["m"], s["n"], s["k"]
    x = d.input((s["batch"], m, k) if s["batch"] else (m, k))
    is_transposed = s["layout"] == "nt"
    weight = d.weight((n, k) if is_transposed else (k, n), f"normal:{1 / math.sqrt(k)}")
    return d.linear(x, weight, d.weight((n,)) if s["bias"] else None, is_transposed)


def matmul(d: Dialect, s: Sizes) -> Value:
    """Neither operand is constant; `layout` nt takes the second as [n, k]."""
    lead = tuple(s["batch"])
    x = d.input((*lead, s["m"], s["k"]))
    if s["layout"] == "nn":
        return d.matmul(x, d.input((*lead, s["k"], s["n"])))
    y, axes = d.input((*lead, s["n"], s["k"])), len(lead)
    return d.matmul(x, d.transpose(y, (*range(axes), axes + 1, axes)))


def _linear(draw: Draw, m: int, n: int, k: int, batch: int = 0) -> dict[str, Any]:
    return {
        "batch": batch, "m": m, "n": n, "k": k, "layout": draw.pick("nt", "nt", "nn"), "bias": draw.chance(0.8),
    }  # fmt: skip


def _any(draw: Draw) -> dict[str, Any]:
    m, n, k = (draw.extent(16, draw.larger(2048)) for _ in range(3))
    return _linear(draw, m, n, k)


def _tokens(draw: Draw) -> dict[str, Any]:
    width, batch = draw.pick(192, 256, 384, 512, 768, 1024), draw.extent(1, draw.larger(8))
    wide = width * draw.pick(1, 3, 4)
    n, k = draw.pick((wide, width), (width, wide))
    return _linear(draw, draw.extent(7, 512), n, k, batch)


def _few_rows(draw: Draw) -> dict[str, Any]:
    return _linear(
        draw, draw.pick(1, 1, 2, 3, 5, 8, 16), draw.extent(128, draw.larger(4096)), draw.extent(128, draw.larger(4096))
    )


def _vocabulary(draw: Draw) -> dict[str, Any]:
    return _linear(
        draw, draw.pick(1, 1, 4, 17, 64), draw.extent(draw.larger(8000), draw.larger(40000)), draw.extent(64, 1024)
    )


def _ragged(draw: Draw) -> dict[str, Any]:
    m, n, k = (draw.extent(17, draw.larger(1500)) | 1 for _ in range(3))
    return _linear(draw, m, n, k)


def _tall(draw: Draw) -> dict[str, Any]:
    return _linear(draw, draw.extent(5000, draw.larger(100_000)), draw.extent(3, 96), draw.extent(3, 96))


def _matmul(draw: Draw) -> dict[str, Any]:
    m, n, k = (draw.extent(16, draw.larger(1500)) for _ in range(3))
    return {"batch": (), "m": m, "n": n, "k": k, "layout": draw.pick("nt", "nn")}


def _batched(draw: Draw) -> dict[str, Any]:
    lead = (draw.extent(1, 16), draw.pick(4, 8, 12, 16)) if draw.chance(0.5) else (draw.extent(2, 128),)
    m, n, k = (draw.extent(4, draw.larger(384, 2)) for _ in range(3))
    return {"batch": lead, "m": m, "n": n, "k": k, "layout": draw.pick("nt", "nn")}


FAMILIES = (
    Family("linear", _any, linear),
    Family("linear-tokens", _tokens, linear),
    Family("linear-few-rows", _few_rows, linear),
    Family("linear-vocabulary", _vocabulary, linear),
    Family("linear-ragged", _ragged, linear),
    Family("linear-tall", _tall, linear),
    Family("matmul", _matmul, matmul),
    Family("matmul-batched", _batched, matmul),
)

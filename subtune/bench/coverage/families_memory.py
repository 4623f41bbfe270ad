"""What moves data or goes element by element, and recurrent cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from subtune.bench.coverage.case import Sizes
from subtune.bench.coverage.dialect import BINARY, GATES, UNARY, Dialect, Value
from subtune.bench.coverage.family import Draw, Family

_SAFE = ("relu", "gelu", "gelu-tanh", "silu", "hardswish", "sigmoid", "tanh", "abs", "neg", "leaky-relu", "elu", "erf")
"""Elementwise operators that overflow in no type, in whatever order."""
_JOINING = tuple(name for name in BINARY if name != "div")


def activation(d: Dialect, s: Sizes) -> Value:
    return d.unary(s["kind"], d.input(s["shape"]))


def chain(d: Dialect, s: Sizes) -> Value:
    """Operators one after the other; a binary one takes the next input, whole or broadcast as `operands` says."""
    x = d.input(s["shape"])
    operands = iter(s["operands"])
    for name in s["ops"]:
        x = d.binary(name, x, d.input(_broadcast(s["shape"], next(operands)))) if name in BINARY else d.unary(name, x)
    return x


def where(d: Dialect, s: Sizes) -> Value:
    shape = s["shape"]
    condition = d.input(_broadcast(shape, s["condition"]), "bool", "bool")
    return d.where(condition, d.input(shape), d.input(shape))


def transpose(d: Dialect, s: Sizes) -> Value:
    return d.transpose(d.input(s["shape"]), s["perm"])


def concat(d: Dialect, s: Sizes) -> Value:
    shape, axis = s["shape"], s["axis"]
    return d.concat([d.input((*shape[:axis], extent, *shape[axis + 1 :])) for extent in s["extents"]], axis)


def cut(d: Dialect, s: Sizes) -> Value:
    return d.slice(d.input(s["shape"]), s["axis"], s["begin"], s["end"], s["step"])


def pad(d: Dialect, s: Sizes) -> Value:
    return d.pad(d.input(s["shape"]), s["before"], s["after"], s["mode"])


def resize(d: Dialect, s: Sizes) -> Value:
    return d.resize(d.input(s["shape"]), s["scale"], s["mode"])


def gather(d: Dialect, s: Sizes) -> Value:
    table = d.weight(s["shape"]) if s["constant"] else d.input(s["shape"])
    return d.gather(table, d.input((s["count"],), f"index:{s['shape'][s['axis']]}", "int64"), s["axis"])


def gather_elements(d: Dialect, s: Sizes) -> Value:
    shape, axis = s["shape"], s["axis"]
    wanted = (*shape[:axis], s["count"], *shape[axis + 1 :])
    return d.gather_elements(d.input(shape), d.input(wanted, f"index:{shape[axis]}", "int64"), axis)


def scatter_elements(d: Dialect, s: Sizes) -> Value:
    shape, axis = s["shape"], s["axis"]
    given = (*shape[:axis], s["count"], *shape[axis + 1 :])
    x, indices = d.input(shape), d.input(given, f"permuted:{shape[axis]}:{axis}", "int64")
    return d.scatter_elements(x, indices, d.input(given), axis)


def recurrent(d: Dialect, s: Sizes) -> Value:
    kind, hidden, features = s["kind"], s["hidden"], s["features"]
    x, state = d.input((s["tokens"], s["batch"], features)), (1, s["batch"], hidden)
    gates, spread = GATES[kind], f"normal:{1 / math.sqrt(hidden)}"
    shapes = ((1, len(gates) * hidden, features), (1, len(gates) * hidden, hidden), (1, 2 * len(gates) * hidden))
    w, r, b = (d.weight(shape, spread, gates) for shape in shapes)
    states: Sequence[Value] = [d.input(state) for _ in range(2 if kind == "LSTM" else 1)]
    return d.recurrent(kind, x, (w, r, b), states)


def _broadcast(shape: tuple[int, ...], how: str) -> tuple[int, ...]:
    """The shape of an operand: `whole`, `last` axis only, or the last axis as 1 (`rows`)."""
    return {"whole": shape, "last": shape[-1:], "rows": (*shape[:-1], 1)}[how]


def _shape(draw: Draw) -> tuple[int, ...]:
    rank = draw.pick(2, 3, 4)
    most = draw.larger({2: 4096, 3: 384, 4: 96}[rank], 2)
    return tuple(draw.extent(2, most) for _ in range(rank))


def _activation(draw: Draw) -> dict[str, Any]:
    return {"kind": draw.pick(*(name for name in UNARY if name != "exp")), "shape": _shape(draw)}


def _chain(draw: Draw) -> dict[str, Any]:
    ops = tuple(draw.pick(*_SAFE) if draw.chance(0.5) else draw.pick(*_JOINING) for _ in range(draw.extent(2, 6)))
    operands = tuple(draw.pick("whole", "last", "rows") for name in ops if name in BINARY)
    return {"shape": _shape(draw), "ops": ops, "operands": operands}


def _where(draw: Draw) -> dict[str, Any]:
    return {"shape": _shape(draw), "condition": draw.pick("whole", "last", "rows")}


def _transpose(draw: Draw) -> dict[str, Any]:
    shape = _shape(draw)
    perm = list(range(len(shape)))
    while perm == sorted(perm):
        draw.rng.shuffle(perm)
    return {"shape": shape, "perm": tuple(perm)}


def _inner(draw: Draw, shape: tuple[int, ...]) -> int:
    """An axis that is not the first: along the first one, PyTorch's result is a view."""
    return draw.pick(*range(1, len(shape)))


def _concat(draw: Draw) -> dict[str, Any]:
    shape = _shape(draw)
    axis = draw.pick(*range(len(shape)))
    extents = tuple(draw.extent(1, max(1, shape[axis])) for _ in range(draw.pick(2, 2, 3, 4)))
    return {"shape": shape, "axis": axis, "extents": extents}


def _slice(draw: Draw) -> dict[str, Any]:
    shape = tuple(max(4, extent) for extent in _shape(draw))
    axis = _inner(draw, shape)
    begin = draw.rng.randrange(shape[axis] // 2)
    end = shape[axis] - draw.rng.randrange(shape[axis] // 4) - 1
    return {"shape": shape, "axis": axis, "begin": begin, "end": end, "step": draw.pick(1, 1, 2, 3)}


def _planes(draw: Draw) -> tuple[int, ...]:
    lead = (draw.extent(1, draw.larger(8)), draw.extent(1, draw.larger(128, 2)))
    return (*lead, *(draw.extent(7, draw.larger(112, 2)) for _ in range(2)))


def _pad(draw: Draw) -> dict[str, Any]:
    before, after = ((0, 0, draw.rng.randrange(4), draw.rng.randrange(4)) for _ in range(2))
    return {"shape": _planes(draw), "before": before, "after": after, "mode": draw.pick("constant", "reflect", "edge")}


def _resize(draw: Draw) -> dict[str, Any]:
    return {"shape": _planes(draw), "scale": draw.pick(2, 2, 3, 4), "mode": draw.pick("nearest", "linear")}


def _gather(draw: Draw) -> dict[str, Any]:
    table = (draw.extent(100, draw.larger(30_000, 2)), draw.extent(16, 1024))
    axis = 0 if draw.chance(0.8) else 1
    return {"shape": table, "axis": axis, "count": draw.extent(16, draw.larger(2048)), "constant": draw.chance(0.6)}


def _elements(draw: Draw) -> dict[str, Any]:
    shape = _shape(draw)
    axis = draw.pick(*range(len(shape)))
    return {"shape": shape, "axis": axis, "count": draw.extent(1, shape[axis])}


def _recurrent(kind: str) -> Callable[[Draw], dict[str, Any]]:
    def drawn(draw: Draw) -> dict[str, Any]:
        return {
            "kind": kind, "tokens": draw.pick(1, 1, 4, 16, 32), "batch": draw.extent(1, draw.larger(32)),
            "features": draw.extent(16, 512), "hidden": draw.extent(16, draw.larger(512, 2)),
        }  # fmt: skip

    return drawn


FAMILIES = (
    Family("activation", _activation, activation, takes_epilogue=False),
    Family("chain", _chain, chain, takes_epilogue=False),
    Family("where", _where, where),
    Family("transpose", _transpose, transpose),
    Family("concat", _concat, concat),
    Family("slice", _slice, cut),
    Family("pad", _pad, pad),
    Family("resize", _resize, resize),
    Family("gather", _gather, gather, takes_epilogue=False),
    Family("gather-elements", _elements, gather_elements, takes_epilogue=False),
    Family("scatter-elements", _elements, scatter_elements, takes_epilogue=False),
    *(Family(kind.lower(), _recurrent(kind), recurrent, takes_epilogue=False) for kind in GATES),
)

"""LSTM, GRU and RNN, unrolled over time.

The input's product with the weights is one matrix product over all time steps; what remains in a step is the
hidden state's product and the gates. Where a device might have kernels for whole layers, the steps are a
function of their own, which says what it computes: `subtune.passes.recurrences` keeps it whole or inlines it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax

from subtune.frontends.onnx.ops import activation
from subtune.frontends.onnx.ops.linear import product
from subtune.frontends.onnx.ops.movement import slice_axis
from subtune.frontends.onnx.ops.node import Converter, Expr, Node, const, dtype, shape
from subtune.frontends.onnx.ops.recurrence import whole

_MAX_STEPS = 512
_ACTIVATIONS: dict[str, Callable[[Expr], Expr]] = {
    "sigmoid": relax.op.sigmoid,
    "tanh": relax.op.tanh,
    "relu": relax.op.nn.relu,
}
# Those that are operators of their own (Keras writes HardSigmoid), with the parameters that they take.
_OPERATORS = {
    name.lower(): (activation.CONVERTERS[name], parameters)
    for name, parameters in {
        "Elu": ("alpha",),
        "HardSigmoid": ("alpha", "beta"),
        "LeakyRelu": ("alpha",),
        "Softplus": (),
        "Softsign": (),
        "ThresholdedRelu": ("alpha",),
    }.items()
}


@dataclass(frozen=True, slots=True)
class _Direction:
    """One direction's weights, transposed for x @ w.

    Attributes:
        w, r: (input, gates*hidden) and (hidden, gates*hidden).
        wb, rb: the biases (gates*hidden,), None where there are none.
        peephole: (3*hidden,) of an LSTM, or None.
        activations: as many as the cell uses.
    """

    w: Expr
    r: Expr
    wb: Expr | None
    rb: Expr | None
    peephole: Expr | None
    activations: tuple[Callable[[Expr], Expr], ...]
    hidden: int


type_step = Callable[[Node, _Direction, Expr, tuple[Expr, ...]], tuple[Expr, ...]]


def _row(node: Node, x: Expr | None, direction: int) -> Expr | None:
    """x[direction] without the leading axis."""
    if x is None:
        return None
    return node.emit(relax.op.reshape(slice_axis(node, x, 0, direction, direction + 1), shape(x)[1:]))


def _part(node: Node, x: Expr, index: int, hidden: int) -> Expr:
    """The index-th gate's columns."""
    return slice_axis(node, x, len(shape(x)) - 1, index * hidden, (index + 1) * hidden)


def _direction(node: Node, index: int, gates: int, defaults: list[str]) -> _Direction:
    hidden = shape(node.need(2))[-1]
    functions = _activations(node, defaults)[index * len(defaults) : (index + 1) * len(defaults)]
    w = node.emit(relax.op.permute_dims(_row(node, node.need(1), index)))
    r = node.emit(relax.op.permute_dims(_row(node, node.need(2), index)))
    bias = _row(node, node.get(3), index)
    wb = None if bias is None else slice_axis(node, bias, 0, 0, gates * hidden)
    rb = None if bias is None else slice_axis(node, bias, 0, gates * hidden, 2 * gates * hidden)
    peephole = _row(node, node.get(7), index) if node.op == "LSTM" else None
    return _Direction(w, r, wb, rb, peephole, functions, hidden)


def _activations(node: Node, defaults: list[str]) -> tuple[Callable[[Expr], Expr], ...]:
    """The functions of all directions in their order; each takes its parameters from the lists as it comes."""
    directions = 2 if node.attr("direction", "forward") == "bidirectional" else 1
    names = [name.lower() for name in node.attr("activations") or defaults * directions]
    given = {"alpha": iter(node.attr("activation_alpha") or ()), "beta": iter(node.attr("activation_beta") or ())}
    if len(names) != directions * len(defaults) or not all(n in _ACTIVATIONS or n in _OPERATORS for n in names):
        node.refuse(f"has activations {names}")
    return tuple(_ACTIVATIONS.get(name) or _operator(node, name, given) for name in names)


def _operator(node: Node, name: str, given: Mapping[str, Iterator[float]]) -> Callable[[Expr], Expr]:
    converter, parameters = _OPERATORS[name]
    attrs = {key: value for key in parameters if (value := next(given[key], None)) is not None}

    def apply(x: Expr) -> Expr:
        return converter(replace(node, op=name, inputs=(node.bb.normalize(x),), attrs=attrs))

    return apply


def _plus(node: Node, x: Expr, bias: Expr | None) -> Expr:
    return x if bias is None else node.emit(relax.op.add(x, bias))


def _lstm(node: Node, d: _Direction, projected: Expr, state: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Gates in the order i, o, f, c; peepholes in the order i, o, f."""
    h, c = state
    f, g, act = d.activations
    total = _plus(node, node.emit(relax.op.add(projected, product(node, h, d.r))), d.rb)
    i, o, forget, cell = (_part(node, total, k, d.hidden) for k in range(4))

    def peep(gate: Expr, which: int, value: Expr) -> Expr:
        if d.peephole is None:
            return gate
        weight = _part(node, d.peephole, which, d.hidden)
        return node.emit(relax.op.add(gate, relax.op.multiply(weight, value)))

    i = node.emit(f(peep(i, 0, c)))
    forget = node.emit(f(peep(forget, 2, c)))
    kept, new = relax.op.multiply(forget, c), relax.op.multiply(i, g(cell))
    c = node.emit(relax.op.add(kept, new))
    h = node.emit(relax.op.multiply(f(peep(o, 1, c)), act(c)))
    return h, c


def _gru(node: Node, d: _Direction, projected: Expr, state: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Gates in the order z, r, h."""
    (h,) = state
    f, g = d.activations
    width = d.hidden
    xz, xr, xh = (_part(node, projected, k, width) for k in range(3))
    bz, br, bh = (None,) * 3 if d.rb is None else tuple(_part(node, d.rb, k, width) for k in range(3))
    rz, rr, rh = (_part(node, d.r, k, width) for k in range(3))
    z = node.emit(f(_plus(node, node.emit(relax.op.add(xz, product(node, h, rz))), bz)))
    r = node.emit(f(_plus(node, node.emit(relax.op.add(xr, product(node, h, rr))), br)))
    if node.attr("linear_before_reset", 0):
        inner = relax.op.multiply(r, _plus(node, product(node, h, rh), bh))
    else:
        inner = _plus(node, product(node, node.emit(relax.op.multiply(r, h)), rh), bh)
    new = node.emit(g(node.emit(relax.op.add(xh, inner))))
    one = const(1.0, dtype(h))
    mixed = relax.op.add(relax.op.multiply(relax.op.subtract(one, z), new), relax.op.multiply(z, h))
    return (node.emit(mixed),)


def _rnn(node: Node, d: _Direction, projected: Expr, state: tuple[Expr, ...]) -> tuple[Expr, ...]:
    (h,) = state
    total = _plus(node, node.emit(relax.op.add(projected, product(node, h, d.r))), d.rb)
    return (node.emit(d.activations[0](total)),)


def _recurrent(gates: int, defaults: list[str], step: type_step, states: int) -> Converter:
    def convert(node: Node) -> tuple[Expr, ...]:
        if node.attr("clip") is not None or node.attr("input_forget", 0):
            node.refuse("clips its gates or couples input and forget gate")
        batch_first = bool(node.attr("layout", 0))
        if batch_first:
            node = replace(node, inputs=tuple(_time_first(node, i, x) for i, x in enumerate(node.inputs)))
        steps, batch, width = shape(node.x)
        if not 0 < steps <= _MAX_STEPS:
            node.refuse(f"has {steps} time steps, of which at most {_MAX_STEPS} are unrolled")
        _check_shapes(node, gates, states, (batch, width))

        def unrolled(node: Node) -> tuple[Expr, ...]:
            return _unrolled(node, gates, defaults, step, states)

        y, *last = whole(node, defaults, unrolled) or unrolled(node)
        if batch_first:
            y = node.emit(relax.op.permute_dims(y, [2, 0, 1, 3]))
            last = [node.emit(relax.op.permute_dims(v, [1, 0, 2])) for v in last]
        return (y, *last)

    return convert


def _time_first(node: Node, index: int, value: Expr | None) -> Expr | None:
    """The input and the states with their batch as the second axis."""
    if value is None or index not in (0, 5, 6):
        return value
    return node.emit(relax.op.permute_dims(value, [1, 0, 2]))


def _unrolled(node: Node, gates: int, defaults: list[str], step: type_step, states: int) -> tuple[Expr, ...]:
    """Of inputs whose time comes first: all hidden states (steps, directions, batch, hidden), then the last states."""
    x = node.x
    steps, batch, width = shape(x)
    way = node.attr("direction", "forward")
    runs = [w == "reverse" for w in (("forward", "reverse") if way == "bidirectional" else (way,))]
    alive = _alive(node, steps, batch, dtype(x))
    outputs, finals = [], []
    for index, backwards in enumerate(runs):
        d = _direction(node, index, gates, defaults)
        flat = node.emit(relax.op.reshape(x, (steps * batch, width)))
        projected = _plus(node, product(node, flat, d.w), d.wb)
        state = tuple(_initial(node, 5 + k, index, batch, d.hidden) for k in range(states))
        hiddens: list[Any] = [None] * steps
        for t in reversed(range(steps)) if backwards else range(steps):
            rows = slice_axis(node, projected, 0, t * batch, (t + 1) * batch)
            new = step(node, d, rows, state)
            if alive is not None:
                on = slice_axis(node, alive, 0, t, t + 1)
                on = node.emit(relax.op.reshape(on, (batch, 1)))
                new = tuple(node.emit(relax.op.where(on, n, s)) for n, s in zip(new, state, strict=True))
                hiddens[t] = node.emit(relax.op.where(on, new[0], const(0.0, dtype(x))))
            else:
                hiddens[t] = new[0]
            state = new
        outputs.append(_stacked(node, hiddens, 0))
        finals.append(state)
    last = [_stacked(node, [state[k] for state in finals], 0) for k in range(states)]
    return (_stacked(node, outputs, 1), *last)


def _check_shapes(node: Node, gates: int, states: int, sizes: tuple[int, int]) -> None:
    """Raises Refused: a weight, a bias or an initial state of another shape than ONNX says."""
    batch, width = sizes
    hidden = shape(node.need(2))[-1]
    dirs = 2 if node.attr("direction", "forward") == "bidirectional" else 1
    state = (dirs, batch, hidden)
    wanted = {1: (dirs, gates * hidden, width), 2: (dirs, gates * hidden, hidden), 3: (dirs, 2 * gates * hidden)}
    wanted |= {4: (batch,), **{5 + k: state for k in range(states)}}
    wanted |= {7: (dirs, 3 * hidden)} if node.op == "LSTM" else {}
    for index, dims in wanted.items():
        value = node.get(index)
        if value is not None and shape(value) != dims:
            node.refuse(f"has input {index} of shape {list(shape(value))}, where {list(dims)} belongs")


def _alive(node: Node, steps: int, batch: int, _: str) -> Expr | None:
    """(steps, batch): whether a step lies within the batch entry's sequence; None if all do."""
    lengths = node.get(4)
    known = node.known(4)
    if lengths is None or (known is not None and (known == steps).all()):
        return None
    at = const(np.arange(steps)[:, None], "int32")
    row = node.emit(relax.op.reshape(node.cast(lengths, "int32"), (1, batch)))
    return node.emit(relax.op.less(at, row))


def _initial(node: Node, index: int, direction: int, batch: int, hidden: int) -> Expr:
    given = node.get(index)
    if given is None:
        return const(np.zeros((batch, hidden)), dtype(node.x))
    row = _row(node, given, direction)
    assert row is not None
    return row


def _stacked(node: Node, parts: list[Expr], axis: int) -> Expr:
    """Joins tensors along a new axis."""
    wide = [node.emit(relax.op.reshape(p, (*shape(p)[:axis], 1, *shape(p)[axis:]))) for p in parts]
    return wide[0] if len(wide) == 1 else node.emit(relax.op.concat(wide, axis=axis))


CONVERTERS: dict[str, Converter] = {
    "LSTM": _recurrent(4, ["sigmoid", "tanh", "tanh"], _lstm, 2),
    "GRU": _recurrent(3, ["sigmoid", "tanh"], _gru, 1),
    "RNN": _recurrent(1, ["tanh"], _rnn, 1),
}

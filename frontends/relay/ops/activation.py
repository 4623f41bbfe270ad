"""Activations, the softmax family, dropout and losses."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from subtune.frontends.onnx.ops.node import Expr, axis_in, const, dtype, is_float, rank, shape
from subtune.frontends.relay.ops.call import Call, Converter
from subtune.frontends.relay.ops.layout import along


def relu(call: Call) -> Expr:
    return call.onnx("Relu", call.x)


def leaky_relu(call: Call) -> Expr:
    return call.onnx("LeakyRelu", call.x, alpha=float(call.attr("alpha", 0.25)))


def prelu(call: Call) -> Expr:
    """A slope per channel, along `axis`."""
    x, slope = call.x, call.arg(1)
    axis = axis_in(call.attr("axis", 1), rank(x))
    if shape(slope) not in ((shape(x)[axis],), (1,)):
        call.refuse(f"has slopes of shape {list(shape(slope))} along axis {axis} of {list(shape(x))}")
    return call.onnx("PRelu", x, along(call, slope, axis, rank(x)))


def softmax(name: str) -> Converter:
    def convert(call: Call) -> Expr:
        if not is_float(call.x):
            call.refuse(f"has dtype {dtype(call.x)}, which is not supported")
        return call.onnx(name, call.x, axis=axis_in(call.attr("axis", -1), rank(call.x)))

    return convert


def dropout(call: Call) -> tuple[Expr, Expr]:
    """At inference the data itself, and a mask of ones that nobody reads."""
    x = call.x
    return x, call.emit(relax.op.full(shape(x), const(1, dtype(x)), dtype(x)))


def batch_flatten(call: Call) -> Expr:
    return call.emit(relax.op.reshape(call.x, (shape(call.x)[0], -1)))


def cross_entropy(logits: bool) -> Converter:
    """-sum(targets * log(predictions)) / batch; `logits`: the predictions are logarithms already."""

    def convert(call: Call) -> Expr:
        predicted, targets = call.arg(0), call.arg(1)
        logs = predicted if logits else relax.op.log(predicted)
        total = call.emit(relax.op.sum(relax.op.multiply(logs, targets)))
        return call.emit(relax.op.divide(total, const(-float(shape(predicted)[0]), dtype(predicted))))

    return convert


def nll_loss(call: Call) -> Expr:
    """-predictions[n, target] * weights[target], averaged by weight, summed, or neither."""
    predicted, targets, weights = (call.arg(i) for i in range(3))
    reduction, ignored = call.text("reduction", "mean"), int(call.attr("ignore_index", -100))

    def losses(p: Any, t: Any, w: Any) -> Any:
        def weight(*i: Any) -> Any:
            inside = tirx.all(t(*i) != ignored, t(*i) >= 0, t(*i) < w.shape[0])
            return tirx.if_then_else(inside, w(t(*i)), tirx.const(0, w.dtype))

        def one(n: Any, *at: Any) -> Any:
            index = tirx.max(tirx.min(t(n, *at), w.shape[0] - 1), 0)
            return -p(n, index, *at) * weight(n, *at)

        return [te.compute(t.shape, one, name="loss"), te.compute(t.shape, weight, name="weight")]

    both = call.te(losses, predicted, targets, weights)
    loss, weight = (call.emit(relax.TupleGetItem(both, i)) for i in range(2))
    if reduction == "none":
        return loss
    total = call.emit(relax.op.sum(loss))
    return total if reduction == "sum" else call.emit(relax.op.divide(total, relax.op.sum(weight)))


CONVERTERS: dict[str, Converter] = {
    "nn.relu": relu,
    "nn.leaky_relu": leaky_relu,
    "nn.prelu": prelu,
    "nn.softmax": softmax("Softmax"),
    "nn.fast_softmax": softmax("Softmax"),
    "nn.log_softmax": softmax("LogSoftmax"),
    "nn.dropout": dropout,
    "nn.batch_flatten": batch_flatten,
    "nn.nll_loss": nll_loss,
    "nn.cross_entropy": cross_entropy(logits=False),
    "nn.cross_entropy_with_logits": cross_entropy(logits=True),
}

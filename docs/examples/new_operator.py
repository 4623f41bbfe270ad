"""A new ONNX operator: `Snake(x) = x + sin(alpha x)^2 / alpha`, of the domain com.example."""

# --8<-- [start:converter]
from tvm import relax

from subtune.frontends.onnx.ops.node import Expr, Node, const, dtype, only_dtypes


def snake(node: Node) -> Expr:
    """x + sin(alpha x)^2 / alpha; refuses what would round otherwise than its definition."""
    x, alpha = node.x, node.attr("alpha", 1.0)
    only_dtypes(node, x, ("float32", "float64"))
    if alpha == 0:
        node.refuse("has alpha 0, where it is not defined")
    wave = node.emit(relax.op.sin(relax.op.multiply(x, const(alpha, dtype(x)))))
    return relax.op.add(x, relax.op.divide(relax.op.multiply(wave, wave), const(alpha, dtype(x))))


# --8<-- [end:converter]

# --8<-- [start:register]
from subtune.frontends.onnx.ops.converters import CONVERTERS

CONVERTERS["com.example", "Snake"] = snake
# --8<-- [end:register]

# --8<-- [start:use]
import numpy as np
import onnx.helper as h

import subtune
from subtune.core.errors import UnsupportedOpsError


def model(alpha: float):
    x, y = (h.make_tensor_value_info(name, 1, [4, 8]) for name in "xy")
    graph = h.make_graph([h.make_node("Snake", ["x"], ["y"], domain="com.example", alpha=alpha)], "snake", [x], [y])
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18), h.make_opsetid("com.example", 1)])


x = np.linspace(-2, 2, 32, dtype="float32").reshape(4, 8)
artifact = subtune.compile(model(alpha=0.5), tune=False)
np.testing.assert_allclose(artifact.run({"x": x})["y"], x + np.sin(0.5 * x) ** 2 / 0.5, rtol=1e-5)

try:
    subtune.compile(model(alpha=0.0), tune=False)
except UnsupportedOpsError as error:
    assert "has alpha 0" in str(error), error
else:
    raise AssertionError("alpha 0 was not refused")
# --8<-- [end:use]

"""What it takes to add an operator: one function, registered by its name. Nothing else knows the list of operators."""

from __future__ import annotations

import pytest
from tvm import relax

from subtune.core.errors import UnsupportedOpsError
from subtune.frontends import load
from subtune.frontends.onnx.ops.converters import CONVERTERS
from subtune.frontends.onnx.ops.movement import slice_axis
from subtune.frontends.onnx.ops.node import Expr, Node, shape
from tests.frontends.onnx.test_ops import check, floats, node_model


def det(node: Node) -> Expr:
    """The determinant of matrices of 2 x 2; larger ones are refused."""
    dims = shape(node.x)
    if dims[-2:] != (2, 2):
        node.refuse(f"takes the determinant of {dims[-2]} x {dims[-1]} elements")
    flat = node.emit(relax.op.reshape(node.x, (*dims[:-2], 4)))
    a, b, c, d = (slice_axis(node, flat, len(dims) - 2, i, i + 1) for i in range(4))
    result = node.emit(relax.op.subtract(relax.op.multiply(a, d), relax.op.multiply(b, c)))
    return relax.op.reshape(result, dims[:-2])


def test_an_operator_is_one_function_and_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    model, feeds = node_model("Det", [floats(3, 2, 2)], 22)
    with pytest.raises(UnsupportedOpsError, match="Det in 'y0'"):
        load(model)
    monkeypatch.setitem(CONVERTERS, ("", "Det"), det)
    assert load(model).outputs[0].shape == (3,)
    check(model, feeds)
    with pytest.raises(UnsupportedOpsError, match="Det node 'y0' takes the determinant of 3 x 3"):
        load(node_model("Det", [floats(3, 3)], 22)[0])

"""Which nodes are quantised, and what a name to exclude means."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from subtune.core.errors import ModelError
from subtune.quantization.choice import chosen, excluded, products
from subtune.quantization.simplify import name_nodes


def graph(body: str, **weights: tuple[int, ...]) -> onnx.GraphProto:
    """Nodes are named after their results."""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[1,8,4,4] x, float[4,4] m) => (float y) {{ {body} }}'
    )
    for name, shape in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    name_nodes(model.graph)
    return model.graph


CONV = {"w": (8, 8, 1, 1), "b": (8,)}


def test_a_residual_is_carried_to_the_next_product() -> None:
    net = graph(
        "a = Conv(x, w, b)\n r = Relu(a)\n c = Conv(r, w, b)\n s = Add(c, r)\n t = Relu(s)\n y = Conv(t, w, b)", **CONV
    )
    assert chosen(net) == ["a", "r", "c", "s", "t", "y"]
    assert products(net) == ["a", "c", "y"]


def test_what_no_product_reads_stays_in_float() -> None:
    net = graph("a = Conv(x, w, b)\n s = Add(a, x)\n e = Erf(s)\n y = Add(e, e)", **CONV)
    assert chosen(net) == ["a"]


def test_an_activation_follows_its_product_whoever_reads_it() -> None:
    net = graph("a = Conv(x, w, b)\n r = Relu(a)\n y = Exp(r)", **CONV)
    assert chosen(net) == ["a", "r"]


def test_a_constant_is_not_rounded_to_a_byte_for_an_addition() -> None:
    net = graph("s = Add(x, b)\n y = Conv(s, w)", w=(8, 8, 1, 1), b=(1,))
    assert chosen(net) == ["y"]


def test_products_of_what_varies_or_of_many_matrices_stay_in_float() -> None:
    net = graph("a = MatMul(m, m)\n b = MatMul(a, w)\n c = MatMul(b, v)\n y = Gemm(c, w, c)", w=(4, 4), v=(2, 4, 4))
    assert chosen(net) == ["b"]


def test_means_read_bytes_and_are_no_nodes_to_quantise() -> None:
    body = "a = Conv(x, w)\n s = Add(a, x)\n p = AveragePool <kernel_shape = [2, 2]> (s)\n y = Conv(p, w)"
    assert chosen(graph(body, w=(8, 8, 1, 1))) == ["a", "s", "y"]


@pytest.mark.parametrize(("mode", "is_carried"), [('"nearest"', True), ('"linear"', False)])
def test_pixels_between_pixels_are_no_bytes(mode: str, is_carried: bool) -> None:
    body = f"a = Conv(x, w)\n r = Resize <mode = {mode}> (a, , z)\n y = Conv(r, w)"
    assert ("r" in chosen(graph(body, w=(8, 8, 1, 1), z=(4,)))) == is_carried


def test_exclusion() -> None:
    net = graph("a = Conv(x, w)\n s = Add(a, x)\n y = Conv(s, w)", w=(8, 8, 1, 1))
    assert chosen(net, frozenset(["s"])) == ["a", "y"]
    assert chosen(net, frozenset(["y"])) == ["a"], "nobody reads the sum's bytes any more"


def test_names_to_exclude() -> None:
    given = graph("a = Conv(x, w)\n n = Identity(a)\n y = Erf(n)", w=(8, 8, 1, 1))
    given.node[0].name = "first"
    fused = graph("n = Conv(x, w)\n y = Erf(n)", w=(8, 8, 1, 1))
    fused.node[0].name = "first/MatMulAddFusion"
    for name in ("first", "a", "n", "first/MatMulAddFusion"):
        assert excluded([name], given, fused) == {"first/MatMulAddFusion"}, name
    with pytest.raises(ModelError, match=r"no node 'frist' to exclude \(did you mean first\?\)"):
        excluded(["frist"], given, fused)
    del fused.node[0]
    with pytest.raises(ModelError, match="'a' becomes a part of another"):
        excluded(["a"], given, fused)


def test_names_become_unique() -> None:
    net = graph("a = Conv(x, w)\n b = Conv(a, w)\n y = Conv(b, w)", w=(8, 8, 1, 1))
    for node, name in zip(net.node, ("same", "same", ""), strict=True):
        node.name = name
    name_nodes(net)
    assert [node.name for node in net.node] == ["same/a", "same/b", "y"]

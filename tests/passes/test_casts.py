"""Casts of halves beside views, and round the loops of an importer: they join the kernel on the other side."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from subtune.core.forms import Forms
from subtune.pipeline import prepare

HALF = "float16"


def model(body: str, out: str, shape: str = "[2, 3, 40]") -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["" : 18]> g ({HALF}{shape} x) => ({HALF}{out} y) {{ {body} }}'
    return onnx.parser.parse_model(text)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        pytest.param(
            model("y = MaxPool<kernel_shape=[3], strides=[2]>(x)", "[2, 3, 19]"),
            ["fused_astype_max_pool2d_astype"],
            id="views round a pool of rows",
        ),
        pytest.param(
            model("y = AveragePool<kernel_shape=[2, 2, 2]>(x)", "[2, 3, 7, 7, 7]", "[2, 3, 8, 8, 8]"),
            ["fused_astype_avg_pool3d_astype"],
            id="a mean in three dims",
        ),
        pytest.param(
            model("y = AveragePool<kernel_shape=[5, 5, 5]>(x)", "[2, 3, 4, 4, 4]", "[2, 3, 8, 8, 8]"),
            ["fused_astype_avg_pool2d", "fused_avg_pool2d_astype"],
            id="a mean in three dims whose windows overlap",
        ),
        pytest.param(
            model("s = Constant<value_floats=[1.0, 1.0, 4.0, 1.0]>() "
                  'z = Resize<mode="linear">(x, , s) y = Relu(z)', "[2, 3, 32, 8]", "[2, 3, 8, 8]"),
            ["fused_astype_resize_relu_astype"],
            id="a resize",
        ),
        pytest.param(
            model("s = Constant<value_floats=[1.0, 1.0, 4.0, 4.0]>() "
                  'z = Resize<mode="linear">(x, , s) y = Relu(z)', "[2, 3, 32, 32]", "[2, 3, 8, 8]"),
            ["fused_astype_resize", "fused_resize_relu_astype"],
            id="a resize of two axes, one after the other",
        ),
    ],
)  # fmt: skip
def test_one_kernel(given: onnx.ModelProto, names: list[str]) -> None:
    assert [subgraph.name for subgraph in prepare(given).subgraphs] == names


@pytest.mark.parametrize(
    ("body", "names"),
    [
        pytest.param("y = Gather(x, i)", ["tir_take"], id="as they are"),
        pytest.param("z = Gather(x, i) y = Relu(z)", ["fused_astype_take_relu_astype"], id="computed with"),
        pytest.param("z = Relu(x) y = Gather(z, i)", ["fused_astype_relu", "fused_take_astype"], id="of a result"),
    ],
)
def test_rows_of_a_table_of_halves_are_read_as_such(body: str, names: list[str]) -> None:
    """Also where nothing is multiplied in halves: a table is longer than what is read of it."""
    given = model(f"i = Constant<value_ints=[5, 0, 7]>() {body}", "[3, 16]", "[900, 16]")
    assert [subgraph.name for subgraph in prepare(given, forms=Forms(halves=frozenset())).subgraphs] == names


def test_a_product_read_by_loops_stays_apart() -> None:
    """What the loops may read any number of times is computed once, but for a cast."""
    given = model("z = Sigmoid(x) y = AveragePool<kernel_shape=[2, 2, 2]>(z)", "[2, 3, 7, 7, 7]", "[2, 3, 8, 8, 8]")
    assert len(prepare(given).subgraphs) == 2


def test_a_residual_is_cast_by_each_that_reads_it() -> None:
    """A norm and the sum after it: neither waits for a copy in float32."""
    given = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]> g ({HALF}[64, 96] x, {HALF}[96, 96] w, {HALF}[96] s)'
        f" => ({HALF}[64, 96] y)"
        " { a = MatMul(x, w) r = Add(a, x) n = LayerNormalization<axis=1>(r, s) b = MatMul(n, w) y = Add(b, r) }"
    )
    for name, shape in (("w", (96, 96)), ("s", (96,))):
        given.graph.initializer.append(onnx.numpy_helper.from_array(np.full(shape, 0.5, HALF), name))
    del given.graph.input[1:]
    names = [subgraph.name for subgraph in prepare(given).subgraphs]
    assert len(names) == 3, names
    assert not any(name.startswith("tir_astype") for name in names)

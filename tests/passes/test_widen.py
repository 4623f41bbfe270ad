"""Files in a half precision take the road of the float32 model: the same groups, products of the file's half."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from subtune.core.forms import Forms
from subtune.core.numerics import Numerics
from subtune.frontends import load
from subtune.passes.outline import outline
from subtune.passes.partition import partition
from subtune.pipeline import Prepared, normalize, prepare
from tests.plain_tvm import compiled

_TYPES = {"float16": TensorProto.FLOAT16, "float32": TensorProto.FLOAT}
Node = tuple[str, list[str], list[str], dict[str, Any]]


def model(nodes: list[Node], shape: tuple[int, ...], weights: dict[str, Any], dtype: str) -> onnx.ModelProto:
    """`x` -> `y`, both of `dtype`; weights are of `dtype` unless they are arrays with a type of their own."""
    made = [helper.make_node(kind, inputs, outputs, **attrs) for kind, inputs, outputs, attrs in nodes]
    arrays = {n: w if isinstance(w, np.ndarray) else np.array(w, dtype) for n, w in weights.items()}
    graph = helper.make_graph(
        made, "g",
        [helper.make_tensor_value_info("x", _TYPES[dtype], shape)],
        [helper.make_tensor_value_info("y", _TYPES[dtype], None)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def dense(activation: list[Node], dtype: str, **numbers: float) -> onnx.ModelProto:
    """activation(x @ w + b), from `h` to `y`."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((16, 24)).astype(dtype), "b": rng.standard_normal(24).astype(dtype), **numbers}
    nodes: list[Node] = [("MatMul", ["x", "w"], ["xw"], {}), ("Add", ["xw", "b"], ["h"], {}), *activation]
    return model(nodes, (8, 16), weights, dtype)


GELU_ERF: list[Node] = [
    ("Div", ["h", "root"], ["d"], {}), ("Erf", ["d"], ["e"], {}), ("Add", ["e", "one"], ["e1"], {}),
    ("Mul", ["h", "e1"], ["he"], {}), ("Mul", ["he", "half"], ["y"], {}),
]  # fmt: skip
GELU_TANH: list[Node] = [
    ("Pow", ["h", "three"], ["h3"], {}), ("Mul", ["h3", "c"], ["ch3"], {}), ("Add", ["h", "ch3"], ["sum"], {}),
    ("Mul", ["sum", "root"], ["s"], {}), ("Tanh", ["s"], ["t"], {}), ("Add", ["t", "one"], ["t1"], {}),
    ("Mul", ["h", "half"], ["hh"], {}), ("Mul", ["hh", "t1"], ["y"], {}),
]  # fmt: skip
CASES: dict[str, Callable[[str], onnx.ModelProto]] = {
    "gelu by erf": lambda dtype: dense(GELU_ERF, dtype, root=2**0.5, one=1.0, half=0.5),
    "gelu by tanh": lambda dtype: dense(
        GELU_TANH, dtype, three=3.0, c=0.044715, root=(2 / np.pi) ** 0.5, one=1.0, half=0.5
    ),
    "silu": lambda dtype: dense([("Sigmoid", ["h"], ["s"], {}), ("Mul", ["h", "s"], ["y"], {})], dtype),
    "softmax": lambda dtype: dense([("Softmax", ["h"], ["y"], {})], dtype),
}


def names(prepared: Prepared) -> list[str]:
    return [subgraph.name for subgraph in prepared.subgraphs]


@pytest.mark.parametrize("case", CASES)
def test_a_half_file_has_the_groups_of_the_float32_file_in_that_precision(case: str) -> None:
    half = prepare(CASES[case]("float16"))
    same = prepare(CASES[case]("float32"), numerics=Numerics(precision="fp16"))
    assert half.graph.products() == {"float16": 1}
    assert [name.replace("astype_", "").replace("_astype", "") for name in names(half)] == [
        name.replace("astype_", "").replace("_astype", "") for name in names(same)
    ]
    assert all(len([a for a in s.workload.args if a.is_output]) == 1 for s in half.subgraphs)


def run(proto: onnx.ModelProto, x: np.ndarray, **given: Any) -> np.ndarray:
    mod = normalize(load(proto).mod, **given)
    vm = relax.VirtualMachine(compiled(outline(mod, partition(mod))), tvm.cpu())
    out = vm["main"](tvm.runtime.tensor(x))
    return (out if hasattr(out, "numpy") else out[0]).numpy()


def test_no_result_is_less_exact_than_the_file() -> None:
    proto = CASES["gelu by erf"]("float16")
    x = np.random.default_rng(1).standard_normal((8, 16)).astype("float16")
    w, b = (numpy_helper.to_array(i).astype("float64") for i in proto.graph.initializer[:2])
    h = x.astype("float64") @ w + b
    from math import erf

    want = 0.5 * h * (1 + np.vectorize(erf)(h / 2**0.5))
    for halves in ({"float16"}, set()):  # products of halves, and of float32
        got = run(proto, x, forms=Forms(halves=frozenset(halves)))
        assert got.dtype == np.float16
        np.testing.assert_allclose(got.astype("float64"), want, rtol=2e-3, atol=2e-3)


def test_what_a_file_computes_in_float32_keeps_its_range() -> None:
    """1e3 ** 2 is more than float16 holds: the square and its root stay in float32."""
    nodes: list[Node] = [
        ("Cast", ["x"], ["wide"], {"to": TensorProto.FLOAT}), ("Mul", ["wide", "wide"], ["square"], {}),
        ("Transpose", ["square"], ["turned"], {"perm": [1, 0]}), ("Sqrt", ["turned"], ["root"], {}),
        ("Cast", ["root"], ["y"], {"to": TensorProto.FLOAT16}),
    ]  # fmt: skip
    x = np.linspace(1000, 1200, 12).reshape(3, 4).astype("float16")
    got = run(model(nodes, (3, 4), {}, "float16"), x)
    np.testing.assert_allclose(got, x.T, rtol=1e-3)


def test_pools_of_halves_are_imported() -> None:
    nodes: list[Node] = [("MaxPool", ["x"], ["y"], {"kernel_shape": [3], "strides": [2]})]
    x = np.random.default_rng(0).standard_normal((2, 3, 11)).astype("float16")
    got = run(model(nodes, (2, 3, 11), {}, "float16"), x)
    want = np.stack([x[:, :, i : i + 3].max(-1) for i in range(0, 9, 2)], -1)
    np.testing.assert_array_equal(got, want)


def test_a_loop_of_the_importer_does_not_switch_precision_off() -> None:
    """Trilu of what is computed is a loop of the importer's; the product before it is still one of halves."""
    nodes: list[Node] = [("MatMul", ["x", "w"], ["h"], {}), ("Trilu", ["h"], ["y"], {"upper": 0})]
    weights = {"w": np.ones((8, 8), "float32")}
    prepared = prepare(model(nodes, (8, 8), weights, "float32"), numerics=Numerics(precision="fp16"))
    assert prepared.graph.products() == {"float16": 1}


def test_a_triangle_of_a_constant_is_folded() -> None:
    nodes: list[Node] = [("Trilu", ["ones"], ["mask"], {"upper": 0}), ("Mul", ["x", "mask"], ["y"], {})]
    weights = {"ones": np.ones((8, 8), "float32")}
    prepared = prepare(model(nodes, (8, 8), weights, "float32"))
    assert len(prepared.subgraphs) == 1
    x = np.random.default_rng(0).standard_normal((8, 8)).astype("float32")
    np.testing.assert_array_equal(run(model(nodes, (8, 8), weights, "float32"), x), np.tril(x))


def test_operators_that_the_importer_makes_wide_are_one_group() -> None:
    nodes: list[Node] = [("LayerNormalization", ["x", "w", "b"], ["n"], {}), ("HardSigmoid", ["n"], ["y"], {})]
    (subgraph,) = prepare(model(nodes, (4, 32), {"w": [1.0] * 32, "b": [0.0] * 32}, "float16")).subgraphs
    assert {"nn.layer_norm", "multiply"} <= set(subgraph.ops)


@pytest.mark.parametrize("kind", ["GatherElements", "ScatterElements"])
def test_what_only_copies_halves_is_surrounded_by_no_casts(kind: str) -> None:
    inputs = ["x", "at", "new"][: 2 if kind == "GatherElements" else 3]
    index = np.array([[0, 1], [3, 2]])
    proto = model([(kind, inputs, ["y"], {"axis": 0})], (4, 2), {"at": index, "new": [[1.0] * 2] * 2}, "float16")
    assert "astype" not in str(prepare(proto).mod["main"])
    x = np.arange(8, dtype="float16").reshape(4, 2)
    expected = np.take_along_axis(x, index, 0)
    if kind == "ScatterElements":
        np.put_along_axis(expected := x.copy(), index, np.float16(1), 0)
    np.testing.assert_array_equal(run(proto, x), expected)

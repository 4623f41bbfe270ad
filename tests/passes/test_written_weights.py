"""Weights that a file makes floats of by arithmetic on bytes, as torchao's are exported, are packed as any others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import subtune
from subtune.frontends.onnx.reference import onnxruntime_reference
from subtune.pipeline import prepare
from tests.packed_weights import PACKS

F = np.float32
K, N, SIZE = 128, 64, 32
"""More elements than the importer computes as it computes shapes."""
Build = Callable[["Graph"], str]


class Graph:
    """Nodes in the order of their calls, on an input `x` [rows, K]."""

    def __init__(self, dtype: Any = F, rows: int = 3) -> None:
        self._rows = rows
        self.rng = np.random.default_rng(0)
        self.dtype = np.dtype(dtype)
        self._nodes: list[Any] = []
        self._weights: list[Any] = []

    def constant(self, value: Any) -> str:
        self._weights.append(numpy_helper.from_array(np.asarray(value), f"c{len(self._weights)}"))
        return str(self._weights[-1].name)

    def op(self, kind: str, *inputs: str, **attrs: Any) -> str:
        self._nodes.append(helper.make_node(kind, list(inputs), [f"v{len(self._nodes)}"], **attrs))
        return str(self._nodes[-1].output[0])

    def widened(self, bits: np.ndarray, dims: tuple[int, ...] = ()) -> str:
        """Integers as floats; `dims`: a node gives them another shape first."""
        name = self.constant(bits)
        name = self.op("Reshape", name, self.constant(np.array(dims))) if dims else name
        return self.op("Cast", name, to=helper.np_dtype_to_tensor_dtype(self.dtype))

    def bits(self, *dims: int, low: int = -128, high: int = 128, of: str = "int8") -> np.ndarray:
        return self.rng.integers(low, high, dims).astype(of)

    def scales(self, *dims: int) -> str:
        return self.constant((0.01 + 0.01 * self.rng.random(dims)).astype(self.dtype))

    def model(self, *results: str) -> onnx.ModelProto:
        kind = helper.np_dtype_to_tensor_dtype(self.dtype)
        graph = helper.make_graph(
            self._nodes, "g", [helper.make_tensor_value_info("x", kind, (self._rows, K))],
            [helper.make_tensor_value_info(result, kind, None) for result in results], self._weights,
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def scaled_result(g: Graph) -> str:
    """torchao, int8: the product is scaled, not the weights."""
    return g.op("Mul", g.op("MatMul", "x", g.widened(g.bits(K, N))), g.scales(N))


def columns(g: Graph) -> str:
    return g.op("MatMul", "x", g.op("Mul", g.scales(N), g.widened(g.bits(K, N))))


def rows(g: Graph) -> str:
    """Of `Linear`, whose weights are turned."""
    weight = g.op("Mul", g.widened(g.bits(N, K)), g.scales(N, 1))
    return g.op("MatMul", "x", g.op("Transpose", weight, perm=[1, 0]))


def blocks(g: Graph, zero: bool = True, of: str = "int8") -> str:
    """torchao, groups of a row: integers, scales and zero points get a third dimension."""
    low, high, of_block = (0, 16, (N, K // SIZE)) if of == "uint8" else (-8, 8, (N, K // SIZE))
    wide = g.widened(g.bits(N, K, low=low, high=high, of=of), (N, K // SIZE, SIZE))
    if zero:
        points = g.bits(*of_block, low=low, high=high, of=of)
        wide = g.op("Sub", wide, g.widened(points, (*of_block, 1)))
    scale = g.op("Reshape", g.scales(*of_block), g.constant(np.array((*of_block, 1))))
    weight = g.op("Reshape", g.op("Mul", wide, scale), g.constant(np.array([N, K])))
    return g.op("MatMul", "x", g.op("Transpose", weight, perm=[1, 0]))


def a_zero_point(g: Graph) -> str:
    """One for all, as a float."""
    wide = g.op("Sub", g.widened(g.bits(K, N, low=0, high=256, of="uint8")), g.constant(g.dtype.type(131)))
    return g.op("MatMul", "x", g.op("Mul", wide, g.scales(N)))


WRITTEN: dict[str, tuple[Build, Any]] = {
    "scaled result": (scaled_result, F),
    "columns": (columns, F),
    "rows": (rows, F),
    "blocks": (blocks, F),
    "blocks of uint8": (lambda g: blocks(g, of="uint8"), F),
    "blocks without zero points": (lambda g: blocks(g, zero=False), F),
    "a zero point": (a_zero_point, F),
    "columns in halves": (columns, np.float16),
    "blocks in halves": (blocks, np.float16),
}


def kernels(model: onnx.ModelProto) -> list[str]:
    return [subgraph.name for subgraph in prepare(model, forms=PACKS).subgraphs]


@pytest.mark.parametrize("name", WRITTEN)
def test_weights_stay_bytes(name: str) -> None:
    build, dtype = WRITTEN[name]
    g = Graph(dtype)
    assert any("weights" in kernel for kernel in kernels(g.model(build(g))))


@pytest.mark.parametrize("name", ["scaled result", "rows", "blocks", "blocks of uint8", "a zero point"])
def test_results_are_those_of_onnx_runtime(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    build, dtype = WRITTEN[name]
    g = Graph(dtype)
    model = g.model(build(g))
    x = np.random.default_rng(1).standard_normal((3, K)).astype(dtype)
    (want,) = onnxruntime_reference(model)({"x": x}).values()
    (got,) = subtune.compile(model, output=tmp_path / "a", tune=False, verify=False).run({"x": x}).values()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def read_twice(g: Graph) -> str:
    weight = g.op("Mul", g.widened(g.bits(K, K)), g.scales(K))
    return g.op("Add", g.op("MatMul", "x", weight), g.op("ReduceSum", weight, keepdims=0))


def a_zero_between_bytes(g: Graph) -> str:
    wide = g.op("Sub", g.widened(g.bits(K, N)), g.constant(g.dtype.type(0.5)))
    return g.op("MatMul", "x", g.op("Mul", wide, g.scales(N)))


def scales_of_both(g: Graph) -> str:
    wide = g.op("Mul", g.widened(g.bits(K, N)), g.scales(K, 1))
    return g.op("MatMul", "x", g.op("Mul", wide, g.scales(N)))


def of_all_elements(g: Graph) -> str:
    return g.op("MatMul", "x", g.op("Mul", g.widened(g.bits(K, N)), g.scales(K, N)))


@pytest.mark.parametrize("build", [read_twice, a_zero_between_bytes, scales_of_both, of_all_elements])
def test_others_become_floats(build: Build) -> None:
    g = Graph()
    assert not any("weights" in kernel for kernel in kernels(g.model(build(g))))


def test_many_rows_multiply_floats() -> None:
    """Where no kernel packs weights, nothing is left to be dequantised when the model runs."""
    g = Graph(rows=64)
    assert kernels(g.model(blocks(g))) == ["tir_matmul"]

"""Kernels that compute whole tiles of rows do not read behind a caller's array, however it is viewed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tvm import relax, topi
from tvm.relax import op

import subtune
from subtune.driver import compile_model
from subtune.dynamic.inputs import that_read_inputs
from subtune.measure import LocalMeasurer
from subtune.measure.guarded import _fenced

MOST = 12
RANDOM = np.random.default_rng(0)
W = RANDOM.standard_normal((256, 128)).astype(np.float32) / 16
B = RANDOM.standard_normal(128).astype(np.float32)


def layer(before: str) -> onnx.ModelProto:
    """`x @ w + b + y` of a symbolic number of rows; with a dim of 1 `before` it, a kernel of views of both inputs."""
    text = """<ir_version: 8, opset_import: ["" : 18]>
        layer (float[ROWS, 256] x, float[ROWS, 128] y) => (float[ROWS, 128] z) {
            product = MatMul(x, w)
            sum = Add(product, b)
            z = Add(sum, y)
        }"""
    model = onnx.parser.parse_model(text.replace("ROWS", f"{before}rows"))
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in (("w", W), ("b", B)))
    return model


def at_the_end(shape: tuple[int, ...]) -> np.ndarray:
    """Random numbers right before memory that nobody may touch."""
    array: np.ndarray = RANDOM.standard_normal(shape).astype(np.float32)
    fenced = _fenced(array.nbytes).view(np.float32).reshape(shape)
    fenced[...] = array
    return fenced


@pytest.mark.parametrize("before", ["", "1, "], ids=["matrix", "view"])
def test_nothing_is_read_behind_an_input(before: str, tmp_path: Path, workers: LocalMeasurer) -> None:
    path, dims = tmp_path / "m.subtune", (1,) * bool(before)
    options = {"tune": False, "threads": 1, "database": tmp_path / "t.db", "measurer": workers}
    report = compile_model(layer(before), path, dynamic={"rows": range(1, MOST + 1)}, **options)
    kernels = " ".join(kernel for row in report.dynamic for kernel in row.kernels)
    assert re.search(r"mr=([2-9]|\d\d)", kernels), "the kernel computes whole tiles"
    artifact = subtune.load(path)
    for rows in range(1, MOST + 1):
        x, y = (at_the_end((*dims, rows, columns)) for columns in (256, 128))
        (got,) = artifact.run({"x": x, "y": y}).values()
        np.testing.assert_allclose(got, x @ W + B + y, rtol=1e-4, atol=1e-4)


def test_views_of_inputs_are_inputs():
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 8, 4), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            rows = bb.emit(op.reshape(x, (8, 4)))
            first = bb.emit_te(topi.exp, bb.emit(op.reshape(rows, (4, 8))))
            second = bb.emit_output(bb.emit_te(topi.tanh, bb.emit(op.reshape(first, (8, 4)))))
        bb.emit_func_output(second)
    assert that_read_inputs(bb.get()) == {"exp"}

"""Pixels of all images as rows: the same numbers and one extent; what does not go through pixels one by one stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from onnx import numpy_helper

import subtune
from subtune.core.workload import Workload
from subtune.driver import compile_model
from subtune.dynamic.merged_rows import with_merged_rows
from subtune.models.builder import Builder
from tests.backends.workloads import conv, dense, max_pool


def computed(workload: Workload, arrays: list[np.ndarray]) -> np.ndarray:
    """By its unscheduled loops, of `arrays` in whatever shapes have as many elements."""
    given = [array.reshape(arg.shape) for array, arg in zip(arrays, workload.args, strict=False)]
    output = tvm.runtime.empty(workload.args[-1].shape, "float32")
    tvm.compile(tvm.IRModule({"main": workload.func}), target="llvm")["main"](
        *(tvm.runtime.tensor(array) for array in given), output
    )
    return output.numpy()


@pytest.mark.parametrize("batch", [1, 3])
def test_a_pointwise_convolution_is_a_product_of_its_pixels(batch: int) -> None:
    images = conv(7, 8, 12, 1, batch=batch)
    rows = with_merged_rows(images)
    of_images = [arg.shape for arg in images.args]
    assert of_images.count((batch, 7, 7, 12)) == 2
    assert [arg.shape for arg in rows.args] == [
        (49 * batch, shape[3]) if shape[:3] == (batch, 7, 7) else shape for shape in of_images
    ]
    assert [arg.is_constant for arg in rows.args] == [arg.is_constant for arg in images.args]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(arg.shape).astype("float32") for arg in images.args[:-1]]
    got, wanted = (computed(one, arrays) for one in (rows, images))
    np.testing.assert_array_equal(got.reshape(wanted.shape), wanted)


@pytest.mark.parametrize(
    "workload",
    [
        conv(7, 8, 12, 3),
        conv(7, 8, 12, 1, stride=2),
        conv(7, 8, 12, 1, groups=2),
        conv(1, 8, 12, 1, batch=3),
        dense(7, 8, 12),
        max_pool(8, 4),
    ],
    ids=["3 x 3", "every second pixel", "groups", "one pixel", "one axis already", "no product"],
)
def test_what_stays_as_it_is(workload: Workload) -> None:
    assert with_merged_rows(workload) is workload


def test_one_artifact_for_any_batch(tmp_path: Path) -> None:
    b = Builder("layer", opset=17, dtype="float32")
    x = b.op("Relu", b.input("x", ("batch", 24, 5, 7)))  # what the layer reads is in its own order
    b.output(b.op("Relu", b.conv("layer", x, 24, 40, 1)), ("batch", 40, 5, 7))
    model, path = b.finish(), tmp_path / "layer.subtune"
    report = compile_model(model, path, dynamic={"batch": "1..5"}, threads=2, topk=1, verify=False)
    assert "35*batch" in str(report)
    weights, *bias = sorted(map(numpy_helper.to_array, model.graph.initializer), key=lambda one: -one.ndim)
    artifact, rng = subtune.load(path), np.random.default_rng(0)
    for batch in range(1, 6):
        given = rng.standard_normal((batch, 24, 5, 7)).astype("float32")
        product = np.einsum("bihw,oi->bohw", np.maximum(given, 0), weights[:, :, 0, 0])
        wanted = product + sum(one[:, None, None] for one in bias)
        (got,) = artifact.run({"x": given}).values()
        np.testing.assert_allclose(got, np.maximum(wanted, 0), rtol=1e-4, atol=1e-4)

"""Pools against ONNX Runtime: windows that exceed the image, ceil mode, pads, strides and dilations."""

from __future__ import annotations

import random
from typing import Any

import pytest
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

from subtune.frontends import load
from subtune.integrations.onnx_backend import SubtuneBackend
from tests.frontends.onnx.test_ops import check, floats, node_model

WHOLE = {"kernel_shape": [1280, 1280], "strides": [1280, 1280], "ceil_mode": 1}


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("AveragePool", {"count_include_pad": 1}),  # as transformers' EfficientNet pools
        ("AveragePool", {"count_include_pad": 0}),
        ("MaxPool", {}),
        ("LpPool", {}),
        ("AveragePool", {"count_include_pad": 1, "pads": [1, 2, 3, 4]}),
        ("AveragePool", {"count_include_pad": 1, "dilations": [3, 5], "strides": [4, 4], "kernel_shape": [3, 2]}),
    ],
)
def test_a_window_larger_than_the_image(op: str, attrs: dict[str, Any]) -> None:
    check(*node_model(op, [floats(1, 3, 7, 7)], 22, **{**WHOLE, **attrs}))


def test_what_onnx_infers_agrees() -> None:
    model, _ = node_model("AveragePool", [floats(1, 3, 7, 7)], 22, count_include_pad=1, **WHOLE)
    assert load(model).outputs[0].shape == (1, 3, 1, 1)


def test_the_index_of_the_maximum_of_such_a_window() -> None:
    check(*node_model("MaxPool", [floats(1, 3, 7, 7)], 22, 2, **WHOLE))


def test_no_window_at_all_is_refused() -> None:
    model, _ = node_model("MaxPool", [floats(1, 1, 4)], 22, kernel_shape=[9], strides=[2], ceil_mode=1)
    with pytest.raises(BackendIsNotSupposedToImplementIt, match="a window of 9 over an extent of 4"):
        SubtuneBackend.prepare(model)


@pytest.mark.parametrize("seed", range(24))
def test_any_geometry(seed: int) -> None:
    rng = random.Random(seed)
    op = ("AveragePool", "AveragePool", "MaxPool", "LpPool")[seed % 4]
    kernel, strides, pads, dims = [], [], [], []
    for _ in range(1 + seed % 3):
        k, s, extent = rng.choice((1, 2, 3, 4, 9)), rng.choice((1, 2, 3, 5)), rng.randint(2, 8)
        before, after = rng.randint(0, min(2, k - 1)), rng.randint(0, min(2, k - 1))
        if extent + before + after - k <= -s:  # no window at all
            k = extent
        elif extent + before + after < k:
            s = k
        kernel.append(k)
        strides.append(s)
        dims.append(extent)
        pads.append((before, after))
    attrs: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "ceil_mode": 1}
    attrs["pads"] = [begin for begin, _ in pads] + [end for _, end in pads]
    if op == "AveragePool":
        attrs["count_include_pad"] = seed // 4 % 2
    check(*node_model(op, [floats(1, 2, *dims)], 22, **attrs))


@pytest.mark.parametrize("kernel", [(3, 3, 3), (1, 3, 2), (4, 1, 1), (1, 1, 1), (2, 1, 3)])
@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("MaxPool", {}),
        ("MaxPool", {"dilations": [1, 2, 1]}),
        ("AveragePool", {"count_include_pad": 0}),
        ("AveragePool", {"count_include_pad": 1, "ceil_mode": 1}),
        ("AveragePool", {"count_include_pad": 0, "dilations": [2, 1, 2]}),
    ],
)
@pytest.mark.grid
def test_volumes_are_pooled_by_axes(op: str, attrs: dict[str, Any], kernel: tuple[int, int, int]) -> None:
    pads = [min(1, k - 1) for k in kernel]
    check(*node_model(op, [floats(2, 3, 9, 7, 11)], 22, kernel_shape=kernel, pads=pads * 2, strides=[2, 1, 2], **attrs))

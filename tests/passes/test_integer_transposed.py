"""Quantised transposed convolutions are convolutions of integers; ONNX Runtime has floats there, rounded alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import subtune
from subtune.frontends import load
from subtune.frontends.onnx.reference import onnxruntime_reference
from subtune.passes.exprs import op_name
from subtune.passes.in_floats import in_floats
from subtune.passes.integer_products import integer_products
from tests.qdq_graph import QdqGraph, feeds_of

STRIDES = {"strides": [2, 2]}
WIDE = {"pads": [1, 1, 1, 1], "output_padding": [1, 1], **STRIDES}


def model(
    kernel: int = 2,
    axis: int | None = 1,
    group: int = 1,
    dtype: str = "uint8",
    weight_zero: int = 0,
    shape: tuple[int, ...] = (2, 8, 5, 6),
    **attrs: Any,
) -> onnx.ModelProto:
    g = QdqGraph(shape, dtype=dtype, zero=0 if dtype == "int8" else 121)
    spatial = [kernel] * (len(shape) - 2)
    dims = (8, 6 // group, *spatial)
    if weight_zero:
        bits = g.rng.integers(100, 160, dims).astype("uint8")
        w = g.floats(g.constant(bits), 0.01, weight_zero, "uint8")
    else:
        w, _ = g.weight(dims, axis)
    bias = g.constant(g.rng.standard_normal(6).astype("float32"))
    y = g.op("ConvTranspose", g.operand(), w, bias, group=group, **attrs)
    return g.model(g.quantised(g.op("Relu", y), 0.07, 3 if dtype == "uint8" else -110))


MODELS = {
    "stride is the kernel": model(**STRIDES),
    "one scale": model(axis=None, **STRIDES),
    "pixels of their own": model(kernel=3, **WIDE),
    "cropped": model(kernel=4, pads=[1] * 4, **STRIDES),
    "groups": model(kernel=4, group=2, pads=[1] * 4, **STRIDES),
    "signed": model(kernel=3, dtype="int8", **WIDE),
    "stride 1": model(kernel=3, pads=[1] * 4),
    "weights with a zero point": model(weight_zero=128, **STRIDES),
    "one dimension": model(shape=(2, 8, 9), strides=[2]),
}


def products(of: onnx.ModelProto) -> set[str]:
    """The types of the results of convolutions, ordinary and transposed."""
    mod = integer_products(load(of).mod)
    values = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    return {str(value.ty.dtype) for value in values if op_name(value).startswith("relax.nn.conv")}


@pytest.mark.parametrize("name", MODELS)
def test_products_are_of_integers(name: str) -> None:
    assert products(MODELS[name]) == {"int32"}


@pytest.mark.parametrize("name", ["stride is the kernel", "pixels of their own", "groups", "weights with a zero point"])
def test_integers_are_those_of_onnx_runtime(name: str, tmp_path: Path) -> None:
    """Sums of floats may fall on the other side of a half: a step, and rarely."""
    pytest.importorskip("onnxruntime")
    feeds = feeds_of(MODELS[name])
    (want,) = onnxruntime_reference(MODELS[name])(feeds).values()
    (got,) = subtune.compile(MODELS[name], output=tmp_path / "a", tune=False, verify=False).run(feeds).values()
    assert np.ptp(want.astype(int)) > 40
    apart = np.abs(got.astype(int) - want.astype(int))
    assert apart.max() <= 1
    assert apart.mean() < 0.01


FLOATS = {
    "its weights are no bytes with a scale for all or for each output channel": model(axis=0, **STRIDES),
    "its geometry is that of no ordinary convolution": model(output_padding=[1, 1], **STRIDES),
}


@pytest.mark.parametrize("reason", FLOATS)
def test_others_stay_floats_and_say_why(reason: str) -> None:
    assert products(FLOATS[reason]) == {"float32"}
    found = in_floats(integer_products(load(FLOATS[reason]).mod))
    assert [one.reason for one in found if "transpose" in one.op] == [reason]

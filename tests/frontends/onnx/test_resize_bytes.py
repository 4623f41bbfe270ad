"""Bilinear interpolation of bytes, as QOperator models have it: ONNX Runtime's to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from subtune.core.errors import ModelError
from subtune.frontends.onnx.ops import import_onnx
from tests.frontends.onnx.one_node import RNG, F, model_of, ours


def image(of: str, *dims: int) -> np.ndarray:
    """Random bytes; one plane is of one value, sums of which must not fall below it."""
    limits = np.iinfo(of)
    x = RNG.integers(limits.min, limits.max + 1, dims).astype(of)
    x[0, 1] = 77
    return x


@pytest.mark.parametrize("transform", ["half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("scales", [(3.0, 1.5), (0.5, 0.6)])
@pytest.mark.parametrize(("of", "channels"), [("uint8", 3), ("int8", 11)])
def test_to_the_bit(transform: str, scales: tuple[float, float], of: str, channels: int) -> None:
    """Also where weights are no multiples of a power of two; few channels, and as many as make vectors."""
    x = image(of, 2, channels, 10, 20)
    attrs = {"mode": "linear", "coordinate_transformation_mode": transform}
    model, feeds = model_of("Resize", [x, None, F([1, 1, *scales])], domain="", **attrs)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, feeds)
    assert wanted.dtype == x.dtype
    np.testing.assert_array_equal(ours(model, feeds), wanted)


@pytest.mark.parametrize(
    ("attrs", "scales", "text"),
    [
        ({"mode": "cubic"}, (1, 1, 2, 2), "interpolates uint8"),
        ({"mode": "linear", "antialias": 1}, (1, 1, 0.5, 0.5), "interpolates uint8"),
        ({"mode": "linear"}, (1, 2, 2, 1), "along axis 1, and only images in planes"),
    ],
)
def test_others_are_refused(attrs: dict[str, Any], scales: tuple[float, ...], text: str) -> None:
    model, _ = model_of("Resize", [image("uint8", 1, 4, 6, 6), None, F(scales)], domain="", node=attrs)
    with pytest.raises(ModelError, match=text):
        import_onnx(model)

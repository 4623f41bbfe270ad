"""Multi-layer perceptron on (128, 224, 224, 3) images: Flatten, then Gemm and Relu three deep, opset 14.

The benchmark "MLP, (128, 224, 224, 3)" of the published FastDlight results gives only the input's shape. It
is taken to be: flatten to 150528 features, dense 128, ReLU, dense 64, ReLU, dense 10, at batch 128.
"""

from __future__ import annotations

import onnx

from subtune.models.builder import HE_GAIN, Builder


def build(
    batch: int = 128, dtype: str = "float32", image: int = 224, hidden: int = 128, classes: int = 10
) -> onnx.ModelProto:
    """Input `input` (batch, image, image, 3), output `output` (batch, classes).

    The inner layers are `hidden` and `hidden // 2` wide.
    """
    g = Builder("mlp", opset=14, dtype=dtype)
    features, narrow = image * image * 3, max(1, hidden // 2)
    x = g.op("Flatten", g.input("input", (batch, image, image, 3)), axis=1)
    x = g.op("Relu", g.gemm("fc1", x, features, hidden, gain=HE_GAIN))
    x = g.op("Relu", g.gemm("fc2", x, hidden, narrow, gain=HE_GAIN))
    g.gemm("fc3", x, narrow, classes, out="output")
    g.output("output", (batch, classes))
    return g.finish()

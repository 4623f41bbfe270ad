"""VGG-16 as torch.onnx wrote it: plain convolutions, Flatten, three Gemm, Dropout nodes kept, opset 12.

Structure of torchvision's vgg16; the classifier takes whatever extent the five poolings leave (7 at 224).
"""

from __future__ import annotations

import numpy as np
import onnx

from subtune.core.errors import ModelError
from subtune.models.builder import HE_GAIN, Builder, scaled

_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def build(
    batch: int = 1, dtype: str = "float32", image: int = 224, width: float = 1.0, classes: int = 1000
) -> onnx.ModelProto:
    """Input `input` (batch, 3, image, image), output `output` (batch, classes); `width` scales channels.

    Raises:
        ModelError: image is under 32, which leaves nothing after five poolings.
    """
    if image < 32:
        raise ModelError(f"zoo model vgg16: image={image} is too small for five poolings; use 32 or more")
    g = Builder("vgg16", opset=12, dtype=dtype)
    channels, index = 3, 0
    x = g.input("input", (batch, 3, image, image))
    for stage in _STAGES:
        for base in stage:
            cout = scaled(base, width)
            x = g.op("Relu", g.conv(f"features.{index}", x, channels, cout, 3))
            channels, index = cout, index + 2
        x = g.op("MaxPool", x, ceil_mode=0, kernel_shape=(2, 2), pads=(0, 0, 0, 0), strides=(2, 2))
        index += 1
    x = g.op("Flatten", x, axis=1)
    hidden, flat = scaled(4096, width), channels * (image // 32) ** 2
    x = _dropout(g, g.op("Relu", g.gemm("classifier.0", x, flat, hidden, gain=HE_GAIN)))
    x = _dropout(g, g.op("Relu", g.gemm("classifier.3", x, hidden, hidden, gain=HE_GAIN)))
    g.gemm("classifier.6", x, hidden, classes, out="output")
    g.output("output", (batch, classes))
    return g.finish()


def _dropout(g: Builder, x: str) -> str:
    """Dropout with ratio and training mode (false) as inputs, as opset 12 has it."""
    return g.op("Dropout", x, g.constant(0.5, "float32"), g.constant(np.array(False), "bool"))

"""SqueezeNet 1.1 as torch.onnx wrote it: fire modules, pooling that rounds up, Dropout, opset 10.

Structure of torchvision's squeezenet1_1: Concat in every fire module, and no Gemm.
"""

from __future__ import annotations

import onnx

from subtune.core.errors import ModelError
from subtune.models.builder import Builder, scaled

# squeeze and expand (each of two) channels of the fire modules; a pooling comes before each group
_FIRES = (((16, 64), (16, 64)), ((32, 128), (32, 128)), ((48, 192), (48, 192), (64, 256), (64, 256)))


def build(
    batch: int = 1, dtype: str = "float32", image: int = 224, width: float = 1.0, classes: int = 1000
) -> onnx.ModelProto:
    """Input `input` (batch, 3, image, image), output `output` (batch, classes); `width` scales channels.

    Raises:
        ModelError: image is under 25, which leaves less than a window to the last pooling.
    """
    if image < 25:
        raise ModelError(f"zoo model squeezenet: image={image} is too small for three poolings; use 25 or more")
    g = Builder("squeezenet", opset=10, dtype=dtype)
    channels = scaled(64, width)
    x = g.input("input", (batch, 3, image, image))
    x = g.op("Relu", g.conv("features.0", x, 3, channels, 3, stride=2, pads=(0, 0, 0, 0)))
    index = 2
    for group in _FIRES:
        x = g.op("MaxPool", x, ceil_mode=1, kernel_shape=(3, 3), pads=(0, 0, 0, 0), strides=(2, 2))
        for squeeze, expand in group:
            index += 1
            middle, half = scaled(squeeze, width), scaled(expand, width)
            x = _fire(g, f"features.{index}", x, channels, middle, half)
            channels = 2 * half
        index += 1
    x = g.op("Dropout", x, ratio=0.5)
    x = g.op("Relu", g.conv("classifier.1", x, channels, classes, 1))
    x = g.op("GlobalAveragePool", x)
    g.op("Flatten", x, axis=1, out="output")
    g.output("output", (batch, classes))
    return g.finish()


def _fire(g: Builder, name: str, x: str, cin: int, middle: int, half: int) -> str:
    x = g.op("Relu", g.conv(f"{name}.squeeze", x, cin, middle, 1))
    one = g.op("Relu", g.conv(f"{name}.expand1x1", x, middle, half, 1))
    three = g.op("Relu", g.conv(f"{name}.expand3x3", x, middle, half, 3))
    return g.op("Concat", one, three, axis=1)

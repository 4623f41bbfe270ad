"""EfficientNet-Lite0 as tf2onnx writes it: NHWC input, 'SAME' padding, Clip, MatMul, Softmax, opset 13.

'SAME' of TensorFlow pads more at the end where the stride is 2. It is written as `auto_pad` in dense
convolutions and as explicit asymmetric pads in depthwise ones: both are found in the wild.
"""

from __future__ import annotations

import math

import numpy as np
import onnx

from subtune.models.builder import Builder, scaled

# expansion, kernel, output channels, repeats, stride of the first repeat (as EfficientNet-B0)
_STAGES = (
    (1, 3, 16, 1, 1),
    (6, 3, 24, 2, 2),
    (6, 5, 40, 2, 2),
    (6, 3, 80, 3, 2),
    (6, 5, 112, 3, 1),
    (6, 5, 192, 4, 2),
    (6, 3, 320, 1, 1),
)
# As in mobilenet_v2: std 2.5 before the clip, so that the upper bound 6 is met; std 1 between the blocks.
_EXPAND_GAIN = 2.5
_PROJECT_GAIN = 0.6
_RESIDUAL_GAIN = 0.25


def build(
    batch: int = 1, dtype: str = "float32", image: int = 224, width: float = 1.0, classes: int = 1000
) -> onnx.ModelProto:
    """Input `images` (batch, image, image, 3), output `Softmax` (batch, classes); `width` scales channels."""
    g = Builder("efficientnet_lite0", opset=13, dtype=dtype)
    bounds = g.weight("relu6_min", np.array(0.0)), g.weight("relu6_max", np.array(6.0))
    channels, extent = scaled(32, width), (image + 1) // 2
    x = g.op("Transpose", g.input("images", (batch, image, image, 3)), perm=(0, 3, 1, 2))
    x = g.conv("stem/conv2d", x, 3, channels, 3, stride=2, pads="SAME_UPPER", gain=_EXPAND_GAIN)
    x = g.op("Clip", x, *bounds)
    index = 0
    for expansion, kernel, base, repeats, first_stride in _STAGES:
        for repeat in range(repeats):
            stride, cout = first_stride if repeat == 0 else 1, scaled(base, width)
            name, middle = f"blocks_{index}", channels * expansion
            y = x
            if expansion != 1:
                y = g.conv(f"{name}/conv2d", y, channels, middle, 1, pads="SAME_UPPER", gain=_EXPAND_GAIN)
                y = g.op("Clip", y, *bounds)
            pads = _same_pads(extent, kernel, stride)
            y = g.conv(f"{name}/depthwise", y, middle, middle, kernel, stride=stride, pads=pads, groups=middle)
            y = g.op("Clip", y, *bounds)
            is_residual = stride == 1 and channels == cout
            gain = _RESIDUAL_GAIN if is_residual else _PROJECT_GAIN
            y = g.conv(f"{name}/conv2d_1", y, middle, cout, 1, pads="SAME_UPPER", gain=gain)
            x = g.op("Add", y, x) if is_residual else y
            channels, extent, index = cout, -(-extent // stride), index + 1
    head = scaled(1280, width)
    x = g.op("Clip", g.conv("head/conv2d", x, channels, head, 1, pads="SAME_UPPER", gain=_EXPAND_GAIN), *bounds)
    x = g.op("GlobalAveragePool", x)
    x = g.op("Squeeze", x, g.weight("squeeze_axes", np.array([2, 3], np.int64)))
    x = g.linear("head/dense", x, head, classes)
    g.op("Softmax", x, axis=1, out="Softmax")
    g.output("Softmax", (batch, classes))
    return g.finish()


def _same_pads(extent: int, kernel: int, stride: int) -> tuple[int, int, int, int]:
    """Pads (top, left, bottom, right) that give ceil(extent / stride) pixels, the odd one at the end."""
    total = max(0, (math.ceil(extent / stride) - 1) * stride + kernel - extent)
    before, after = total // 2, total - total // 2
    return before, before, after, after

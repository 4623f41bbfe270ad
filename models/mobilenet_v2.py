"""MobileNetV2 as torch.onnx wrote it: Clip with its bounds as inputs, depthwise convolutions, opset 11.

Structure of torchvision's mobilenet_v2 in eval mode, BatchNormalization folded. `x.view(x.size(0), -1)`
before the classifier shows up as the chain Shape, Gather, Unsqueeze, Concat, Reshape.
"""

from __future__ import annotations

import onnx

from subtune.models.builder import Builder, scaled

# expansion, output channels, repeats, stride of the first repeat (table 2 of the paper)
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
# From a bottleneck of std 1 to one of std 2.5 before the clip, so that the upper bound 6 is really met.
_EXPAND_GAIN = 2.5
# From there back to std 1, or to less where a residual is added (second moment after the clip: about 2.8).
_PROJECT_GAIN = 0.6
_RESIDUAL_GAIN = 0.25


def build(
    batch: int = 1, dtype: str = "float32", image: int = 224, width: float = 1.0, classes: int = 1000
) -> onnx.ModelProto:
    """Input `input` (batch, 3, image, image), output `output` (batch, classes); `width` scales channels."""
    g = Builder("mobilenet_v2", opset=11, dtype=dtype)
    channels = scaled(32, width)
    x = g.input("input", (batch, 3, image, image))
    x = _relu6(g, g.conv("features.0.0", x, 3, channels, 3, stride=2, gain=_EXPAND_GAIN))
    index = 1
    for expansion, base, repeats, first_stride in _STAGES:
        for repeat in range(repeats):
            stride, cout = first_stride if repeat == 0 else 1, scaled(base, width)
            x = _inverted_residual(g, f"features.{index}", x, channels, cout, expansion, stride)
            channels = cout
            index += 1
    head = scaled(1280, width)
    x = _relu6(g, g.conv(f"features.{index}.0", x, channels, head, 1, gain=_EXPAND_GAIN))
    x = g.op("GlobalAveragePool", x)
    x = g.op("Reshape", x, _flat_shape(g, x))
    g.gemm("classifier.1", x, head, classes, out="output")
    g.output("output", (batch, classes))
    return g.finish()


def _inverted_residual(g: Builder, name: str, x: str, cin: int, cout: int, expansion: int, stride: int) -> str:
    is_residual = stride == 1 and cin == cout
    middle = cin * expansion
    y = x
    if expansion != 1:
        y = _relu6(g, g.conv(f"{name}.conv.0.0", y, cin, middle, 1, gain=_EXPAND_GAIN))
    y = _relu6(g, g.conv(f"{name}.conv.1.0", y, middle, middle, 3, stride=stride, groups=middle))
    y = g.conv(f"{name}.conv.2", y, middle, cout, 1, gain=_RESIDUAL_GAIN if is_residual else _PROJECT_GAIN)
    return g.op("Add", x, y) if is_residual else y


def _relu6(g: Builder, x: str) -> str:
    return g.op("Clip", x, g.constant(0.0), g.constant(6.0))


def _flat_shape(g: Builder, x: str) -> str:
    """The value (size of axis 0, -1), as torch.onnx traced `x.view(x.size(0), -1)`."""
    rows = g.op("Gather", g.op("Shape", x), g.constant(0, "int64"), axis=0)
    rows = g.op("Unsqueeze", rows, axes=(0,))
    rest = g.op("Unsqueeze", g.constant(-1, "int64"), axes=(0,))
    return g.op("Concat", rows, rest, axis=0)

"""ResNet-18 as torch.onnx writes it: BatchNormalization folded, residual Add, opset 18.

Structure of torchvision's resnet18 in eval mode.
"""

from __future__ import annotations

import onnx

from subtune.models.builder import CENTRED_GAIN, Builder, scaled

# The second convolution of a block adds a sixth of the shortcut's power: activations stay O(1) over eight
# blocks.
_BRANCH_GAIN = 0.4 * CENTRED_GAIN


def build(
    batch: int = 1, dtype: str = "float32", image: int = 224, width: float = 1.0, classes: int = 1000
) -> onnx.ModelProto:
    """Input `input` (batch, 3, image, image), output `output` (batch, classes); `width` scales channels."""
    g = Builder("resnet18", opset=18, dtype=dtype)
    channels = scaled(64, width)
    x = g.input("input", (batch, 3, image, image))
    x = g.op("Relu", g.conv("conv1", x, 3, channels, 7, stride=2))
    x = g.op("MaxPool", x, ceil_mode=0, dilations=(1, 1), kernel_shape=(3, 3), pads=(1, 1, 1, 1), strides=(2, 2))
    for stage in range(4):
        cout = scaled(64 * 2**stage, width)
        for block in range(2):
            stride = 2 if stage > 0 and block == 0 else 1
            x = _basic_block(g, f"layer{stage + 1}.{block}", x, channels, cout, stride)
            channels = cout
    x = g.op("GlobalAveragePool", x)
    x = g.op("Flatten", x, axis=1)
    g.gemm("fc", x, channels, classes, out="output")
    g.output("output", (batch, classes))
    return g.finish()


def _basic_block(g: Builder, name: str, x: str, cin: int, cout: int, stride: int) -> str:
    y = g.op("Relu", g.conv(f"{name}.conv1", x, cin, cout, 3, stride=stride))
    y = g.conv(f"{name}.conv2", y, cout, cout, 3, gain=_BRANCH_GAIN)
    if stride != 1 or cin != cout:
        x = g.conv(f"{name}.downsample.0", x, cin, cout, 1, stride=stride, gain=1.0)
    return g.op("Relu", g.op("Add", y, x))

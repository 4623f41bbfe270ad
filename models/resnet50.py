"""ResNet-50 as Caffe2 and MXNet wrote it: BatchNormalization nodes, Sum as residual, Reshape, opset 8.

The first version of the network, whose stride lies in the first 1x1 convolution. Initialisers are listed
among the inputs and nodes have no names, as in files of that age.
"""

from __future__ import annotations

import numpy as np
import onnx

from subtune.models.builder import Builder, scaled

_BLOCKS = (3, 4, 6, 3)
# Scale of a block's last normalisation: adds a tenth of the shortcut's power, so that 16 blocks stay O(1).
_BRANCH_SCALE = 0.35


def build(
    batch: int = 1, dtype: str = "float32", image: int = 224, width: float = 1.0, classes: int = 1000
) -> onnx.ModelProto:
    """Input `data` (batch, 3, image, image), output `output` (batch, classes); `width` scales channels."""
    g = Builder("resnet50", opset=8, dtype=dtype, name_nodes=False)
    channels = scaled(64, width)
    x = g.input("data", (batch, 3, image, image))
    x = g.op("Relu", _conv_bn(g, "conv0", x, 3, channels, 7, stride=2, scale=1.4))
    x = g.op("MaxPool", x, kernel_shape=(3, 3), pads=(1, 1, 1, 1), strides=(2, 2))
    extent = _halved(_halved(image))
    for stage, blocks in enumerate(_BLOCKS):
        middle = scaled(64 * 2**stage, width)
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            x = _bottleneck(g, f"stage{stage + 1}_unit{block + 1}", x, channels, middle, stride)
            channels = 4 * middle
        extent = _halved(extent) if stage > 0 else extent
    x = g.op("AveragePool", x, kernel_shape=(extent, extent), strides=(1, 1))
    x = g.op("Reshape", x, g.weight("flatten_shape", np.array([0, -1], np.int64)))
    g.gemm("fc", x, channels, classes, out="output")
    g.output("output", (batch, classes))
    return g.finish()


def _bottleneck(g: Builder, name: str, x: str, cin: int, middle: int, stride: int) -> str:
    cout = 4 * middle
    y = g.op("Relu", _conv_bn(g, f"{name}_conv1", x, cin, middle, 1, stride=stride))
    y = g.op("Relu", _conv_bn(g, f"{name}_conv2", y, middle, middle, 3))
    y = _conv_bn(g, f"{name}_conv3", y, middle, cout, 1, scale=_BRANCH_SCALE)
    if stride != 1 or cin != cout:
        x = _conv_bn(g, f"{name}_sc", x, cin, cout, 1, stride=stride)
    return g.op("Relu", g.op("Sum", y, x))


def _conv_bn(
    g: Builder, name: str, x: str, cin: int, cout: int, kernel: int, stride: int = 1, scale: float = 1.0
) -> str:
    """Convolution without bias, then BatchNormalization with statistics near those of its input."""
    y = g.conv(name, x, cin, cout, kernel, stride=stride, bias=False)
    gamma, beta = g.norm_parameters(f"{name}_bn", cout, scale)
    mean = g.normal(f"{name}_bn.mean", (cout,), 0.1)
    variance = g.uniform(f"{name}_bn.var", (cout,), 0.7, 1.5)
    return g.op("BatchNormalization", y, gamma, beta, mean, variance, epsilon=1e-5, momentum=0.9)


def _halved(extent: int) -> int:
    """Extent after stride 2 with "half" padding: rounded up."""
    return (extent + 1) // 2

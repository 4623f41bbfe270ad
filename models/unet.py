"""Small U-Net: InstanceNormalization, LeakyRelu, ConvTranspose or Resize, Concat skips, Sigmoid, opset 16."""

from __future__ import annotations

import math

import numpy as np
import onnx

from subtune.core.errors import ModelError
from subtune.models.builder import Builder

UPSAMPLES = ("transpose", "resize")


def build(
    batch: int = 1,
    dtype: str = "float32",
    image: int = 256,
    base: int = 32,
    levels: int = 3,
    classes: int = 2,
    upsample: str = "transpose",
) -> onnx.ModelProto:
    """Input `image` (batch, 3, image, image), output `mask` (batch, classes, image, image), between 0 and 1.

    Args:
        base: channels of the outermost level; each of the `levels` inner ones doubles them.
        upsample: "transpose" (ConvTranspose 2x2) or "resize" (bilinear Resize, then a 1x1 convolution).

    Raises:
        ModelError: image is no multiple of 2 to the power of levels, or upsample is unknown.
    """
    if image % 2**levels:
        raise ModelError(f"zoo model unet: image={image} must be a multiple of {2**levels} with levels={levels}")
    if upsample not in UPSAMPLES:
        raise ModelError(f"zoo model unet: upsample={upsample!r} is unknown; use {' or '.join(UPSAMPLES)}")
    g = Builder("unet", opset=16, dtype=dtype)
    x = g.input("image", (batch, 3, image, image))
    skips = []
    channels = 3
    for level in range(levels):
        x = _double_conv(g, f"encoder.{level}", x, channels, base * 2**level)
        channels = base * 2**level
        skips.append(x)
        x = g.op("MaxPool", x, kernel_shape=(2, 2), strides=(2, 2))
    x = _double_conv(g, "bottleneck", x, channels, base * 2**levels)
    for level in reversed(range(levels)):
        channels = base * 2**level
        up = _upsample(g, f"up.{level}", x, 2 * channels, channels, upsample)
        x = g.op("Concat", skips[level], up, axis=1)
        x = _double_conv(g, f"decoder.{level}", x, 2 * channels, channels)
    g.op("Sigmoid", g.conv("head", x, base, classes, 1), out="mask")
    g.output("mask", (batch, classes, image, image))
    return g.finish()


def _double_conv(g: Builder, name: str, x: str, cin: int, cout: int) -> str:
    for index, channels in enumerate((cin, cout)):
        x = g.conv(f"{name}.conv{index}", x, channels, cout, 3, bias=False)
        scale, bias = g.norm_parameters(f"{name}.norm{index}", cout)
        x = g.op("InstanceNormalization", x, scale, bias, epsilon=1e-5)
        x = g.op("LeakyRelu", x, alpha=0.01)
    return x


def _upsample(g: Builder, name: str, x: str, cin: int, cout: int, upsample: str) -> str:
    """Twice the extent, from `cin` to `cout` channels."""
    if upsample == "resize":
        scales = g.constant(np.array((1, 1, 2, 2)), "float32")
        mode = {"mode": "linear", "coordinate_transformation_mode": "half_pixel", "nearest_mode": "floor"}
        return g.conv(name, g.op("Resize", x, "", scales, **mode), cin, cout, 1)
    # with stride = kernel every output pixel sees one input pixel: the fan in is cin
    weight = g.normal(f"{name}.weight", (cin, cout, 2, 2), math.sqrt(2.0 / cin))
    bias = g.normal(f"{name}.bias", (cout,), 0.1)
    return g.op("ConvTranspose", x, weight, bias, kernel_shape=(2, 2), pads=(0, 0, 0, 0), strides=(2, 2))

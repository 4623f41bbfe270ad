"""ConvNeXt-T as new torch.onnx writes it: depthwise 7x7, LayerNormalization between Transposes, Gelu, opset 20.

Structure of torchvision's convnext_tiny in eval mode: the channels lie last within a block, but for its convolution.
"""

from __future__ import annotations

import math

import onnx

from subtune.core.errors import ModelError
from subtune.models.builder import Builder, scaled

_STAGES = ((96, 3), (192, 3), (384, 9), (768, 3))
# Mean of a block's layer scale: adds a tenth of the shortcut's power, so that 18 blocks stay O(1).
_LAYER_SCALE = 0.35


def build(
    batch: int = 1, dtype: str = "float32", image: int = 224, width: float = 1.0, classes: int = 1000
) -> onnx.ModelProto:
    """Input `x` (batch, 3, image, image), output `logits` (batch, classes); `width` scales channels.

    Raises:
        ModelError: image is under 32, which leaves nothing after the last stage's convolution.
    """
    if image < 32:
        raise ModelError(f"zoo model convnext_tiny: image={image} is too small for four stages; use 32 or more")
    g = Builder("convnext_tiny", opset=20, dtype=dtype)
    channels = scaled(_STAGES[0][0], width)
    x = _patches(g, "features.0.0", g.input("x", (batch, 3, image, image)), 3, channels, 4)
    x = _norm_of_images(g, "features.0.1", x, channels)
    for stage, (base, blocks) in enumerate(_STAGES):
        if stage:
            x = _norm_of_images(g, f"features.{2 * stage}.0", x, channels)
            x = _patches(g, f"features.{2 * stage}.1", x, channels, scaled(base, width), 2)
            channels = scaled(base, width)
        for block in range(blocks):
            x = _block(g, f"features.{2 * stage + 1}.{block}", x, channels)
    x = _norm_of_images(g, "classifier.0", g.op("GlobalAveragePool", x), channels)
    g.gemm("classifier.2", g.op("Flatten", x, axis=1), channels, classes, out="logits")
    g.output("logits", (batch, classes))
    return g.finish()


def _patches(g: Builder, name: str, x: str, cin: int, cout: int, patch: int) -> str:
    """A convolution whose stride is its kernel."""
    return g.conv(name, x, cin, cout, patch, stride=patch, pads=(0, 0, 0, 0), gain=1.0)


def _block(g: Builder, name: str, x: str, channels: int) -> str:
    y = g.conv(f"{name}.block.0", x, channels, channels, 7, groups=channels, gain=1.0)
    y = g.layer_norm(f"{name}.block.2", g.op("Transpose", y, perm=(0, 2, 3, 1)), channels, epsilon=1e-6)
    y = g.op("Gelu", g.linear(f"{name}.block.3", y, channels, 4 * channels, gain=math.sqrt(2.0)), approximate="none")
    y = g.op("Transpose", g.linear(f"{name}.block.5", y, 4 * channels, channels), perm=(0, 3, 1, 2))
    scale = g.normal(f"{name}.layer_scale", (channels, 1, 1), 0.1 * _LAYER_SCALE, mean=_LAYER_SCALE)
    return g.op("Add", g.op("Mul", scale, y), x)


def _norm_of_images(g: Builder, name: str, x: str, channels: int) -> str:
    """LayerNorm2d: over the channels of each pixel."""
    y = g.layer_norm(name, g.op("Transpose", x, perm=(0, 2, 3, 1)), channels, epsilon=1e-6)
    return g.op("Transpose", y, perm=(0, 3, 1, 2))

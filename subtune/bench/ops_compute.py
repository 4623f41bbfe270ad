"""The GEMMs and convolutions of `--suite cpu-ops`: those of real networks, and odd ones that nobody tunes for."""

from __future__ import annotations

from typing import Any

from subtune.bench.op_case import OpCase
from subtune.models.builder import Builder


def dense(m: int, n: int, k: int) -> OpCase:
    """relu(x @ w + b) with constant w and b."""

    def body(b: Builder, x: str) -> str:
        return b.op("Relu", b.gemm("fc", x, k, n))

    return OpCase(f"dense-{m}x{n}x{k}", body, ((m, k),), 2.0 * m * n * k)


def matmul(m: int, n: int, k: int, *batch: int) -> OpCase:
    """a @ b, neither constant: whatever is packed is packed while it runs."""
    size = "x".join(map(str, (*batch, m, n, k)))
    flops = 2.0 * m * n * k
    for extent in batch:
        flops *= extent
    shapes = ((*batch, m, k), (*batch, k, n))
    return OpCase(f"matmul-{size}", lambda b, x, y: b.op("MatMul", x, y), shapes, flops)


def scores(heads: int, seq: int, width: int) -> OpCase:
    """Q @ K^T of attention."""

    def body(b: Builder, q: str, k: str) -> str:
        return b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2)))

    shape = (1, heads, seq, width)
    return OpCase(f"scores-{heads}x{seq}x{width}", body, (shape, shape), 2.0 * heads * seq * seq * width)


def conv(
    size: int, cin: int, cout: int, kernel: int, *, stride: int = 1, groups: int = 1, dilation: int = 1, batch: int = 1
) -> OpCase:
    """relu(conv(x) + b), padded so that stride 1 keeps the size."""
    pad = dilation * (kernel - 1) // 2
    out = (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1

    def body(b: Builder, x: str) -> str:
        weight = b.normal("w", (cout, cin // groups, kernel, kernel), 0.05)
        attributes: dict[str, Any] = {"kernel_shape": (kernel, kernel), "strides": (stride, stride), "group": groups}
        attributes |= {"pads": (pad,) * 4, "dilations": (dilation, dilation)}
        return b.op("Relu", b.op("Conv", x, weight, b.normal("b", (cout,), 0.1), **attributes))

    kind = "depthwise" if groups == cin == cout else "conv"
    extras = {"s": stride, "g": groups if kind == "conv" else 1, "d": dilation, "b": batch}
    marks = "".join(f"-{mark}{value}" for mark, value in extras.items() if value > 1)
    channels = f"{cin}" if kind == "depthwise" else f"{cin}-{cout}"
    flops = 2.0 * batch * out * out * cout * (cin // groups) * kernel * kernel
    return OpCase(f"{kind}-{size}-{channels}-k{kernel}{marks}", body, ((batch, cin, size, size),), flops, is_image=True)


def conv_transpose(size: int, cin: int, cout: int, kernel: int, stride: int) -> OpCase:
    pad = (kernel - stride) // 2

    def body(b: Builder, x: str) -> str:
        weight = b.normal("w", (cin, cout, kernel, kernel), 0.05)
        attributes: dict[str, Any] = {"kernel_shape": (kernel, kernel), "strides": (stride, stride), "pads": (pad,) * 4}
        return b.op("ConvTranspose", x, weight, b.normal("b", (cout,), 0.1), **attributes)

    flops = 2.0 * size * size * cin * cout * kernel * kernel
    return OpCase(f"transposed-{size}-{cin}-{cout}-k{kernel}-s{stride}", body, ((1, cin, size, size),), flops, True)


def matmul_exp_matmul(m: int, k: int, n: int, p: int) -> OpCase:
    """exp(a @ b) @ e: two anchors that may be fused. The first input is small, so that exp does not overflow."""

    def body(b: Builder, x: str, y: str, z: str) -> str:
        return b.op("MatMul", b.op("Exp", b.op("MatMul", x, y)), z)

    flops = 2.0 * m * n * k + 2.0 * m * n * p
    shapes = ((m, k), (k, n), (n, p))
    return OpCase("matmul-exp-matmul", body, shapes, flops, scale=0.02, rival="numpy", bar=1.1)


_GEMMS = (
    dense(1024, 1024, 1024), dense(3136, 64, 576), dense(196, 256, 2304), dense(49, 512, 4608), dense(128, 768, 768),
    dense(128, 3072, 768), dense(128, 768, 3072),
    # odd ones: primes, tiny, tall, wide, long, thin, and rows as in batch-1 decoding
    dense(127, 131, 137), dense(1009, 1013, 1019), dense(7, 11, 13), dense(16, 16, 16), dense(65536, 8, 8),
    dense(50000, 17, 33), dense(8, 32768, 64), dense(64, 64, 65536), dense(33, 1000, 1280), dense(3, 4096, 1024),
    dense(1, 4096, 4096), dense(1, 1000, 2048), dense(1, 50257, 768), dense(5, 768, 3072),
    matmul(384, 384, 384), matmul(1000, 1000, 1000), matmul(64, 4096, 256), matmul(1, 2048, 2048),
    matmul(128, 64, 128, 1, 12), matmul(16, 16, 16, 64), matmul(33, 35, 37, 8),
    scores(12, 128, 64), scores(12, 197, 64),
)  # fmt: skip

_CONVS = (
    conv(56, 64, 64, 3), conv(28, 128, 128, 3), conv(14, 256, 256, 3), conv(7, 512, 512, 3),
    conv(56, 64, 128, 3, stride=2), conv(56, 64, 128, 1, stride=2), conv(224, 3, 64, 7, stride=2),
    conv(112, 32, 32, 3, groups=32), conv(112, 96, 96, 3, stride=2, groups=96), conv(56, 144, 144, 3, groups=144),
    conv(14, 384, 384, 3, groups=384),
    # odd ones: primes, grouped, dilated, large and pointwise windows, few channels, batches
    conv(13, 37, 41, 3), conv(17, 19, 23, 5), conv(28, 128, 128, 3, groups=4), conv(56, 128, 128, 3, groups=32),
    conv(28, 64, 64, 3, dilation=2), conv(14, 256, 256, 3, dilation=4), conv(56, 64, 256, 1), conv(7, 2048, 512, 1),
    conv(27, 96, 256, 5), conv(224, 3, 32, 3, stride=2), conv(224, 3, 64, 3), conv(112, 16, 16, 3),
    conv(56, 64, 1, 3), conv(14, 256, 256, 3, batch=8), conv(7, 160, 960, 1, batch=4), conv(5, 64, 64, 3),
    conv(28, 120, 120, 5, groups=120), conv(7, 960, 960, 3, groups=960),
    conv_transpose(28, 128, 64, 2, 2), conv_transpose(14, 256, 128, 4, 2),
)  # fmt: skip

COMPUTE = (*_GEMMS, *_CONVS, matmul_exp_matmul(1024, 2048, 1024, 3072))

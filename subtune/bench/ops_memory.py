"""The operators of `--suite cpu-ops` that memory bounds, each with a working set in L2, in L3 and in DRAM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from subtune.bench.op_case import Body, OpCase, Shape
from subtune.models.builder import Builder

_ELEMENTS: Mapping[str, int] = {"L2": 2**16, "L3": 2**20, "DRAM": 2**24}
"""float32 elements of the input; 256 KB, 4 MB, 64 MB."""


def _op(op_type: str, **attributes: Any) -> Body:
    return lambda b, *inputs: b.op(op_type, *inputs, **attributes)


def _reduce(axis: int) -> Body:
    return lambda b, x: b.op("ReduceSum", x, b.constant((axis,), "int64"), keepdims=0)


def _norm(channels: int) -> Body:
    return lambda b, x: b.layer_norm("norm", x, channels)


def _rms_norm(channels: int) -> Body:
    """As exporters write it: one operator for it is younger than most models."""

    def body(b: Builder, x: str) -> str:
        mean = b.op("ReduceMean", b.op("Pow", x, b.constant(2.0)), axes=(-1,), keepdims=1)
        root = b.op("Sqrt", b.op("Add", mean, b.constant(1e-6)))
        return b.op("Mul", b.op("Div", x, root), b.normal("w", (channels,), 0.1, mean=1.0))

    return body


def _group_norm(channels: int, groups: int) -> Body:
    """As exporters write it: InstanceNormalization over the groups, then scale and shift per channel."""

    def body(b: Builder, x: str) -> str:
        shape = b.op("Shape", x)
        grouped = b.op("Reshape", x, b.constant((0, groups, -1), "int64"))
        ones, zeros = b.constant([1.0] * groups), b.constant([0.0] * groups)
        normal = b.op("Reshape", b.op("InstanceNormalization", grouped, ones, zeros, epsilon=1e-5), shape)
        scaled = b.op("Mul", normal, b.normal("w", (channels, 1, 1), 0.1, mean=1.0))
        return b.op("Add", scaled, b.normal("b", (channels, 1, 1), 0.1))

    return body


def _resize(b: Builder, x: str) -> str:
    scales = b.constant((1.0, 1.0, 2.0, 2.0))
    return b.op(
        "Resize", x, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    )


def _bilinear(b: Builder, x: str) -> str:
    return b.op("Resize", x, "", b.constant((1.0, 1.0, 2.0, 2.0)), mode="linear")


def _split(b: Builder, x: str) -> tuple[str, ...]:
    return b.multi("Split", x, outputs=(None, None), axis=1)


def _pool(op_type: str, kernel: int, stride: int, pad: int) -> Body:
    window = {"kernel_shape": (kernel, kernel), "strides": (stride, stride), "pads": (pad,) * 4}
    return _op(op_type, **window)


_Case = tuple[str, Callable[[int], tuple[Shape, ...]], Body, bool, int]
"""Name, input shapes for so many elements, nodes, whether it is an image's, operator set."""


def _rows(width: int) -> Callable[[int], tuple[Shape, ...]]:
    return lambda n: ((n // width, width),)


def _image(channels: int, count: int = 1) -> Callable[[int], tuple[Shape, ...]]:
    """Images of `channels` channels, 2^k x 2^k or 2^k x 2^(k+1) pixels."""

    def shapes(n: int) -> tuple[Shape, ...]:
        pixels = n // count // channels
        height = 1 << ((pixels.bit_length() - 1) // 2)
        return ((1, channels, height, pixels // height),) * count

    return shapes


_CASES: tuple[_Case, ...] = (
    ("softmax", _rows(1024), _op("Softmax", axis=-1), False, 17),
    ("softmax-128", _rows(128), _op("Softmax", axis=-1), False, 17),
    ("layer-norm", _rows(768), _norm(768), False, 17),
    ("rms-norm", _rows(1024), _rms_norm(1024), False, 17),
    ("group-norm", _image(64), _group_norm(64, 8), True, 17),
    ("max-pool-3-s2", _image(64), _pool("MaxPool", 3, 2, 1), True, 17),
    ("max-pool-2-s2", _image(64), _pool("MaxPool", 2, 2, 0), True, 17),
    ("average-pool-3", _image(64), _pool("AveragePool", 3, 1, 1), True, 17),
    ("global-pool", _image(512), _op("GlobalAveragePool"), True, 17),
    ("resize-nearest", _image(64), _resize, True, 17),
    ("resize-linear", _image(64), _bilinear, True, 17),
    ("concat", _image(64, 2), _op("Concat", axis=1), True, 17),
    ("split", _image(128), _split, True, 17),
    ("transpose-2d", lambda n: ((n // 512, 512),), _op("Transpose", perm=(1, 0)), False, 17),
    ("transpose-heads", lambda n: ((1, n // 768, 12, 64),), _op("Transpose", perm=(0, 2, 1, 3)), False, 17),
    ("transpose-nchw", lambda n: ((1, n // 4096, 64, 64),), _op("Transpose", perm=(0, 2, 3, 1)), False, 17),
    ("gelu", _rows(1024), _op("Gelu"), False, 20),
    ("exp", _rows(1024), _op("Exp"), False, 17),
    ("sigmoid", _rows(1024), _op("Sigmoid"), False, 17),
    ("tanh", _rows(1024), _op("Tanh"), False, 17),
    ("relu", _rows(1024), _op("Relu"), False, 17),
    ("add", lambda n: ((n // 2 // 1024, 1024),) * 2, _op("Add"), False, 17),
    ("reduce-rows", _rows(1024), _reduce(1), False, 17),
    ("reduce-columns", _rows(1024), _reduce(0), False, 17),
)  # fmt: skip

MEMORY = tuple(
    OpCase(f"{name}-{place}", body, shapes(elements), is_image=is_image, opset=opset)
    for name, shapes, body, is_image, opset in _CASES
    for place, elements in _ELEMENTS.items()
)

"""What the passes make of Relay's networks: as few kernels, and no more permutations, than of the same in ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax

from subtune.frontends.onnx.ops.node import array_const
from subtune.frontends.relay.ops.call import Call
from subtune.frontends.relay.ops.converters import CONVERTERS
from subtune.passes.partition import partition
from subtune.pipeline import normalize
from tests.frontends.relay.agree import floats, ints


class Network:
    """Relay calls on one input, weights as constants."""

    def __init__(self, bb: Any) -> None:
        self.bb = bb

    def __call__(self, op: str, *args: Any, **attrs: Any) -> Any:
        given = tuple(array_const(a) if isinstance(a, np.ndarray) else a for a in args)
        made = CONVERTERS[op](Call(self.bb, op, given, attrs))
        made = made[0] if isinstance(made, tuple) else made
        return made if isinstance(made, relax.Var) else self.bb.normalize(made)

    def norm(self, x: Any, channels: int, axis: int) -> Any:
        return self("nn.batch_norm", x, *(np.abs(floats(channels)) + 0.1 for _ in range(4)), axis=axis)


def normalized(network: Callable[[Network, Any], Any], *dims: int) -> tuple[list[str], int]:
    """The operators left after the passes, and how many kernels they make."""
    x = relax.Var("x", relax.TensorType(dims, "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", params=[x]):
        with bb.dataflow():
            result = bb.emit_output(network(Network(bb), x))
        bb.emit_func_output(result)
    mod = normalize(bb.get())
    names = [
        str(binding.value.op.name)
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if hasattr(binding.value, "op") and hasattr(binding.value.op, "name")
    ]
    return [name.removeprefix("relax.") for name in names], len(partition(mod).groups)


def _mobile(net: Network, x: Any, layout: str) -> Any:
    last = layout == "NHWC"
    axis, data = (3, {"data_layout": layout}) if last else (1, {})
    weights = floats(3, 3, 3, 8) if last else floats(8, 3, 3, 3)
    y = net("nn.conv2d", x, weights, padding=[1], strides=[2], kernel_layout="HWIO" if last else "OIHW", **data)
    y = net("nn.relu", net.norm(y, 8, axis))
    depthwise = floats(3, 3, 8, 1) if last else floats(8, 1, 3, 3)
    y = net("nn.conv2d", y, depthwise, padding=[1], groups=8, kernel_layout="HWOI" if last else "OIHW", **data)
    y = net("nn.relu", net.norm(y, 8, axis))
    y = net("nn.max_pool2d", y, pool_size=[2, 2], strides=[2, 2], layout=layout)
    weights = floats(1, 1, 8, 16) if last else floats(16, 8, 1, 1)
    y = net("nn.conv2d", y, weights, kernel_layout="HWIO" if last else "OIHW", **data)
    y = net("nn.relu", net("nn.bias_add", y, floats(16), axis=axis))
    y = net("nn.batch_flatten", net("nn.global_avg_pool2d", y, layout=layout))
    return net("nn.softmax", net("nn.bias_add", net("nn.dense", y, floats(10, 16)), floats(10)))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_mobile_network_has_one_kernel_per_convolution(layout: str) -> None:
    dims = (1, 3, 16, 16) if layout == "NCHW" else (1, 16, 16, 3)
    ops, kernels = normalized(lambda net, x: _mobile(net, x, layout), *dims)
    assert "nn.batch_norm" not in ops
    assert ops.count("permute_dims") == (1 if layout == "NCHW" else 0)  # the input's own
    # three convolutions with what follows, the pool, the mean, the product, softmax, and the input's permutation
    assert kernels == (8 if layout == "NCHW" else 7)
    assert not {"multiply", "subtract"} & set(ops)


def test_a_transformer_keeps_its_operators() -> None:
    def network(net: Network, x: Any) -> Any:
        y = net("nn.layer_norm", x, floats(8), floats(8))
        scores = net("nn.softmax", net("nn.batch_matmul", y, y, transpose_b=True))
        y = net("nn.batch_matmul", scores, y)
        return net("nn.relu", net("nn.bias_add", net("nn.dense", y, floats(8, 8)), floats(8), axis=-1))

    ops, _ = normalized(network, 2, 4, 8)
    assert ops.count("matmul") == 3
    assert {"nn.layer_norm", "nn.softmax", "nn.relu", "add"} <= set(ops)


def _quantum(scale: float, zero: int) -> list[np.ndarray]:
    return [np.array(scale, "float32"), np.array(zero, "int32")]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_requantisation_is_part_of_the_convolution_before_it(layout: str) -> None:
    axis, kernel = (3, "HWIO") if layout == "NHWC" else (1, "OIHW")
    weights = ints("int8", 3, 3, 8, 8) if layout == "NHWC" else ints("int8", 8, 8, 3, 3)
    spread = np.full(8, 0.001, "float32")

    def network(net: Network, x: Any) -> Any:
        y = net("qnn.quantize", x, *_quantum(0.1, 3), out_dtype="uint8")
        for _ in range(2):
            attrs = {"padding": [1, 1], "data_layout": layout, "kernel_layout": kernel, "out_dtype": "int32"}
            zeros = np.array(3, "int32"), np.array(0, "int32")
            y = net("qnn.conv2d", y, weights, *zeros, np.array(0.1, "float32"), spread, **attrs)
            y = net("nn.bias_add", y, ints("int32", 8), axis=axis)
            target = _quantum(0.1, 3)
            y = net("qnn.requantize", y, spread, np.array(0, "int32"), *target, axis=axis, out_dtype="uint8")
        return net("qnn.dequantize", y, *_quantum(0.1, 3))

    ops, kernels = normalized(network, 1, 8, 8, 8)
    assert ops.count("nn.conv2d") == 2
    # in and out for channels first; quantise and two convolutions for both
    assert (ops.count("permute_dims"), kernels) == ((2, 4) if layout == "NCHW" else (0, 3))


TESTED: set[str] = set()

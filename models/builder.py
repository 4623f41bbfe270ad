"""Write an ONNX graph node by node, with seeded weights."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

Array = np.ndarray[Any, Any]

# Std of a weight times sqrt(fan in) that keeps the second moment through a ReLU: sqrt(2) after He et al.
# 2015, and more for filters that sum to zero, which do not see the share 1 / pi of a rectified normal value's
# power that lies in its mean.
HE_GAIN = math.sqrt(2.0)
CENTRED_GAIN = math.sqrt(2.0 / (1.0 - 1.0 / math.pi))


class Builder:
    """An ONNX graph under construction; values are known by their names.

    All random weights come from one generator seeded by the model's name and are drawn in float32, so that a
    model built twice is equal byte for byte, and its float16 weights are its float32 ones rounded.

    Args:
        name: the graph's name, and the seed.
        opset: version of the default operator set; the IR version is the oldest that allows it, as exporters
            of that age wrote it. Below IR version 4 (opset 8 and older) the initialisers are listed among the
            inputs.
        dtype: "float32" or "float16", for weights, float inputs and float constants.
        name_nodes: False leaves the nodes' names empty, as some old exporters did.
    """

    def __init__(self, name: str, *, opset: int, dtype: str, name_nodes: bool = True) -> None:
        opset_import = helper.make_opsetid("", opset)
        self._model = onnx.ModelProto(
            ir_version=helper.find_min_ir_version_for([opset_import]),
            opset_import=[opset_import],
            producer_name="subtune.models",
        )
        self._model.graph.name = name
        self._name_nodes = name_nodes
        self._rng = np.random.default_rng(zlib.crc32(name.encode()))
        self.dtype = np.dtype(dtype)

    # Graph interface

    def input(self, name: str, shape: Sequence[int], dtype: str | None = None) -> str:
        """Add a graph input, by default of the model's float type."""
        self._model.graph.input.append(self._value_info(name, shape, dtype))
        return name

    def output(self, name: str, shape: Sequence[int], dtype: str | None = None) -> None:
        """Declare the value a graph output; the checker compares the shape with the inferred one."""
        self._model.graph.output.append(self._value_info(name, shape, dtype))

    def finish(self) -> onnx.ModelProto:
        """The model built so far."""
        graph = self._model.graph
        if self._model.ir_version < 4:
            graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in graph.initializer)
        return self._model

    # Nodes

    def op(self, op_type: str, *inputs: str, out: str | None = None, **attributes: Any) -> str:
        """Add a node with one output and return that output's name; "" stands for an omitted input."""
        return self.multi(op_type, *inputs, outputs=(out,), **attributes)[0]

    def multi(self, op_type: str, *inputs: str, outputs: Sequence[str | None], **attributes: Any) -> tuple[str, ...]:
        """Add a node with several outputs; None names an output after its node, "" leaves it out."""
        index = len(self._model.graph.node)
        given = [f"{op_type.lower()}_{index}_{i}" if out is None else out for i, out in enumerate(outputs)]
        name = f"{op_type}_{index}" if self._name_nodes else ""
        self._model.graph.node.append(helper.make_node(op_type, inputs, given, name=name, **attributes))
        return tuple(given)

    def constant(self, value: float | Sequence[float] | Array, dtype: str | None = None) -> str:
        """Add a Constant node, by default of the model's float type."""
        array = np.asarray(value, dtype or self.dtype)
        return self.op("Constant", value=onnx.numpy_helper.from_array(array))

    # Initialisers

    def weight(self, name: str, array: Array) -> str:
        """Add an initialiser; a float array is converted to the model's float type, any other kept."""
        if np.issubdtype(array.dtype, np.floating):
            array = array.astype(self.dtype, copy=False)
        # Filled in place: building a TensorProto first would copy every weight twice.
        tensor = self._model.graph.initializer.add()
        tensor.name = name
        tensor.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor.dims.extend(array.shape)
        tensor.raw_data = array.tobytes()
        return name

    def normal(self, name: str, shape: Sequence[int], std: float, mean: float = 0.0, *, centred: bool = False) -> str:
        """Add a normally distributed initialiser; `centred` makes each slice of axis 0 sum to zero."""
        array = self._rng.standard_normal(tuple(shape), dtype=np.float32)
        array *= np.float32(std)
        if mean:
            array += np.float32(mean)
        if centred:
            array -= array.mean(axis=tuple(range(1, array.ndim)), keepdims=True)
        return self.weight(name, array)

    def uniform(self, name: str, shape: Sequence[int], low: float, high: float) -> str:
        """Add an initialiser drawn from a uniform distribution."""
        return self.weight(name, self._rng.uniform(low, high, tuple(shape)).astype(np.float32))

    # Layers that every exporter writes alike

    def conv(
        self,
        name: str,
        x: str,
        cin: int,
        cout: int,
        kernel: int,
        *,
        stride: int = 1,
        pads: Sequence[int] | str | None = None,
        groups: int = 1,
        gain: float | None = None,
        bias: bool = True,
    ) -> str:
        """Square 2-D convolution in NCHW with weights (cout, cin / groups, kernel, kernel).

        Args:
            pads: (top, left, bottom, right), or an `auto_pad` mode; by default `kernel // 2` on every side.
            gain: std of the weights times sqrt(fan in); by default CENTRED_GAIN, or HE_GAIN with groups.
        """
        # Filters that sum to zero answer to the image and not to the mean that a ReLU leaves behind.
        # Otherwise the outputs of a deep network with random weights hardly depend on its input, and would
        # hide wrong kernels.
        is_centred = groups == 1
        if gain is None:
            gain = CENTRED_GAIN if is_centred else HE_GAIN
        shape = (cout, cin // groups, kernel, kernel)
        inputs = [
            x,
            self.normal(f"{name}.weight", shape, gain / math.sqrt(math.prod(shape[1:])), centred=is_centred),
        ]
        if bias:
            inputs.append(self.normal(f"{name}.bias", (cout,), 0.1))
        padding: dict[str, Any] = {"pads": (kernel // 2,) * 4} if pads is None else {"pads": pads}
        if isinstance(pads, str):
            padding = {"auto_pad": pads}
        return self.op(
            "Conv",
            *inputs,
            dilations=(1, 1),
            group=groups,
            kernel_shape=(kernel, kernel),
            strides=(stride, stride),
            **padding,
        )

    def gemm(self, name: str, x: str, cin: int, cout: int, *, gain: float = 1.0, out: str | None = None) -> str:
        """Fully connected layer as torch.nn.Linear is exported: weights (cout, cin), transB."""
        weight = self.normal(f"{name}.weight", (cout, cin), gain / math.sqrt(cin))
        bias = self.normal(f"{name}.bias", (cout,), 0.1)
        return self.op("Gemm", x, weight, bias, alpha=1.0, beta=1.0, transB=1, out=out)

    def linear(self, name: str, x: str, cin: int, cout: int, *, gain: float = 1.0, out: str | None = None) -> str:
        """Fully connected layer on `(..., cin)` as `MatMul` with weights `(cin, cout)`, then `Add`."""
        weight = self.normal(f"{name}.weight", (cin, cout), gain / math.sqrt(cin))
        bias = self.normal(f"{name}.bias", (cout,), 0.1)
        return self.op("Add", self.op("MatMul", x, weight), bias, out=out)

    def layer_norm(self, name: str, x: str, size: int, *, epsilon: float = 1e-5, out: str | None = None) -> str:
        """LayerNormalization over the last axis as one node (opset 17 on)."""
        scale, bias = self.norm_parameters(name, size)
        return self.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=epsilon, out=out)

    def norm_parameters(self, name: str, size: int, scale: float = 1.0) -> tuple[str, str]:
        """Scale near `scale` and bias near zero, of a normalisation over `size` channels."""
        return (
            self.normal(f"{name}.weight", (size,), 0.1 * scale, mean=scale),
            self.normal(f"{name}.bias", (size,), 0.1),
        )

    def _value_info(self, name: str, shape: Sequence[int], dtype: str | None) -> onnx.ValueInfoProto:
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype or self.dtype))
        assert element != TensorProto.UNDEFINED, f"{name}: no ONNX type for {dtype}"
        return helper.make_tensor_value_info(name, element, tuple(shape))


def scaled(channels: int, width: float, divisor: int = 4) -> int:
    """`channels` times `width`, rounded to the nearest multiple of `divisor`, at least `divisor`."""
    return max(divisor, int(channels * width / divisor + 0.5) * divisor)

"""An ONNX file as a PyTorch module, through onnx2torch, which is taught what small steps it lacks."""

from __future__ import annotations

import math
import operator
from functools import cache
from typing import Any

from subtune.bench.onnx_constants import fold_shapes

_SAME_AS = {
    ("BatchNormalization", 7): 9,
    ("Gemm", 7): 9,
    ("Constant", 19): 13,
    ("Reshape", 19): 14,
}
"""Operators of a version that onnx2torch does not list, and the version it has that means the same for inference."""


def converted(path: str) -> Any:
    """The module, ready for inference. Whatever onnx2torch raises says what it cannot convert."""
    import onnx
    import onnx2torch

    _teach()
    model = onnx.load(path)
    fold_shapes(model)
    _write_out_pads(model)
    return _with_plain_numbers(onnx2torch.convert(model)).eval()


def in_half(module: Any, dtype: Any) -> Any:
    """The module with weights of `dtype`, to which what the graph casts to float32, a mask, is cast as well."""
    import torch
    from onnx2torch.node_converters.cast import OnnxCast

    for part in module.modules():
        if isinstance(part, OnnxCast) and part.torch_dtype == torch.float32:
            part.torch_dtype = dtype
    return module.to(dtype)


def _with_plain_numbers(module: Any) -> Any:
    """Reshapes, splits, squeezes, slices, gathers of one index and arithmetic take their constants as numbers.

    onnx2torch's take tensors, which inductor cannot follow: attention whose scale is a tensor is one it refuses. And a
    GPU's graph cannot be captured where the host reads one.
    """
    _numbers_in_arithmetic(module)
    for node in list(module.graph.nodes):
        if node.op != "call_module" or not all(getattr(arg, "op", "") == "get_attr" for arg in node.args[1:]):
            continue
        values = [_value(module, constant) for constant in node.args[1:]]
        with module.graph.inserting_before(node):
            plain = _plain(module.graph, module.get_submodule(node.target), node.args[0], *values)
        if plain is not None:
            node.replace_all_uses_with(plain)
            module.graph.erase_node(node)
    module.recompile()
    return module


def _value(module: Any, constant: Any) -> Any:
    """The tensor of a node that reads it."""
    owner, _, name = constant.target.rpartition(".")
    return getattr(module.get_submodule(owner), name)


def _plain(graph: Any, converted_node: Any, data: Any, *values: Any) -> Any:
    """The node that takes the numbers in `values`, in the place of `converted_node`; None where there is none."""
    kind, numbers = type(converted_node).__name__, [value.flatten().tolist() for value in values]
    if kind == "OnnxReshape":
        sizes = [graph.call_method("size", (data, i)) if dim == 0 else dim for i, dim in enumerate(numbers[0])]
        return graph.call_method("reshape", (data, *sizes))
    if kind == "OnnxGather" and values[0].ndim == 0:
        return graph.call_method("select", (data, converted_node._axis, *numbers[0]))
    if kind == "OnnxSqueezeDynamicAxes" and numbers:
        return graph.call_method("squeeze", (data, tuple(numbers[0])))
    if kind == "OnnxSplit13" and numbers:
        return graph.call_method("split", (data, numbers[0], converted_node.axis))
    if kind == "OnnxSlice" and len(numbers) > 2 and min(*numbers[2], *(numbers[3] if len(numbers) > 3 else ())) >= 0:
        ranges = {axis: slice(begin, end, *step) for begin, end, axis, *step in zip(*numbers, strict=True)}
        whole = (ranges.get(axis, slice(None)) for axis in range(max(ranges) + 1))
        return graph.call_function(operator.getitem, (data, tuple(whole)))
    return data if kind == "OnnxDropoutDynamic" else None


def _numbers_in_arithmetic(module: Any) -> None:
    """`x / c` for a constant `c` without dimensions: `c` becomes a number of Python. (`c / x` stays.)"""
    for node in module.graph.nodes:
        if node.op != "call_module" or len(node.args) != 2 or getattr(node.args[1], "op", "") != "get_attr":
            continue
        data, value = node.args[0], _value(module, node.args[1])
        is_arithmetic = "BinaryMath" in type(module.get_submodule(node.target)).__name__
        if is_arithmetic and value.ndim == 0 and getattr(data, "op", "") != "get_attr":
            node.args = (data, value.item())


@cache
def _teach() -> None:
    from onnx2torch.node_converters.registry import add_converter, get_converter
    from onnx2torch.utils.common import OnnxMapping, OperationConverterResult
    from torch import nn

    for (op_type, version), known in _SAME_AS.items():
        add_converter(operation_type=op_type, version=version)(get_converter(op_type, known))

    @add_converter(operation_type="Gelu", version=20)
    def _gelu(node: Any, graph: Any) -> Any:
        return OperationConverterResult(
            torch_module=nn.GELU(approximate=node.attributes.get("approximate", "none")),
            onnx_mapping=OnnxMapping(inputs=node.input_values, outputs=node.output_values),
        )


def _write_out_pads(model: Any) -> None:
    """auto_pad SAME of convolutions and poolings as the explicit pads it stands for; shapes must be known."""
    import onnx

    nodes = [n for n in model.graph.node if any(a.name == "auto_pad" and a.s.startswith(b"SAME") for a in n.attribute)]
    if not nodes:
        return
    inferred = onnx.shape_inference.infer_shapes(model).graph
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*inferred.value_info, *inferred.input)
    }
    for node in nodes:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        spatial = shapes.get(node.input[0], [])[2:]
        if not spatial or 0 in spatial or "kernel_shape" not in attributes:
            raise NotImplementedError(f"{node.op_type} {node.name} has auto_pad, and its input no known shape")
        before, after = [], []
        for axis, extent in enumerate(spatial):
            stride = attributes.get("strides", [1] * len(spatial))[axis]
            reach = (attributes["kernel_shape"][axis] - 1) * attributes.get("dilations", [1] * len(spatial))[axis] + 1
            missing = max(0, (math.ceil(extent / stride) - 1) * stride + reach - extent)
            less, more = missing // 2, missing - missing // 2
            is_lower = attributes["auto_pad"] == b"SAME_LOWER"
            before.append(more if is_lower else less)
            after.append(less if is_lower else more)
        kept = [a for a in node.attribute if a.name not in ("auto_pad", "pads")]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute("pads", [*before, *after])])

"""An ONNX file as a PyTorch module, through onnx2torch, which is taught what small steps it lacks."""

from __future__ import annotations

import math
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


def _with_plain_numbers(module: Any) -> Any:
    """Reshapes to a constant shape, gathers of one constant index, and arithmetic with one number take numbers.

    onnx2torch's take tensors, which inductor cannot follow: attention whose scale is a tensor is one it refuses.
    """
    _numbers_in_arithmetic(module)
    for node in list(module.graph.nodes):
        if node.op != "call_module" or len(node.args) != 2 or getattr(node.args[1], "op", "") != "get_attr":
            continue
        converted_node = module.get_submodule(node.target)
        data, constant = node.args
        owner, _, name = constant.target.rpartition(".")
        value = getattr(module.get_submodule(owner), name)
        with module.graph.inserting_before(node):
            if type(converted_node).__name__ == "OnnxReshape":
                dims = [int(dim) for dim in value]
                sizes = [module.graph.call_method("size", (data, i)) if dim == 0 else dim for i, dim in enumerate(dims)]
                plain = module.graph.call_method("reshape", (data, *sizes))
            elif type(converted_node).__name__ == "OnnxGather" and value.ndim == 0:
                plain = module.graph.call_method("select", (data, converted_node._axis, int(value)))
            else:
                continue
        node.replace_all_uses_with(plain)
        module.graph.erase_node(node)
    module.recompile()
    return module


def _numbers_in_arithmetic(module: Any) -> None:
    """`x / c` for a constant `c` without dimensions: `c` becomes a number of Python. (`c / x` stays.)"""
    for node in module.graph.nodes:
        if node.op != "call_module" or len(node.args) != 2 or getattr(node.args[1], "op", "") != "get_attr":
            continue
        data, constant = node.args
        owner, _, name = constant.target.rpartition(".")
        value = getattr(module.get_submodule(owner), name)
        is_arithmetic = "BinaryMath" in type(module.get_submodule(node.target)).__name__
        if is_arithmetic and value.ndim == 0 and getattr(data, "op", "") != "get_attr":
            node.args = (data, value.item())


@cache
def _teach() -> None:
    from onnx2torch.node_converters.registry import add_converter, get_converter
    from onnx2torch.utils.common import OnnxMapping, OperationConverterResult
    from torch import nn

    for (operator, version), known in _SAME_AS.items():
        add_converter(operation_type=operator, version=version)(get_converter(operator, known))

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

"""Which models keep their channels first: those without a product, on which channels last gains nothing."""

from __future__ import annotations

import tvm
from tvm import relax

from subtune.passes.exprs import dtype_of, ints, op_name, shape_of

LEAST_WIDTH = 8
"""Of a row in elements: shorter ones do not fill a vector, and channels do."""
MOST_STRIDE = 4

# Whatever does products, or has a layout of its own: one of them, and channels are to be last.
_TURNS = ("relax.permute_dims", "relax.matmul", "relax.image.resize2d", "relax.image.resize3d")


def convolutions(mod: tvm.IRModule) -> list[relax.Call]:
    return [call for call in _values(mod) if op_name(call).startswith("relax.nn.conv")]


def all_depthwise(mod: tvm.IRModule) -> bool:
    """Whether `mod` has convolutions, all of them depthwise and channels first, and nothing that wants another layout.

    Both the input and the result are then in planes, and a depthwise convolution reads each of them a few times, no
    more: it takes about as long in either layout, and a permutation at either border about half as long again.
    """
    found = convolutions(mod)
    turned = any(op_name(call) in _TURNS for call in _values(mod))
    return bool(found) and not turned and all(is_in_planes(call) for call in found)


def _values(mod: tvm.IRModule) -> list[relax.Call]:
    """What all variables of all functions are bound to."""
    return [
        binding.value
        for func in mod.functions.values()
        if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr)
        for block in func.body.blocks
        for binding in block.bindings
        if isinstance(binding, relax.VarBinding)
    ]


_PLANES = {"relax.nn.conv1d": ("NCW", "OIW"), "relax.nn.conv2d": ("NCHW", "OIHW")}


def is_in_planes(call: relax.Call) -> bool:
    """A float32 depthwise convolution of images or rows, of one result a channel or more, its rows long enough."""
    layouts = _PLANES.get(op_name(call))
    if layouts is None or dtype_of(call) != "float32":
        return False
    attrs, shape, weight, data = call.attrs, shape_of(call), shape_of(call.args[1]), shape_of(call.args[0])
    if (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)) != (*layouts, layouts[0]):
        return False
    if shape is None or weight is None or data is None or int(attrs.groups) != data[1] or weight[1] != 1:
        return False
    return shape[-1] >= LEAST_WIDTH and ints(attrs.strides)[-1] <= MOST_STRIDE

"""Which models keep their channels first: those that multiply little for what they read and write.

Such are depthwise convolutions and, where the device says so, grouped ones that read a few channels a group.
"""

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


def all_in_planes(mod: tvm.IRModule, planes_of_group: int = 1) -> bool:
    """Whether `mod` has convolutions, all of them `is_in_planes`, and nothing that wants another layout.

    Both the input and the result are then in planes, and a depthwise convolution reads each of them a few times, no
    more: it takes about as long in either layout, and a permutation at either border about half as long again. Groups
    of few channels fill vectors of x better than of channels.
    """
    found = convolutions(mod)
    turned = any(op_name(call) in _TURNS for call in _values(mod))
    return bool(found) and not turned and all(is_in_planes(call, planes_of_group) for call in found)


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


def is_in_planes(call: relax.Call, planes_of_group: int = 1) -> bool:
    """A float32 convolution of images or rows, its rows long enough, of which each result reads one channel or, where
    there are groups, no more than `planes_of_group`."""
    layouts = _PLANES.get(op_name(call))
    if layouts is None or dtype_of(call) != "float32":
        return False
    attrs, shape, weight = call.attrs, shape_of(call), shape_of(call.args[1])
    if (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)) != (*layouts, layouts[0]):
        return False
    if shape is None or weight is None or ints(attrs.strides)[-1] > MOST_STRIDE:
        return False
    is_thin = weight[1] == 1 or (int(attrs.groups) > 1 and weight[1] <= planes_of_group)
    return is_thin and shape[-1] >= LEAST_WIDTH

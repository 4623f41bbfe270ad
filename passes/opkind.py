"""What kind of op a Relax op is: the table the partition decides by."""

from __future__ import annotations

from subtune.core.graph import Kind


def names(text: str) -> frozenset[str]:
    """Of ops, written side by side."""
    return frozenset(text.split())


CONTRACTIONS = names(
    "matmul einsum outer nn.conv1d nn.conv2d nn.conv3d nn.conv1d_transpose nn.conv2d_transpose nn.conv3d_transpose"
)
REDUCTIONS = names("sum mean max min prod argmax argmin std variance")
NORMALIZATIONS = names(
    "nn.softmax nn.log_softmax nn.layer_norm nn.rms_norm nn.group_norm nn.instance_norm nn.batch_norm"
)
POOLINGS = names(
    "nn.max_pool1d nn.max_pool2d nn.max_pool3d nn.avg_pool1d nn.avg_pool2d nn.avg_pool3d "
    "nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d"
)
LOOKUPS = names("take gather_elements gather_nd index_tensor")
"""Gathers that copy elements as they are."""

GATHERS = LOOKUPS | names("one_hot image.resize2d image.resize3d image.grid_sample")

COSTLY = names(
    "acos acosh asin asinh atan atan2 atanh cos cosh erf exp log log_add_exp power sigmoid sin sinh tan tanh "
    "nn.gelu nn.gelu_tanh nn.selu nn.silu nn.softplus"
)
"""Elementwise ops of tens of instructions an element: nobody wants to compute one twice."""

CHEAP = names(
    "abs add astype bitwise_and bitwise_not bitwise_or bitwise_xor ceil clip dequantize divide equal floor "
    "floor_divide floor_mod greater greater_equal isfinite isinf isnan left_shift less less_equal logical_and "
    "logical_not logical_or logical_xor maximum minimum mod multiply negative nn.leakyrelu nn.prelu nn.relu "
    "not_equal quantize right_shift round rsqrt sign sqrt square subtract trunc where"
)

_READS = {
    "floor_mod": 2, "isfinite": 3, "isinf": 2, "nn.gelu": 2, "nn.gelu_tanh": 4, "nn.leakyrelu": 3, "nn.prelu": 3,
    "nn.selu": 2, "nn.silu": 2, "nn.softplus": 3, "sign": 2, "square": 2,
    **dict.fromkeys(("acos", "acosh", "asin", "asinh", "atan2", "atanh", "cosh", "sinh", "tan", "tanh"), 5),
}  # fmt: skip
"""Where it is more than once; tanh reads one so when intrinsics have been replaced."""

MOVEMENTS = names(
    "arange broadcast_to concat eye eye_like flip full full_like layout_transform nn.pad nn.pixel_shuffle ones "
    "ones_like permute_dims repeat reshape squeeze expand_dims flatten split stack strided_slice tile tril triu "
    "zeros zeros_like"
)
DUPLICATING = names("broadcast_to nn.pad repeat tile")
"""Movements that may read one element more than once, so that what feeds them would be computed more than once."""

VIEWS = names("reshape flatten squeeze expand_dims nn.batch_flatten")

INLINE_SCALARS = names(
    "add atan2 bitwise_and bitwise_or bitwise_xor divide equal floor_divide floor_mod greater greater_equal "
    "left_shift less less_equal log_add_exp logical_and logical_or logical_xor maximum minimum mod multiply "
    "not_equal power right_shift subtract where"
)
"""Ops whose scalar constants become literals in TIR, whatever the constants' rank (they broadcast)."""

INLINE_0D = names("quantize dequantize full full_like")
"""Ops whose legalisation turns constants of rank 0 (only) into literals."""

INLINE_UNIFORM = names("nn.layer_norm nn.rms_norm")
"""Ops whose legalisation takes a number for a vector of equal ones: a scale of 1, a shift of 0."""

SORTS = names("topk sort argsort")

# Sorting, scattering and their like are hand-written loops in TVM (not schedulable), or calls into its runtime.
OPAQUES = names(
    "scatter_elements scatter_nd slice_scatter index_put vision.all_class_non_max_suppression vision.get_valid_counts "
    "vision.non_max_suppression vision.multibox_transform_loc median bucketize dynamic_strided_slice shape_to_tensor "
    "nn.attention nn.attention_bias nn.attention_var_len nn.dropout meshgrid call_tir"
)

_TABLE = (
    (CONTRACTIONS, Kind.CONTRACTION),
    (REDUCTIONS, Kind.REDUCTION),
    (NORMALIZATIONS, Kind.NORMALIZATION),
    (POOLINGS, Kind.POOLING),
    (GATHERS, Kind.GATHER),
    (COSTLY | CHEAP, Kind.ELEMENTWISE),
    (MOVEMENTS, Kind.MOVEMENT),
    (OPAQUES, Kind.OPAQUE),
)
_KINDS = {name: kind for names, kind in _TABLE for name in names}


def kind_of(op: str, has_legalization: bool) -> Kind:
    """The kind of the op called `op` (without `relax.`), apart from views, which depend on shapes."""
    if op in _KINDS:
        return _KINDS[op]
    return Kind.OTHER if has_legalization else Kind.OPAQUE


def reads_of(op: str) -> int:
    """How often TVM's loops for the op called `op` read an element of an operand, at most."""
    return _READS.get(op, 1)


def is_unit_permutation(shape: tuple[int | str, ...], axes: tuple[int, ...]) -> bool:
    """True if permuting by `axes` moves only dims of extent 1, so that the bytes stay where they are."""
    moved = [axis for axis in axes if shape[axis] != 1]
    return moved == sorted(moved)

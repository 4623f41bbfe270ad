"""Input shapes: the model's dimensions and the user's `--shape` values -> static ones, then inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import onnx
from onnx import TensorProto, helper

from subtune.core.dims import Dim
from subtune.core.errors import ModelError, ShapeError
from subtune.core.tensor_spec import TensorSpec
from subtune.frontends.one_line import one_line
from subtune.frontends.onnx.graph import all_nodes
from subtune.frontends.onnx.sizes import dims_of, sizes
from subtune.frontends.symbolic import RawDim, Shape, SymbolicInput, example_ranges, named

_UNSUPPORTED_TYPES = {
    getattr(TensorProto, name)
    for name in (
        "UNDEFINED",
        "STRING",
        "COMPLEX64",
        "COMPLEX128",
    )
}

_TYPE_NUMBERS = frozenset(TensorProto.DataType.values())

_LONGEST = 2**31 - 1
"""TVM's loops count in int32."""
_MOST = 2**40
"""Elements of a tensor: no machine holds more."""


def dtype_name(elem_type: int) -> str:
    """numpy's (or ml_dtypes') name of an ONNX element type."""
    return str(helper.tensor_dtype_to_np_dtype(elem_type))


def _is_defined(elem_type: int) -> bool:
    return elem_type in _TYPE_NUMBERS and elem_type != TensorProto.UNDEFINED


def spec_of(value: onnx.ValueInfoProto) -> TensorSpec | None:
    """The spec of a tensor value; None while its type, rank or any dimension is unknown."""
    tensor_type = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not _is_defined(tensor_type.elem_type):
        return None
    if not tensor_type.HasField("shape"):
        return None
    dims = tensor_type.shape.dim
    if not all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in dims):
        return None
    return TensorSpec(value.name, tuple(dim.dim_value for dim in dims), dtype_name(tensor_type.elem_type))


def fix_inputs(
    inputs: Sequence[onnx.ValueInfoProto],
    shapes: Mapping[str, Sequence[int] | int],
    may_be_dynamic: bool = False,
) -> tuple[TensorSpec, ...]:
    """Make every input's shape static, in place.

    Args:
        shapes: input name -> its whole shape, or symbol -> its one value (an input's name goes first).
        may_be_dynamic: whether who asks has `--dynamic` as well.
    Raises ShapeError: an unknown name, a shape that contradicts the model or another, a dimension without a value.
    """
    declared = {value.name: _declared(value) for value in inputs}
    shown = _sized(declared, shapes)
    specs, missing = [], []
    for value in inputs:
        shape = shown[value.name]
        static = tuple(dim for dim in shape or () if isinstance(dim, int))
        if shape is None or len(static) < len(shape):
            missing.append(value.name)
            continue
        tensor_type = value.type.tensor_type
        tensor_type.shape.Clear()
        for size in static:
            tensor_type.shape.dim.add().dim_value = size
        # A rank-0 shape has no dims to set, and is yet something else than no shape.
        tensor_type.shape.SetInParent()
        specs.append(TensorSpec(value.name, static, dtype_name(tensor_type.elem_type)))
    if missing:
        raise _without_sizes({name: (declared[name], shown[name]) for name in missing}, may_be_dynamic)
    return tuple(specs)


def symbolic(
    inputs: Sequence[onnx.ValueInfoProto], shapes: Mapping[str, Sequence[int] | int]
) -> tuple[SymbolicInput, ...]:
    """The inputs with the dimensions that `shapes` leaves open as expressions of symbols.

    Raises ShapeError: as `fix_inputs`, but for dimensions without a value; an unknown number of dimensions.
    """
    found = []
    for value, shape in zip(inputs, _sized({one.name: _declared(one) for one in inputs}, shapes).values(), strict=True):
        if shape is None:
            what, flag = _missing(value.name, None, None)
            raise ShapeError(f"{what}: give its shape, for example --shape {flag}.")
        found.append(SymbolicInput(value.name, shape, dtype_name(value.type.tensor_type.elem_type)))
    return tuple(found)


def _sized(
    declared: Mapping[str, list[RawDim] | None], shapes: Mapping[str, Sequence[int] | int]
) -> dict[str, Shape | None]:
    """The inputs' shapes with all sizes that follow from what was given; None: an unknown number of dimensions."""
    dims = named(declared)
    known = sizes(declared, dims, shapes)
    found: dict[str, Shape | None] = {}
    for name, shape in dims.items():
        if name in shapes:
            found[name] = dims_of(name, shapes[name])
        else:
            found[name] = None if shape is None else tuple(known.of(name, dim) for dim in shape)
    return found


def infer(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the types and shapes of all intermediate values, which are inferred anew.

    Raises ShapeError: shapes or types that contradict one another, with the node. In a model with an If they are the
    importer's to find: the branch not taken may contradict the shapes (a Squeeze of what is not 1).
    """
    del proto.graph.value_info[:]
    strict = all(node.op_type != "If" for node in all_nodes(proto.graph))
    # exporters use bfloat16 where the operator's version does not list it yet
    checks = strict and all(one.data_type != TensorProto.BFLOAT16 for one in proto.graph.initializer)
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=checks, strict_mode=strict, data_prop=True)
    except Exception as error:  # onnx raises C++ exceptions of several unrelated Python types
        raise ShapeError(f"The model's shapes or types contradict one another: {one_line(error)}.") from error
    for value in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output):
        extents = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if max(extents, default=0) > _LONGEST:
            raise ShapeError(
                f"The value {value.name!r} has a dimension of {max(extents)}; loops here count to {_LONGEST}."
            )
        if prod(extents) > _MOST:
            raise ShapeError(f"The value {value.name!r} has {prod(extents)} elements, more than fit into memory.")
    return inferred


def _declared(value: onnx.ValueInfoProto) -> list[RawDim] | None:
    """An input's dimensions as the file says; None: not even the rank."""
    tensor_type = value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        kind = (value.type.WhichOneof("value") or "value of no type").removesuffix("_type").replace("_", " ")
        raise ModelError(f"Input {value.name!r} is a {kind}: only tensors are supported.")
    if tensor_type.elem_type in _UNSUPPORTED_TYPES or tensor_type.elem_type not in TensorProto.DataType.values():
        known = tensor_type.elem_type in TensorProto.DataType.values()
        name = TensorProto.DataType.Name(tensor_type.elem_type) if known else str(tensor_type.elem_type)
        raise ModelError(f"Input {value.name!r} has the element type {name}, which is not supported.")
    if not tensor_type.HasField("shape"):
        return None
    dims: list[RawDim] = []
    for dim in tensor_type.shape.dim:
        # Some exporters write -1 for an unknown size.
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            dims.append(dim.dim_value)
        else:
            dims.append(dim.dim_param or None)
    return dims


def _missing(name: str, dims: list[RawDim] | None, shape: Shape | None) -> tuple[str, str]:
    """What is unknown of an input, and the --shape value that gives it (1 stands for each unknown)."""
    if dims is None or shape is None:
        return f"Input {name!r} has an unknown number of dimensions", f"{name}=1,1"
    unknown = [
        f"{axis} ({raw!r})" if isinstance(raw, str) else f"{axis} (unnamed)"
        for axis, (raw, dim) in enumerate(zip(dims, shape, strict=True))
        if isinstance(dim, Dim)
    ]
    flag = ",".join(str(dim if isinstance(dim, int) else dim.at(dict.fromkeys(dim.symbols, 1))) for dim in shape)
    plural = "dimensions" if len(unknown) > 1 else "dimension"
    return f"Input {name!r} has no fixed size in {plural} {', '.join(unknown)}", f"{name}={flag}"


def _without_sizes(missing: Mapping[str, tuple[list[RawDim] | None, Shape | None]], may_be_dynamic: bool) -> ShapeError:
    """That these inputs have no sizes, as the file has them and by what is known, and what gives them some."""
    described = [_missing(name, dims, shape) for name, (dims, shape) in missing.items()]
    what = "; ".join(text for text, _ in described)
    flags = " ".join(f"--shape {flag}" for _, flag in described)
    ranges = example_ranges(shape for _, shape in missing.values())
    hint = f"compile for a range of sizes, for example {ranges}, or " if ranges and may_be_dynamic else ""
    return ShapeError(f"{what}: {hint}give fixed sizes, for example {flags}.")

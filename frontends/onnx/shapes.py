"""Input shapes: the model's dimensions and the user's `--shape` values -> static ones, then inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import onnx
from onnx import TensorProto, helper

from subtune.core.errors import ModelError, ShapeError
from subtune.core.tensor_spec import TensorSpec
from subtune.frontends.one_line import one_line
from subtune.frontends.onnx.graph import all_nodes

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

Dim = int | str | None
"""One dimension of an input: its size, its symbol, or unknown without a name."""

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
    inputs: Sequence[onnx.ValueInfoProto], shapes: Mapping[str, Sequence[int] | int]
) -> tuple[TensorSpec, ...]:
    """Make every input's shape static, in place.

    Args:
        shapes: input name -> its whole shape, or symbol -> its one value (an input's name goes first).
    Raises ShapeError: an unknown name, a shape that contradicts the model or another, a dimension without a value.
    """
    declared = {value.name: _declared(value) for value in inputs}
    values = _symbol_values(declared, shapes)
    specs, missing = [], []
    for value in inputs:
        dims = declared[value.name]
        given = shapes.get(value.name)
        if given is not None:
            shape: list[Dim] = list(_dims(value.name, given))
        else:
            shape = [] if dims is None else [values.get(dim, dim) if isinstance(dim, str) else dim for dim in dims]
        if given is None and (dims is None or not all(isinstance(dim, int) for dim in shape)):
            missing.append(_missing(value.name, dims, shape))
            continue
        static = tuple(dim for dim in shape if isinstance(dim, int))
        tensor_type = value.type.tensor_type
        tensor_type.shape.Clear()
        for size in static:
            tensor_type.shape.dim.add().dim_value = size
        # A rank-0 shape has no dims to set, and is yet something else than no shape.
        tensor_type.shape.SetInParent()
        specs.append(TensorSpec(value.name, static, dtype_name(tensor_type.elem_type)))
    if missing:
        what = "; ".join(text for text, _ in missing)
        flags = " ".join(f"--shape {flag}" for _, flag in missing)
        raise ShapeError(f"{what}: give fixed sizes, for example {flags}.")
    return tuple(specs)


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
        sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if max(sizes, default=0) > _LONGEST:
            raise ShapeError(
                f"The value {value.name!r} has a dimension of {max(sizes)}; loops here count to {_LONGEST}."
            )
        if prod(sizes) > _MOST:
            raise ShapeError(f"The value {value.name!r} has {prod(sizes)} elements, more than fit into memory.")
    return inferred


def _declared(value: onnx.ValueInfoProto) -> list[Dim] | None:
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
    dims: list[Dim] = []
    for dim in tensor_type.shape.dim:
        # Some exporters write -1 for an unknown size.
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            dims.append(dim.dim_value)
        else:
            dims.append(dim.dim_param or None)
    return dims


def _symbol_values(
    declared: Mapping[str, list[Dim] | None], shapes: Mapping[str, Sequence[int] | int]
) -> dict[str, int]:
    """Symbol -> value, from symbols and whole shapes given, after checking both against the model."""
    symbols = {dim for dims in declared.values() for dim in dims or () if isinstance(dim, str)}
    values: dict[str, int] = {}
    said_by: dict[str, str] = {}
    for name, given in shapes.items():
        sizes = _dims(name, given)
        if name in declared:
            dims = declared[name]
            if dims is not None and len(dims) != len(sizes):
                raise ShapeError(
                    f"Input {name!r} has {len(dims)} dimensions {_shown(dims)}, but the shape given has "
                    f"{len(sizes)}: {_shown(sizes)}."
                )
            pairs = [(axis, dim, size) for axis, (dim, size) in enumerate(zip(dims or (), sizes, strict=False))]
        elif name in symbols:
            if len(sizes) != 1:
                raise ShapeError(f"{name!r} is a symbol of the model and takes one value, not {_shown(sizes)}.")
            pairs = [(0, name, sizes[0])]
        else:
            known = ", ".join(f"{key!r} {_shown(dims)}" for key, dims in declared.items()) or "none"
            raise ShapeError(f"The model has no input (and no symbol) {name!r}; its inputs are {known}.")
        for axis, dim, size in pairs:
            if isinstance(dim, int) and dim != size:
                raise ShapeError(
                    f"Input {name!r} has the fixed size {dim} in dimension {axis}; the shape given says {size}."
                )
            if isinstance(dim, str):
                if values.setdefault(dim, size) != size:
                    raise ShapeError(
                        f"The symbol {dim!r} is {values[dim]} according to {said_by[dim]!r} "
                        f"and {size} according to {name!r}: it has one value."
                    )
                said_by.setdefault(dim, name)
    return values


def _dims(name: str, given: Sequence[int] | int) -> tuple[int, ...]:
    sizes = (given,) if isinstance(given, int) else tuple(given)
    for size in sizes:
        # operator.index would take True, which nobody means as a size
        if isinstance(size, bool) or not hasattr(size, "__index__") or int(size) < 0:
            raise ShapeError(f"The shape of {name!r} has {size!r}, which is no size.")
    return tuple(int(size) for size in sizes)


def _missing(name: str, dims: list[Dim] | None, shape: Sequence[Dim]) -> tuple[str, str]:
    """What is unknown of an input, and the --shape value that gives it (1 stands for each unknown)."""
    if dims is None:
        return f"Input {name!r} has an unknown number of dimensions", f"{name}=1,1"
    unknown = [
        f"{axis} ({dim!r})" if isinstance(dim, str) else f"{axis} (unnamed)"
        for axis, dim in enumerate(shape)
        if not isinstance(dim, int)
    ]
    flag = ",".join(str(dim) if isinstance(dim, int) else "1" for dim in shape)
    plural = "dimensions" if len(unknown) > 1 else "dimension"
    return f"Input {name!r} has no fixed size in {plural} {', '.join(unknown)}", f"{name}={flag}"


def _shown(dims: Sequence[Dim] | None) -> str:
    if dims is None:
        return "[any shape]"
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in dims) + "]"

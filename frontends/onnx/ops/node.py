"""What a converter sees of one ONNX node, and how it refuses.

Every tensor has a static shape here: the importer is given all input shapes, and shape arithmetic is folded
while importing (`fold.py`), so a converter asks for `shape(x)` and gets integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import ml_dtypes
import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.ir import GenericConst

from subtune.runtime import is_direct, is_numpys

Expr: TypeAlias = Any  # a relax.Expr; TVM's classes are partly generated and do not type-check
Converter: TypeAlias = Callable[["Node"], Any]  # an expression, or a tuple of them (None: an output never used)

FLOATS = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
SUPPORTED_DTYPES = (*FLOATS, *SIGNED, *UNSIGNED, "bool")


class Refused(Exception):
    """One node that cannot be imported; the importer collects these into one `UnsupportedOpsError`."""


class ConstantWanted(Exception):
    """A converter needs the value of an input that is not known at import time."""

    def __init__(self, expr: Expr, what: str) -> None:
        super().__init__(what)
        self.expr = expr
        self.what = what


def element_name(elem_type: int) -> str:
    """ONNX element type -> numpy's or ml_dtypes' name of it.

    Raises:
        Refused: there is no such type.
    """
    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    except KeyError as e:
        raise Refused(f"has element type {elem_type}, which is not defined") from e


def dtype_name(elem_type: int) -> str:
    """ONNX element type -> TVM dtype name.

    Raises:
        Refused: a type that the importer does not carry (strings, complex numbers, 8-bit floats, 4- and 2-bit
        types).
    """
    name = element_name(elem_type)
    if name not in SUPPORTED_DTYPES:
        raise Refused(f"uses dtype {onnx.TensorProto.DataType.Name(elem_type).lower()}, which is not supported")
    return name


def numpy_dtype(name: str) -> np.dtype[Any]:
    """TVM dtype name -> numpy dtype, bfloat16 included."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def shape(x: Expr) -> tuple[int, ...]:
    """The static shape of a normalised expression."""
    return tuple(int(d) for d in x.ty.shape.values)


def dtype(x: Expr) -> str:
    """The dtype name of a normalised expression."""
    return str(x.ty.dtype)


def rank(x: Expr) -> int:
    return len(shape(x))


def is_float(x: Expr) -> bool:
    return dtype(x) in FLOATS


def const(value: Any, dtype: str) -> Expr:
    """A constant; Python scalars and arrays alike."""
    return relax.const(np.asarray(value, dtype=numpy_dtype(dtype)), dtype)


def array_const(array: np.ndarray) -> Expr:
    """A constant of the array's own dtype, which may share its memory: do not write to that again.

    `relax.const` of an array narrows int64 and float64, or copies it twice.
    """
    own = np.asarray(array, order="C")
    if is_direct(own) and is_numpys(own.dtype):
        try:
            return relax.const(tvm.runtime.from_dlpack(own))
        except (BufferError, RuntimeError):  # it begins where none of TVM's arrays does
            pass
    return relax.const(tvm.runtime.tensor(own))


def axis_in(axis: int, ndim: int) -> int:
    """`axis`, counted from the end where negative, as an index of `ndim` axes.

    Raises:
        Refused: outside the rank.
    """
    if not -ndim <= axis < max(ndim, 1):
        raise Refused(f"has axis {axis}, outside rank {ndim}")
    return axis % ndim if ndim else 0


@dataclass(frozen=True, slots=True)
class Node:
    """One ONNX node with its inputs already imported.

    Attributes:
        inputs: normalised expressions; None for an omitted optional input. A tuple stands for a sequence.
        attrs: attribute name -> Python value (strings decoded).
        num_outputs: how many outputs the node declares.
        wanted: for each declared output, whether it has a name.
        arrays: values of parameters that are function arguments (`keep_params`), by variable.
        types: for each input the narrow type that its bytes stand for, "" for most (`narrow`); empty where all are "".
        name: how variables that hold what it makes are named (`core.names`).
    """

    bb: relax.BlockBuilder
    op: str
    domain: str
    opset: int
    inputs: tuple[Any, ...]
    attrs: Mapping[str, Any]
    wanted: tuple[bool, ...]
    arrays: Mapping[Any, np.ndarray]
    types: tuple[str, ...] = ()
    name: str = ""

    @property
    def x(self) -> Expr:
        """The first input, which must be given."""
        return self.need(0)

    def get(self, index: int) -> Expr | None:
        """Input `index`, or None where it is omitted."""
        return self.inputs[index] if index < len(self.inputs) else None

    def need(self, index: int) -> Expr:
        """Input `index`, which the operator requires."""
        value = self.get(index)
        if value is None:
            self.refuse(f"lacks its required input {index}")
        return value

    def type_of(self, index: int) -> str:
        """The type of input `index` as ONNX says it: a dtype, or "int4" and the like."""
        return (self.types[index] if index < len(self.types) else "") or dtype(self.need(index))

    @property
    def every(self) -> tuple[Expr, ...]:
        """All inputs of an operator that takes any number of them, none of which may be omitted."""
        return tuple(self.need(index) for index in range(max(1, len(self.inputs))))

    def attr(self, name: str, default: Any = None) -> Any:
        return self.attrs.get(name, default)

    def wants(self, index: int) -> bool:
        """Whether output `index` is used by name."""
        return index < len(self.wanted) and self.wanted[index]

    def refuse(self, reason: str) -> NoReturn:
        raise Refused(reason)

    def known(self, index: int) -> np.ndarray | None:
        """The value of input `index` if it is known at import time, else None."""
        value = self.get(index)
        return None if value is None else known_array(value, self.arrays)

    def array(self, index: int, what: str) -> np.ndarray:
        """The value of input `index`, which decides the shape of something.

        Raises:
            ConstantWanted: the value is computed at run time.
        """
        value = self.need(index)
        array = known_array(value, self.arrays)
        if array is None:
            raise ConstantWanted(value, what)
        return array

    def ints(self, index: int, what: str) -> list[int]:
        """`array` as a flat list of Python integers."""
        return [int(v) for v in self.array(index, what).reshape(-1)]

    def emit(self, expr: Expr) -> Expr:
        """Binds `expr` to a variable, so that its shape and dtype are known."""
        return self.bb.emit(expr, self.name)

    def te(
        self, func: Callable[..., Any], *args: Any, name: str | None = None, attrs: dict[str, Any] | None = None
    ) -> Expr:
        """Emits a call of the tensor expression `func(*args)`, named after the ONNX operator.

        Args:
            attrs: of the function, such as TVM's `op_pattern` where it is another than the one that its loops show.
        """
        about = {"primfunc_name_hint": name or self.op.lower(), "primfunc_attrs": attrs, "name_hint": self.name}
        return self.bb.emit_te(func, *args, **about)

    def cast(self, x: Expr, to: str) -> Expr:
        return x if dtype(x) == to else self.emit(relax.op.astype(x, to))


def known_array(value: Expr, arrays: Mapping[Any, np.ndarray]) -> np.ndarray | None:
    """The numpy value of a constant or of a parameter, else None."""
    if isinstance(value, GenericConst):
        return value.value.numpy()
    if isinstance(value, relax.Var):
        return arrays.get(value)
    return None


def only_dtypes(node: Node, x: Expr, allowed: Sequence[str]) -> None:
    """Refuses the node when `x` has another dtype."""
    if dtype(x) not in allowed:
        node.refuse(f"has dtype {dtype(x)}, which is not supported")

"""Local padding of attentions of symbolic lengths: the scores get whole vectors of keys, and whole tiles of rows.

    softmax(q k' + mask) v      ->  p = softmax(pad(q) pad(k)' + pad(mask) + [0 … 0, -inf … -inf]);  (p pad(v))[:rows]
    q [.., rows, d], k [.., keys, d]    rows to a multiple of 4, keys to one of 32

Every schedule of a product or a softmax then serves any length: none has a last tile of its own. What the padding costs
is at most a tile; the weights of keys that are not there are exactly 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call

from subtune.passes.exprs import Expr, dtype_of, make_const, op_name, positive_axis, shape_of

ROWS, KEYS = 4, 32
"""To multiples of these: a tile of the products, a step of their reductions."""

_ELEMENTWISE = frozenset(
    f"relax.{name}" for name in "add subtract multiply divide maximum minimum where astype isnan power tanh".split()
)

Lengths = Mapping[int, tuple[bool, bool]]
"""Of a module's softmaxes along the last axis, by their number: whether rows and keys are symbolic."""
NO_LENGTHS: Lengths = MappingProxyType({})


def softmax_shapes(mod: tvm.IRModule) -> list[tuple[int, ...]]:
    """What the softmaxes along last axes are taken of, in the order of the calls."""
    values = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    return [shape for shape in map(_softmax_shape, values) if shape is not None]


def pad_attention(mod: tvm.IRModule, lengths: Lengths) -> tvm.IRModule:
    """Pad the attentions round the softmaxes of these numbers; what is no attention stays as it is."""
    if not lengths:
        return mod
    main, writer = mod["main"], _Writer(lengths)
    blocks = [
        type(block)([new for binding in block.bindings for new in writer.rewritten(binding)])
        for block in main.body.blocks
    ]
    body = relax.SeqExpr(blocks, main.body.body)
    made = mod.clone()
    function = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    made.update_func(made.get_global_var("main"), function)
    return relax.transform.DeadCodeElimination(["main"])(made)


def _softmax_shape(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, Call) or op_name(value) != "relax.nn.softmax":
        return None
    shape = shape_of(value)
    is_last = shape is not None and positive_axis(int(value.attrs.axis), len(shape)) == len(shape) - 1
    return shape if shape is not None and is_last and len(shape) >= 3 else None


class _Writer:
    """Bindings of `main` one by one; new ones come before those that need them."""

    def __init__(self, lengths: Lengths) -> None:
        self._lengths = lengths
        self._bb = relax.BlockBuilder()
        self._values: dict[Any, Any] = {}
        self._padded: dict[Any, Any] = {}
        """Scores and probabilities, with padding."""
        self._more: dict[Any, tuple[int, int]] = {}
        """Rows and keys by which probabilities have been padded."""
        self._seen = 0
        self._before: list[Any] = []

    def rewritten(self, binding: Any) -> list[Any]:
        self._before = []
        value = self._rewritten(binding.var, binding.value)
        self._values[binding.var] = value
        return [*self._before, binding if value is binding.value else relax.VarBinding(binding.var, value)]

    def _rewritten(self, var: Any, value: Any) -> Any:
        if (shape := _softmax_shape(value)) is not None:
            self._seen += 1
            return self._softmax(var, value, shape, self._lengths.get(self._seen - 1, (False, False)))
        if not isinstance(value, Call):
            return value
        more = self._more.get(value.args[0]) if value.args else None
        if more is None:
            return value
        if op_name(value) == "relax.matmul":
            return self._product(value, more)
        if op_name(value) in _ELEMENTWISE and shape_of(var) == shape_of(value.args[0]):
            self._more[var] = more
        return value

    def _softmax(self, var: Any, call: Call, shape: tuple[int, ...], symbolic: tuple[bool, bool]) -> Any:
        if not any(symbolic) or not self._is_of_product(call.args[0], shape):
            return call
        more = (-shape[-2] % ROWS if symbolic[0] else 0, -shape[-1] % KEYS if symbolic[1] else 0)
        scores = self._with_padding(call.args[0], shape, more)
        if symbolic[1]:
            seen = make_const(np.zeros((*(1 for _ in shape[:-1]), shape[-1]), dtype_of(call)))
            hidden = self._emit(_padding(seen, (0, more[1]), -np.inf))
            scores = self._emit(relax.op.add(scores, hidden))
        self._padded[var] = self._emit(relax.op.nn.softmax(scores, axis=-1))
        self._more[var] = more
        return self._bb.normalize(_cut(self._padded[var], shape))

    def _product(self, call: Call, more: tuple[int, int]) -> Any:
        """Probabilities times values, of which rows of zeros are read where there are no keys."""
        left, out = call.args[0], shape_of(call)
        shape = shape_of(left)
        assert shape is not None
        assert out is not None
        whole = self._with_padding(left, shape, more)
        values = self._operand(call.args[1], (more[1], 0))
        return self._bb.normalize(_cut(self._emit(relax.op.matmul(whole, values, out_dtype=call.attrs.out_dtype)), out))

    def _is_of_product(self, expr: Expr, shape: tuple[int, ...]) -> bool:
        value: Any = self._values.get(expr, expr)
        if op_name(value) == "relax.matmul":
            return True
        return op_name(value) in _ELEMENTWISE and any(
            self._is_of_product(arg, shape) for arg in value.args if shape_of(arg) == shape
        )

    def _with_padding(self, expr: Expr, shape: tuple[int, ...], more: tuple[int, int]) -> Any:
        """What has the scores' shape is computed with padding; what is read beside it is padded with zeros."""
        if expr in self._padded:
            return self._padded[expr]
        value: Any = self._values.get(expr, expr)
        if shape_of(expr) == shape and op_name(value) == "relax.matmul":
            left = self._operand(value.args[0], (more[0], 0))
            right = self._operand(value.args[1], (0, more[1]))
            made = self._emit(relax.op.matmul(left, right, out_dtype=value.attrs.out_dtype))
        elif shape_of(expr) == shape and op_name(value) in _ELEMENTWISE:
            args = [self._with_padding(arg, shape, more) for arg in value.args]
            made = self._emit(Call(value.op, args, value.attrs, value.ty_args))
        else:
            made = self._beside(expr, shape, more)
        self._padded[expr] = made
        return made

    def _operand(self, expr: Expr, more: tuple[int, int]) -> Any:
        """A product's operand with padding; where it is turned, what is turned: turning it belongs to the product."""
        value: Any = self._values.get(expr, expr)
        if op_name(value) != "relax.permute_dims":
            return self._emit(_padding(expr, more))
        axes = [int(axis) for axis in value.attrs.axes]
        extra = dict(zip(axes[-2:], more, strict=True))
        widths = [width for axis in range(len(axes)) for width in (0, extra.get(axis, 0))]
        padded = self._emit(relax.op.nn.pad(value.args[0], widths, "constant", 0.0))
        return self._emit(relax.op.permute_dims(padded, axes))

    def _beside(self, expr: Expr, shape: tuple[int, ...], more: tuple[int, int]) -> Any:
        own = shape_of(expr) or ()
        is_along = [axis <= len(own) and own[-axis] == shape[-axis] > 1 for axis in (2, 1)]
        if not any(is_along):
            return expr
        widths = (more[0] if is_along[0] else 0, more[1] if is_along[1] else 0)
        if dtype_of(expr) == "bool":
            wide = self._emit(_padding(self._emit(relax.op.astype(expr, "uint8")), widths))
            return self._emit(relax.op.astype(wide, "bool"))
        return self._emit(_padding(expr, widths))

    def _emit(self, expr: Any) -> Any:
        typed = self._bb.normalize(expr)
        var = relax.DataflowVar(f"padded_{len(self._values)}", typed.ty)
        self._values[var] = typed
        self._before.append(relax.VarBinding(var, typed))
        return var


def _padding(expr: Expr, more: tuple[int, int], fill: float = 0.0) -> Any:
    """`expr` with so many rows and columns behind its last ones."""
    shape: Sequence[int] = shape_of(expr) or ()
    widths = [0] * 2 * len(shape)
    for axis, extra in ((2, more[0]), (1, more[1])):
        if axis <= len(shape):
            widths[2 * (len(shape) - axis) + 1] = extra
    return relax.op.nn.pad(expr, widths, "constant", fill)


def _cut(expr: Expr, shape: tuple[int, ...]) -> Any:
    """The first rows and columns of `expr`."""
    axes = [len(shape) - 2, len(shape) - 1]
    return relax.op.strided_slice(expr, axes, [0, 0], [shape[axis] for axis in axes])

"""Norms between products, without a kernel of their own: the one product takes its rows' moments, the other uses them.

    x = f(matmul(..));  matmul(norm(x), W)
    ->  means, squares = row_moments(x);  scale = row_scales(means, squares)
        matmul(x, V) * scale + b @ W        V = g * W, less the mean of each column

A row's mean is a multiple of ones, which V takes to nothing: so there is no shift. `row_moments` are taken where the
rows are made, and `row_scales` where they are used, if the groups of `alternatives_norm` win. An element that is read
otherwise, as a residual, is normalised where it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call

from subtune.core.forms import Forms
from subtune.core.graph import Kind
from subtune.core.numerics import HALVES
from subtune.passes.exprs import Expr, array_of, dtype_of, make_const, op_name, shape_of
from subtune.passes.fold_batch_norm import rounded_once
from subtune.passes.fold_norms import NORM_OPS, is_over_last
from subtune.passes.opkind import kind_of
from subtune.passes.rewriter import with_blocks
from subtune.tir.row_moments import COLUMNS, MOMENTS, SCALES, row_moments, row_scales

_MIN_ROWS = 1024
"""Below, other kernels are the fastest products, which know no moments."""
_MAKING_UP = 64
_FAR = 8  # ops between a product and the cast of what it makes


def carry_norms(mod: tvm.IRModule, forms: Forms) -> tvm.IRModule:
    """Norms of what a product makes, read by products and residuals alone, as moments and scales of rows."""
    blocks = list(mod["main"].body.blocks)
    if not forms.carries_norms or len(blocks) != 1 or not isinstance(blocks[0], relax.DataflowBlock):
        return mod
    graph = _Graph.of(list(blocks[0].bindings), mod["main"].body.body)
    found = _carried(graph, forms.normed_columns)
    if not found:
        return mod
    builder = _Builder(mod)
    biases: dict[Any, tuple[Any, np.ndarray, Any]] = {}
    for binding in blocks[0].bindings:
        value = binding.value
        norm = found.get(value.args[0]) if isinstance(value, Call) and len(value.args) > 0 else None
        if binding.var in biases:
            builder.bind(binding.var, builder.biased(*biases[binding.var]))
        elif norm is None:
            builder.bindings.append(binding)
        elif op_name(value) == "relax.matmul":
            given = graph.bias_of(binding.var) if norm.shift is not None else None
            builder.bind(binding.var, builder.product(norm, value, is_shifted=given is None))
            if given is not None:
                var, bias = given
                biases[var] = binding.var, bias + builder.shift_of(norm, value), None
        else:
            other = graph.biased_beside(binding.var, found) if norm.shift is not None else None
            builder.bind(binding.var, builder.element(norm, is_shifted=other is None))
            if other is not None and norm.shift is not None:
                var, product, bias = other
                biases[var] = product, bias + norm.shift, binding.var
    changed = with_blocks(builder.module(), [relax.DataflowBlock(builder.bindings)])
    return relax.transform.DeadCodeElimination()(changed)


@dataclass(frozen=True, slots=True)
class _Norm:
    """Of `x`, [rows, columns] of a half; `scale` and `shift` are float64, none where it has none."""

    x: Expr
    epsilon: float
    is_centred: bool
    scale: np.ndarray
    shift: np.ndarray | None


@dataclass(frozen=True, slots=True)
class _Graph:
    """What each variable is bound to, and what reads it."""

    defs: dict[Any, Any]
    users: dict[Any, list[tuple[Any, Any]]]

    @classmethod
    def of(cls, bindings: list[Any], result: Expr) -> _Graph:
        graph = cls({binding.var: binding.value for binding in bindings}, {})
        for var, value in (*graph.defs.items(), (None, result)):
            for part in value.args if isinstance(value, Call) else [value]:
                graph._note(part, (var, value))
        return graph

    def _note(self, expr: Any, user: tuple[Any, Any]) -> None:
        if isinstance(expr, relax.Var):
            self.users.setdefault(expr, []).append(user)
        elif isinstance(expr, relax.Tuple):
            for part in expr.fields:
                self._note(part, user)

    def _only_reader(self, var: Any) -> tuple[Any, Any]:
        readers = self.users.get(var, [])
        return readers[0] if len(readers) == 1 else (None, None)

    def bias_of(self, product: Any) -> tuple[Any, np.ndarray] | None:
        """The only reader of `product`, and the numbers of its columns that it adds; None if it is none such."""
        var, add = self._only_reader(product)
        found = _bias_in(add)
        return None if found is None else (var, found[1])

    def biased_beside(self, element: Any, carried: Container[Any]) -> tuple[Any, Any, np.ndarray] | None:
        """The sum that alone reads `element`, what else it adds but for a bias, and this; None if it is none such.

        None as well where that is a product of what is `carried`, whose bias is another one then.
        """
        var, add = self._only_reader(element)
        if op_name(add) != "relax.add":
            return None
        others = [arg for arg in add.args if not arg.same_as(element)]
        if len(others) != 1 or len(self.users.get(others[0], [])) != 1:
            return None
        found = _bias_in(self.defs.get(others[0]))
        if found is None or shape_of(found[0]) != shape_of(element):
            return None
        product: Any = self.defs.get(found[0])
        return None if op_name(product) == "relax.matmul" and product.args[0] in carried else (var, *found)


def _bias_in(add: Expr) -> tuple[Expr, np.ndarray] | None:
    """What `add` adds numbers of its columns to, and these."""
    if op_name(add) != "relax.add":
        return None
    arrays = [array_of(arg) for arg in add.args]
    shape = shape_of(add)
    for array, other in zip(arrays, reversed(add.args), strict=True):
        if array is not None and array.ndim and shape is not None and array.size == array.shape[-1] == shape[-1]:
            return other, array.astype(np.float64).reshape(-1)
    return None


def _carried(graph: _Graph, most_columns: int) -> dict[Any, _Norm]:
    """By the variable that holds a norm as halves."""
    found = {}
    for var, value in graph.defs.items():
        norm = _norm_of(graph.defs, value, most_columns)
        reads = [user for _, user in graph.users.get(var, [])]
        is_multiplied = any(op_name(user) == "relax.matmul" for user in reads)
        if norm is not None and is_multiplied and all(_is_carried(var, user) for user in reads):
            found[var] = norm
    return found


def _norm_of(defs: dict[Any, Any], cast: Expr, most_columns: int) -> _Norm | None:
    """What `cast` is a norm of, if it is one of the halves that a product makes."""
    norm = _argument(defs, cast, "relax.astype")
    if op_name(norm) not in NORM_OPS or dtype_of(cast) not in HALVES:
        return None
    wide = defs.get(norm.args[0], norm.args[0])
    x = wide.args[0] if op_name(wide) == "relax.astype" else None
    shape = None if x is None else shape_of(x)
    if x is None or shape is None or len(shape) != 2 or dtype_of(x) != dtype_of(cast):
        return None
    rows, columns = shape
    if rows < _MIN_ROWS or columns % COLUMNS or columns <= most_columns or not is_over_last(norm, len(shape)):
        return None
    params = [_constant(defs, arg) for arg in norm.args[1:]]
    if any(param is None for param in params) or not _is_product(defs, x, shape):
        return None
    scale, *shift = (np.asarray(p).astype(np.float64).reshape(-1) for p in params)
    is_centred = op_name(norm) == "relax.nn.layer_norm"
    has_shift = any(part.any() for part in shift)
    return _Norm(x, float(norm.attrs.epsilon), is_centred, scale, shift[0] if has_shift else None)


def _argument(defs: dict[Any, Any], call: Expr, op: str) -> Expr:
    return defs.get(call.args[0], call.args[0]) if op_name(call) == op else call


def _constant(defs: dict[Any, Any], expr: Expr) -> np.ndarray | None:
    """The array of a constant, widened or not."""
    return array_of(_argument(defs, defs.get(expr, expr), "relax.astype"))


def _is_product(defs: dict[Any, Any], x: Expr, shape: tuple[int, ...]) -> bool:
    """Whether `x` is a product of halves with a constant matrix, and what follows element by element."""
    at = [(x, 0)]
    while at:
        expr, far = at.pop()
        value = defs.get(expr)
        if not isinstance(value, Call) or shape_of(value) != shape or far > _FAR:
            continue
        if op_name(value) == "relax.matmul":
            if _is_of_halves(value):
                return True
        elif kind_of(op_name(value).removeprefix("relax."), has_legalization=True) is Kind.ELEMENTWISE:
            at += [(arg, far + 1) for arg in value.args]
    return False


def _is_of_halves(product: Call) -> bool:
    weight = array_of(product.args[1])
    return weight is not None and weight.ndim == 2 and dtype_of(product.args[0]) in HALVES


def _is_carried(norm: Expr, user: Expr) -> bool:
    """Whether what reads `norm`, halves, can read what it is a norm of."""
    if op_name(user) == "relax.matmul":
        return bool(user.args[0].same_as(norm)) and not user.args[1].same_as(norm) and _is_of_halves(user)
    return op_name(user) == "relax.astype" and dtype_of(user) == "float32"


class _Builder:
    """Bindings, and the functions that they call."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self.bindings: list[Any] = []
        self._mod = mod
        self._builder = relax.BlockBuilder()
        self._functions: dict[tuple[Any, ...], Any] = {}
        self._moments: dict[Any, Any] = {}

    def module(self) -> tvm.IRModule:
        functions = {**dict(self._mod.functions_items()), **dict(self._builder.get().functions_items())}
        return tvm.IRModule(functions, attrs=self._mod.attrs, global_infos=self._mod.global_infos)

    def bind(self, var: Any, expr: Expr) -> None:
        self.bindings.append(relax.VarBinding(var, self._builder.normalize(expr)))

    def shift_of(self, norm: _Norm, call: Call) -> np.ndarray:
        """What the norm's shift adds to each column of the product `call`, in float64."""
        weight = array_of(call.args[1])
        assert weight is not None
        assert norm.shift is not None
        return norm.shift @ weight.astype(np.float64)

    def product(self, norm: _Norm, call: Call, is_shifted: bool) -> Expr:
        """`call`, a product of the norm's rows, as one of what these are made of; `is_shifted`: with `shift_of`."""
        weight = array_of(call.args[1])
        assert weight is not None
        folded = centred(weight, norm.scale) if norm.is_centred else rounded_once(weight, norm.scale[:, None])
        scale, _ = self._scales(norm, has_shift=False)
        product = self._emit(Call(call.op, [norm.x, make_const(folded)], call.attrs, call.ty_args))
        value = relax.op.multiply(product, scale)
        if norm.shift is not None and is_shifted:
            value = relax.op.add(self._emit(value), _row(self.shift_of(norm, call)))
        return value

    def biased(self, product: Expr, bias: np.ndarray, element: Expr | None) -> Expr:
        """`product` and `bias`, and `element` where there is one."""
        value = relax.op.add(product, _row(bias))
        return value if element is None else relax.op.add(self._emit(value), element)

    def element(self, norm: _Norm, is_shifted: bool) -> Expr:
        """Its elements, of float32; without the norm's own shift unless `is_shifted`."""
        scale, shift = self._scales(norm, has_shift=norm.is_centred)
        value = relax.op.multiply(self._emit(relax.op.astype(norm.x, "float32")), scale)
        if shift is not None:
            value = relax.op.add(self._emit(value), shift)
        if (norm.scale != 1.0).any():
            value = relax.op.multiply(self._emit(value), self._narrow(norm.scale, dtype_of(norm.x)))
        if norm.shift is not None and is_shifted:
            value = relax.op.add(self._emit(value), _row(norm.shift))
        return value

    def _narrow(self, array: np.ndarray, half: str) -> Expr:
        """Numbers of the columns, read as halves where these are the same."""
        halved = array.astype(half)
        if not np.array_equal(halved.astype(np.float64), array):
            return _row(array)
        return self._emit(relax.op.astype(make_const(halved), "float32"))

    def _scales(self, norm: _Norm, has_shift: bool) -> tuple[Expr, Expr | None]:
        """For one reader: each can compute them by itself."""
        rows, columns = shape_of(norm.x) or ()
        if norm.x not in self._moments:
            made = self._call(MOMENTS, row_moments, (rows, columns, dtype_of(norm.x)), [norm.x],
                              [(rows, columns // COLUMNS)] * 2)  # fmt: skip
            self._moments[norm.x] = [self._emit(relax.TupleGetItem(made, i)) for i in range(2)]
        given = (rows, columns, norm.epsilon, norm.is_centred, has_shift)
        made = self._call(SCALES, row_scales, given, self._moments[norm.x], [(rows, 1)] * (1 + has_shift))
        if not has_shift:
            return made, None
        return self._emit(relax.TupleGetItem(made, 0)), self._emit(relax.TupleGetItem(made, 1))

    def _call(
        self, name: str, make: Callable[..., Any], given: tuple[Any, ...], args: list[Expr], shapes: list[Any]
    ) -> Expr:
        if (name, *given) not in self._functions:
            self._functions[(name, *given)] = self._builder.add_func(make(*given).without_attr("global_symbol"), name)
        types = [relax.TensorType(shape, "float32") for shape in shapes]
        return self._emit(relax.call_tir(self._functions[(name, *given)], args, types if len(types) > 1 else types[0]))

    def _emit(self, expr: Expr) -> Expr:
        call = self._builder.normalize(expr)
        self.bindings.append(relax.VarBinding(relax.DataflowVar(f"carried{len(self.bindings)}", call.ty), call))
        return self.bindings[-1].var


def centred(weight: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """`weight` [k, n] times `factor` [k], less the mean of each column, in weight's type: columns add up to nothing.

    What is lost when the elements are rounded would add up, and be multiplied by a row's mean. The last rows are
    rounded to make up for it: each by a small part of what its own rounding loses.
    """
    wide = np.multiply(weight, factor[:, None], dtype=np.float64)
    wide -= wide.mean(axis=0)
    found = wide.astype(weight.dtype)
    count = min(_MAKING_UP, len(wide))
    begin = len(wide) - count
    left = -found[:begin].astype(np.float64).sum(axis=0) - wide[begin:].sum(axis=0)
    for i in range(count):
        found[begin + i] = wide[begin + i] + left / (count - i)
        left -= found[begin + i].astype(np.float64) - wide[begin + i]
    return found


def _row(array: np.ndarray) -> Expr:
    return make_const(array.astype(np.float32))

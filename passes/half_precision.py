"""Half precision: matrix products and convolutions of bfloat16 or float16, all else in float32, halves in between.

    conv2d(x, w) -> add(b) -> relu -> layer_norm
->  conv2d(x16, w16, out_dtype=float32) -> add(b) -> relu -> astype(bfloat16)  |  astype(float32) -> layer_norm -> ...

The casts stand where the partition of the float32 model ends its groups, so that they become epilogues and prologues
of the same groups: activations travel through memory as bfloat16, and inside a kernel nothing is rounded but the
operands of a product. Inputs and results of the model keep their types. With float16 it is the same.

A model that is in a half already was widened (`subtune.passes.widen`), and goes the same way: its inputs are halves
that nobody has to round, its tables of embeddings stay as small as they were, and the regions that it computes in
float32 keep that in memory too. Loops that an importer wrote keep their types.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, IRModule

from subtune.core.forms import Forms
from subtune.core.graph import Group, Kind, OpNode, Origin, PartitionGraph, Value
from subtune.passes.exprs import CONVOLUTIONS, array_of, convolved, op_name
from subtune.passes.float_regions import without_borders
from subtune.passes.halves import half_of
from subtune.passes.opkind import LOOKUPS
from subtune.passes.outline_main import assemble, same_call
from subtune.passes.partition import partition
from subtune.passes.partition_read import Dataflow, Resolved, flatten, read_dataflow
from subtune.passes.partition_rules import is_expanding
from subtune.passes.recurrences import is_recurrence, recurrence_call

_FULL = "float32"


def settle_precision(mod: IRModule, asked: str, forms: Forms) -> IRModule:
    """A normalised module -> the one that is partitioned.

    Args:
        asked: the type of products that the user wants, "" for the model's own.
        forms: of the device; the products of a model in a half that it lacks are made in float32.
    """
    own = half_of(mod)
    half = asked or (own if own in forms.halves else "")
    return to_half(mod, half, forms.multiplies_groups) if half else without_borders(mod)[0]


def to_bfloat16(mod: IRModule) -> IRModule:
    """A normalised module -> the same in bfloat16 mode, ready for the partition."""
    return to_half(mod, "bfloat16")


def to_half(mod: IRModule, half: str, with_groups: bool = False) -> IRModule:
    """A normalised module -> the same with products of `half` (bfloat16 or float16), those of groups among them."""
    mod, kept = without_borders(mod)
    flow = read_dataflow(mod)
    full = frozenset(value for var in kept for value in flatten(flow.resolved.get(var)))
    return _Writer(mod, flow, partition(mod), half, with_groups, full).write(mod)


class _Writer:
    """Writes the new main. `_full` holds every float32 tensor as computed, `_half` those that exist in half."""

    def __init__(
        self,
        mod: IRModule,
        flow: Dataflow,
        graph: PartitionGraph,
        half: str,
        with_groups: bool,
        kept: frozenset[Value],
    ) -> None:
        self._flow, self._graph, self._dtype, self._kept = flow, graph, half, kept
        self._with_groups = with_groups
        loops = {gvar: func for gvar, func in mod.functions_items() if isinstance(func, tvm.tirx.PrimFunc)}
        self._bb = relax.BlockBuilder(IRModule(loops))
        self._full: dict[Value, Any] = {}
        self._half: dict[Value, Any] = {}
        self._widened: dict[tuple[str, Value], Any] = {}
        self._rounded: dict[Value, Any] = {}
        self._is_exact: dict[Value, bool] = {}
        self._group = {name: group for group in graph.groups for name in group.ops}

    def write(self, mod: IRModule) -> IRModule:
        main = self._flow.func
        for param in main.params:
            if isinstance(value := self._flow.resolved[param], Value):
                self._full[value] = param
        attrs = {key: main.attrs[key] for key in main.attrs.keys()} if main.attrs else {}  # noqa: SIM118
        with self._bb.function("main", list(main.params), attrs=attrs):
            with self._bb.dataflow():
                for name in self._flow.dag:
                    self._write_op(self._graph.op(name))
                output = self._bb.emit_output(assemble(self._flow.result, lambda value: self._own(value, None)))
            self._bb.emit_func_output(output)
        made = self._bb.get()
        for key in mod.attrs.keys() if mod.attrs else ():
            made = made.with_attr(key, mod.attrs[key])
        return relax.transform.DeadCodeElimination(["main"])(made)

    def _write_op(self, node: OpNode) -> None:
        group, call = self._group.get(node.name), self._flow.calls[node.name]
        if node.op == "astype" and self._is_settled(node):
            return
        if node.kind is Kind.CONTRACTION and self._is_in_half(node, call):
            self._define(node, self._contraction(node, call, group), group)
            return
        if is_recurrence(call) and node.outputs[0].dtype == _FULL:
            self._define(node, self._recurrence(node, call), group)
            return
        if self._moves_halves(node):
            args = [self._rebuilt(arg, lambda value: self._moved(value, node, group)) for arg in call.args]
            self._define(node, self._bb.emit(tvm.ir.Call(call.op, args, call.attrs, call.ty_args)), group)
            if node.kind is not Kind.VIEW or not all(v in self._full for v in node.inputs if v.origin is Origin.OP):
                return
        args = [self._rebuilt(arg, lambda value: self._own(value, group)) for arg in call.args]
        self._define(node, self._bb.emit(same_call(call, args), node.name), group)

    def _is_settled(self, node: OpNode) -> bool:
        """Whether a cast between float32 and the half needs no operator: the value exists in that type."""
        source, made = node.inputs[0], Value(Origin.OP, node.name, node.output)
        if (source.tensor.dtype, node.output.dtype) == (self._dtype, _FULL) and made not in self._kept:
            self._half[made] = self._own(source, None)
            return True
        if (source.tensor.dtype, node.output.dtype) == (_FULL, self._dtype) and source in self._half:
            self._full[made] = self._half[source]
            return True
        return False

    def _is_in_half(self, node: OpNode, call: Call) -> bool:
        if len(node.inputs) < 2:  # an einsum that adds up one operand
            return False
        if Value(Origin.OP, node.name, node.output) in self._kept or self._reads_bits(node):
            return False
        return _is_dense(node, call, self._with_groups)

    def _reads_bits(self, node: OpNode) -> bool:
        """Whether the weights are made of constants of few bits, in float32: nothing is won by rounding them."""
        made = node.inputs[1]
        while made.origin is Origin.OP:
            op = self._graph.op(made.source)
            if op.op != "permute_dims":
                return is_expanding(op) and op.output.dtype == _FULL
            made = op.inputs[0]
        return False

    def _contraction(self, node: OpNode, call: Call, group: Group | None) -> Any:
        data, weight = (self._narrow(value, group) for value in node.inputs[:2])
        if node.op == "matmul":
            return self._bb.emit(relax.op.matmul(data, weight, _FULL), node.name)
        return self._bb.emit(convolved(call, data, weight, out_dtype=_FULL), node.name)

    def _recurrence(self, node: OpNode, call: Call) -> Any:
        """Weights, what travels and the hidden states in half; biases, and the states at both ends, as they are."""
        given = [value for arg in call.args[1:] for value in flatten(self._flow.values_of(arg))]
        args = [self._narrow(value, None) if i < 2 else self._own(value, None) for i, value in enumerate(given)]
        first, *rest = call.ty.fields
        return self._bb.emit(
            recurrence_call(args, call.attrs, [relax.TensorType(first.shape, self._dtype), *rest]), node.name
        )

    def _moves_halves(self, node: OpNode) -> bool:
        """Whether the op only moves elements, and all the float32 it moves exists in half."""
        if (node.kind not in (Kind.MOVEMENT, Kind.VIEW) and node.op not in LOOKUPS) or node.op.startswith("tir."):
            return False
        floats = [value for value in node.inputs if value.tensor.dtype == _FULL]
        if not floats or any(value not in self._half and not self._is_half_table(node, value) for value in floats):
            return False
        if node.op == "nn.pad":  # before a depthwise window, padding what is widened already costs less
            users = [self._graph.op(user) for user in self._flow.dag.successors(node.name)]
            return any(
                user.kind is Kind.CONTRACTION and self._is_in_half(user, self._flow.calls[user.name]) for user in users
            )
        return True

    def _define(self, node: OpNode, var: Any, group: Group | None) -> None:
        """Enter what an op made; what leaves its group in float32 gets its half."""
        values = flatten(self._flow.outputs[node.name])
        single = isinstance(self._flow.outputs[node.name], Value)
        for i, value in enumerate(values):
            made = var if single else self._bb.emit(relax.TupleGetItem(var, i))
            if value.tensor.dtype == _FULL and str(made.ty.dtype) == self._dtype:
                self._half[value] = made
                continue
            self._full[value] = made
            travels = group is not None and value in group.outputs and value not in self._graph.results
            travels = travels and value not in self._kept
            if value.tensor.dtype == _FULL and travels:
                self._half[value] = self._bb.emit(relax.op.astype(made, self._dtype))

    def _own(self, value: Value, group: Group | None) -> Any:
        """`value` in its own type, as `group` (or what stays in main) reads it."""
        if value.origin is Origin.CONSTANT:
            return self._constant(value)
        is_inside = group is not None and value.source in group.ops
        if value not in self._half or (value in self._full and (group is None or is_inside)):
            return self._full[value]
        key = (group.anchor if group is not None else "", value)
        if key not in self._widened:
            self._widened[key] = self._bb.emit(relax.op.astype(self._half[value], _FULL))
        return self._widened[key]

    def _constant(self, value: Value) -> Any:
        """A constant in its own type; what hides scores, -3.4e38, as the half's least number: where all scores of a row
        are hidden, infinite ones make NaN of it, finite ones a mean."""
        constant = self._flow.constants[value.source]
        if value.tensor.dtype != _FULL:
            return constant
        array, most = array_of(constant), np.float32(ml_dtypes.finfo(self._dtype).max)
        assert array is not None, f"{value.source} is no constant"
        is_beyond = (np.abs(array) > most) & np.isfinite(array)
        return relax.const(np.where(is_beyond, np.sign(array) * most, array)) if is_beyond.any() else constant

    def _moved(self, value: Value, node: OpNode, group: Group | None) -> Any:
        """`value` as an op reads it that moves halves: an index, say, in its own type."""
        if self._is_half_table(node, value):
            return self._narrow(value, group)
        return self._half[value] if value in self._half else self._own(value, group)

    def _is_half_table(self, node: OpNode, value: Value) -> bool:
        """Whether `value` is a constant that a gather reads, and loses nothing in half."""
        if node.op not in LOOKUPS or value.origin is not Origin.CONSTANT or value.tensor.dtype != _FULL:
            return False
        if len(self._group[node.name].ops) > 1:
            return False  # the rest of its group would have to widen what it makes, and a group ends there
        if value not in self._is_exact:
            array = array_of(self._flow.constants[value.source])
            assert array is not None, f"{value.source} is no constant"
            halved = array.astype(_numpy_dtype(self._dtype)).astype(_FULL)
            self._is_exact[value] = np.array_equal(halved, array, equal_nan=True)
        return self._is_exact[value]

    def _narrow(self, value: Value, group: Group | None) -> Any:
        """`value` in half, an operand of a product."""
        if value.origin is Origin.CONSTANT:
            array = array_of(self._flow.constants[value.source])
            assert array is not None, f"{value.source} is no constant"
            return relax.const(array.astype(_numpy_dtype(self._dtype)), self._dtype)
        if value in self._half:
            return self._half[value]
        if value not in self._rounded:
            self._rounded[value] = self._bb.emit(relax.op.astype(self._own(value, group), self._dtype))
        return self._rounded[value]

    def _rebuilt(self, arg: Any, leaf: Any) -> Any:
        resolved: Resolved = self._flow.values_of(arg)
        return arg if resolved is None or resolved == () else assemble(resolved, leaf)


def _numpy_dtype(half: str) -> Any:
    return ml_dtypes.bfloat16 if half == "bfloat16" else half


def _is_dense(node: OpNode, call: Call, with_groups: bool) -> bool:
    """Whether the products are of float32 and long enough for pairs: not depthwise, not one channel.

    With `with_groups` those of grouped convolutions count, if a group has several channels on both sides.
    """
    if any(value.tensor.dtype != _FULL or not value.tensor.is_static for value in node.inputs[:2]):
        return False
    if node.op == "matmul":
        return all(len(value.tensor.shape) >= 2 for value in node.inputs) and int(node.inputs[0].tensor.shape[-1]) > 1
    if op_name(call) not in CONVOLUTIONS or not str(call.attrs.data_layout).endswith("C"):
        return False
    channels, groups = int(node.inputs[0].tensor.shape[-1]), int(call.attrs.groups)
    if groups == 1:
        return channels > 1
    return with_groups and min(channels, int(node.output.shape[-1])) // groups > 1

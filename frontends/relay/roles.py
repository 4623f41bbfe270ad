"""Which parameters of `main` are the model's inputs and which are its weights, where nobody says so.

A parameter of which a size is not known (`?`) is an input, as weights have all of theirs. The walk follows every other
one through the operators that only move or rescale it, to where it meets the data:

1. Used as a weight (a convolution's kernel, a bias, a table's rows): a weight, first in line or not. Named as PyTorch's
   importer names a module's own tensors: the same.
2. Integers and truth values: an input.
3. Used as the data of such an operator, or of a pooling, a softmax, ...: an input.
4. Broadcast against computed values, with at most one dimension above 1 or two of 1: a weight, unless its name is an
   input's (`mask`).
5. The first parameter: an input.
6. Names decide: `weight`, `gamma`, `running_mean` ... are weights, others inputs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from subtune.frontends.relay.nodes import Constant, Function, Missing, Module, Tensor, Type, Var
from subtune.frontends.relay.walk import walk

Source: TypeAlias = Var | Missing

_CONV_WEIGHTS = {f"nn.{kind}": (1,) for kind in (
    "conv1d", "conv2d", "conv3d", "conv1d_transpose", "conv2d_transpose", "conv3d_transpose", "dense", "matmul",
    "contrib_dense_pack", "contrib_conv2d_NCHWc", "contrib_depthwise_conv2d_NCHWc", "bias_add", "prelu", "sparse_dense",
)}  # fmt: skip

WEIGHT_OPERANDS: Mapping[str, tuple[int, ...]] = {
    **_CONV_WEIGHTS,
    "nn.deformable_conv2d": (2,),
    "nn.batch_norm": (1, 2, 3, 4),
    "nn.layer_norm": (1, 2),
    "nn.group_norm": (1, 2),
    "nn.instance_norm": (1, 2),
    "qnn.conv2d": (1, 2, 3, 4, 5),
    "qnn.conv2d_transpose": (1, 2, 3, 4, 5),
    "qnn.dense": (1, 2, 3, 4, 5),
    "qnn.batch_matmul": (2, 3, 4, 5),
    "qnn.requantize": (1, 2, 3, 4),
    "qnn.quantize": (1, 2),
    "qnn.dequantize": (1, 2),
    **{f"qnn.{op}": (2, 3, 4, 5, 6, 7) for op in ("add", "subtract", "multiply")},
    "qnn.concatenate": (1, 2, 3, 4),
    **{f"qnn.{op}": (1, 2, 3, 4) for op in ("sigmoid", "tanh", "sqrt", "rsqrt", "exp", "erf", "hardswish", "softmax")},
}

_LAYOUT = frozenset(
    "transpose reshape squeeze expand_dims cast layout_transform copy strided_slice split concatenate stack "
    "broadcast_to broadcast_to_like reshape_like slice_like cast_like "
    "tile repeat reverse nn.batch_flatten nn.pad contrib_reverse_reshape negative abs exp "
    "nn.dropout clip annotation.stop_fusion on_device device_copy identity gather gather_nd take "
    "nn.contrib_conv2d_winograd_weight_transform nn.conv2d_winograd_weight_transform".split()
)
_QUANTISING = frozenset(("qnn.quantize", "qnn.dequantize", "qnn.requantize"))
_POSITIVE = frozenset(("sqrt", "rsqrt", "log", "log2", "log10"))
_BINARY = frozenset("add subtract multiply divide maximum minimum power".split())

_OWNED_NAME = re.compile(r"(aten|quantized|torchvision)(::|__)\w+[._]\w")
"""What PyTorch's importer calls a module's own tensors: `aten::add_3.anchors`, by their first use."""

_INPUT_NAME = re.compile(r"input|data|mask|hidden|state|cache|image|ids\b|token_type|pixel|position_ids|past", re.I)
_WEIGHT_NAME = re.compile(
    r"weight|kernel|bias|gamma|beta|mean|var(iance)?\b|scale|embed|running|alpha|proj|param|conv|norm|(^|_|\.)bn|"
    r"[_.][wb]\d*$|^w\d*$|(^|_)fc|dense|table|anchor|^onnx::",
    re.I,
)


@dataclass(slots=True)
class Use:
    """What is known of one parameter.

    Attributes:
        weight: operator and operand that it is the weight of first, with the operator's attributes.
        is_data: an operator computes with it as its data. is_broadcast: a vector against something larger.
        is_factor: it multiplies (or divides) what it is broadcast against.
        is_positive: a root or a logarithm is taken of it.
    """

    weight: tuple[str, int, Mapping[str, Any]] | None = None
    is_data: bool = False
    is_broadcast: bool = False
    is_factor: bool = False
    is_positive: bool = False


@dataclass(frozen=True, slots=True)
class _Flow:
    """A value: the parameters that it is made of if it is made of them alone, else none.

    `is_mixed`: of several that are no vectors, so that not all of them need be what the value is used as.
    """

    sources: frozenset[Source] = frozenset()
    is_mixed: bool = False
    is_constant: bool = False


_COMPUTED = _Flow()
_CONSTANT = _Flow(is_constant=True)


def uses(module: Module, main: Function) -> dict[Source, Use]:
    """What becomes of every parameter of `main` and of every constant without data, by node."""
    meaning = _Uses({var: Use() for var in main.params})
    walk(module, main, [_Flow(frozenset([var])) for var in main.params], meaning)
    return meaning.found


def is_weight(var: Var, use: Use, is_first: bool) -> bool:
    """The rule at the head of this file."""
    if isinstance(var.type, Tensor) and None in var.type.shape:
        return False
    if use.weight or (_OWNED_NAME.match(var.name) and not is_first):
        return True
    if isinstance(var.type, Tensor) and not var.type.dtype.startswith(("float", "bfloat")):
        return use.is_broadcast and bool(_WEIGHT_NAME.search(var.name)) and not is_first
    if use.is_data:
        return False
    if use.is_broadcast:
        return bool(_WEIGHT_NAME.search(var.name)) or not _INPUT_NAME.search(var.name)
    return not is_first and bool(_WEIGHT_NAME.search(var.name))


@dataclass(slots=True)
class _Uses:
    """The meaning of a walk that only looks (`walk.Meaning`)."""

    found: dict[Source, Use]
    _missing: dict[Missing, _Flow] = field(default_factory=dict)

    def constant(self, node: Constant | Missing) -> _Flow:
        if isinstance(node, Constant):
            return _CONSTANT
        self.found.setdefault(node, Use())
        return _Flow(frozenset([node]))

    def call(self, op: str, args: tuple[Any, ...], attrs: Mapping[str, Any], at: str) -> _Flow:
        flows = [_joined(arg) for arg in args]
        weights = WEIGHT_OPERANDS.get(op, ())
        if op in ("take", "embedding") and len(flows) > 1 and not flows[1].is_constant:
            weights = (0,)
        if op == "nn.batch_matmul" and len(flows) > 1 and flows[1].sources and self._is_matrix(flows[1]):
            weights = (1,)
        if op in _QUANTISING and flows and flows[0].sources:  # PyTorch's float weights, quantised in the graph
            for index, flow in enumerate(flows[1:], 1):
                self._note(flow, op, index, attrs, True)
            return flows[0]
        if weights:
            for index, flow in enumerate(flows):
                self._note(flow, op, index, attrs, index in weights)
            return _COMPUTED
        if op in _POSITIVE and flows:
            for source in flows[0].sources:
                self.found[source].is_positive = True
            return flows[0]
        if op in _BINARY and len(flows) == 2:
            return self._binary(op, flows[0], flows[1])
        if op in _LAYOUT and flows:
            return flows[0] if op != "take" else _joined(args[0])
        for flow in flows:
            if not flow.is_mixed:
                for source in flow.sources:
                    self.found[source].is_data = True
        return _COMPUTED

    def _note(self, flow: _Flow, op: str, index: int, attrs: Mapping[str, Any], as_weight: bool) -> None:
        for source in flow.sources:
            use = self.found[source]
            if as_weight:
                use.weight = use.weight or (op, index, attrs)
            elif not flow.is_mixed:
                use.is_data = True

    def _binary(self, op: str, left: _Flow, right: _Flow) -> _Flow:
        if left.is_constant or right.is_constant:
            return right if left.is_constant else left
        is_factor = op in ("multiply", "divide")
        vectors = [bool(flow.sources) and all(map(_is_vector, flow.sources)) for flow in (left, right)]
        if all(vectors):
            return _Flow(left.sources | right.sources, left.is_mixed or right.is_mixed)
        for flow, other, is_vector in ((left, right, vectors[0]), (right, left, vectors[1])):
            for source in flow.sources if is_vector or not other.sources else ():
                if is_vector or _is_stretched(source):
                    self.found[source].is_broadcast = True
                    self.found[source].is_factor |= is_factor
        if not left.sources or not right.sources:
            return _COMPUTED
        if any(vectors):
            return left if vectors[1] else right
        return _Flow(left.sources | right.sources, left.sources != right.sources)

    def _is_matrix(self, flow: _Flow) -> bool:
        """Of one parameter with two dimensions above 1, as the weight of a linear layer is."""
        types = [source.type for source in flow.sources]
        return (
            len(types) == 1
            and isinstance(types[0], Tensor)
            and sum(dim != 1 for dim in types[0].shape) == 2
            and (len(types[0].shape) == 2 or types[0].shape[0] == 1)
        )

    def typed(self, value: Any, kind: Type) -> Any:
        return value

    def compare(self, value: Any, kind: Type, op: str, at: str) -> None:
        return None

    def project(self, value: _Flow, index: int, at: str) -> _Flow:
        return value

    def called(self, value: Any, at: str) -> _Flow:
        return _COMPUTED

    def decide(self, condition: _Flow) -> None:
        return None

    def join(self, condition: Any, then: Any, other: Any, at: str) -> _Flow:
        return _joined((then, other))

    def refuse(self, what: str, at: str, reason: str) -> _Flow:
        return _COMPUTED


def _is_vector(source: Source) -> bool:
    return isinstance(source.type, Tensor) and sum(dim != 1 for dim in source.type.shape) <= 1


def _is_stretched(source: Source) -> bool:
    """With two dimensions of extent 1, or more of them, as anchors have them to be broadcast."""
    return isinstance(source.type, Tensor) and sum(dim == 1 for dim in source.type.shape) > 1


def _joined(value: Any) -> _Flow:
    """One value for a tuple of them."""
    if not isinstance(value, tuple):
        return value  # type: ignore[no-any-return]
    flows = [_joined(item) for item in value]
    if not flows or not all(flow.sources or flow.is_constant for flow in flows):
        return _COMPUTED
    sources = frozenset().union(*(flow.sources for flow in flows))
    return _Flow(sources, any(flow.is_mixed for flow in flows), all(flow.is_constant for flow in flows))

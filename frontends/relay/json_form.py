"""`tvm.ir.save_json` of a Relay module, TVM 0.6 to 0.18 -> `nodes`.

A document is a list of nodes that name one another by number; node 0 is null. A node's attributes are all strings, and
only their names tell a number from the number of a node.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from subtune.core.errors import ModelError
from subtune.frontends.relay.nodes import (
    Call,
    Constant,
    Expr,
    Function,
    Global,
    If,
    Let,
    Module,
    Op,
    OtherType,
    Project,
    Tensor,
    TupleExpr,
    TupleOf,
    Type,
    Unknown,
    Var,
)
from subtune.frontends.relay.params import read_tensor

_FLOATS = frozenset(
    "a_max a_min alpha beta bias cubic_alpha dilation_value eps epsilon extrapolation_value iou_threshold mask_value "
    "pad_value rate scale_d scale_h scale_w score_threshold spatial_scale threshold variance".split()
)
_BOOLS = frozenset(
    "align_corners allowzero auto_batch ceil_mode center clip constrain_body constrain_result count_include_pad "
    "exclude force_suppress invalid_to_bottom iou_loss is_ascend is_lshift_required is_multiply is_rshift_required "
    "keep_background keepdims lower normalized onesided return_counts return_indices right scale select_last_index "
    "sorted sparse_lhs sub_diag_right_align super_diag_right_align transpose_a transpose_b unbiased unipolar "
    "upper".split()
)
_INTS = frozenset(
    "activation_bits batch_axis bit_axis bits block_size convolution_algorithm coord_start cubic_exclude data_bits "
    "deformable_groups depth feature_stride groups hop_length id_index ignore_index k1 k2 lhs_axis lhs_begin "
    "max_detections max_detections_per_class max_displacement multiplier n_fft num_classes num_groups num_newaxis "
    "pack_axis rhs_axis rhs_begin rpn_min_size rpn_post_nms_top_n rpn_pre_nms_top_n sample_ratio score_index shift "
    "stride1 stride2 tile_K tile_N tile_size top_k weight_bits win_length".split()
)
# Of these names some operators have a plain integer, others an object.
_INT_AXIS = frozenset(
    f"relay.attrs.{name}Attrs"
    for name in (
        "Argsort Topk BiasAdd Softmax FIFOBuffer PRelu BatchNorm InstanceNorm LayerNorm GroupNorm LRN SlidingWindow "
        "ExpandDims Concatenate Split SequenceMask OneHot Quantize Dequantize Requantize SimulatedQuantize"
    ).split()
)
_INT_SIZES = {("relay.attrs.LRNAttrs", "size"), ("relay.attrs.CorrelationAttrs", "kernel_size")}
_MAX_DEPTH = 50
_DAMAGED = (KeyError, IndexError, ValueError, TypeError, AttributeError, struct.error, RecursionError)


def read_json(text: str) -> Module:
    """The module of a JSON document; a lone function or expression is its `main`.

    Raises ModelError: it is no such document, or damaged.
    """
    return _guarded(text, lambda document: document.module())


def read_metadata(text: str) -> dict[str, list[Any]]:
    """The metadata section of a text: type key -> its objects, constants as arrays and attributes as dictionaries."""
    return _guarded(text, lambda document: document.metadata())


def _guarded(text: str, read: Callable[[_Document], Any]) -> Any:
    try:
        return read(_Document(json.loads(text)))
    except json.JSONDecodeError as error:
        raise ModelError(f"The Relay JSON is damaged at line {error.lineno}, column {error.colno}.") from error
    except _DAMAGED as error:
        detail = " ".join(str(error).split())[:200]
        raise ModelError(f"The JSON is not what tvm.ir.save_json writes of Relay: {detail}.") from error


class _Document:
    def __init__(self, data: Mapping[str, Any]) -> None:
        if not isinstance(data, dict) or "nodes" not in data or "root" not in data:
            if isinstance(data, dict) and "arg_nodes" in data:
                raise ValueError("this is the graph of a build, which holds no model any more; save the module instead")
            raise ValueError("it has no nodes")
        self._nodes: Sequence[Mapping[str, Any]] = data["nodes"]
        self._root = int(data["root"])
        self._blobs: Sequence[str] = data.get("b64ndarrays", ())
        self._made: dict[int, Expr] = {}
        self._arrays: dict[int, np.ndarray] = {}
        self._constructors: dict[str, str] = {}

    def _key(self, index: int) -> str:
        return str(self._nodes[_natural(index)].get("type_key", ""))

    def _attr(self, index: int, name: str) -> str:
        return str(self._nodes[_natural(index)]["attrs"][name])

    def _name(self, index: int, attr: str) -> str:
        """A string, which stands there itself (0.6), or in a node of its own."""
        text = self._attr(index, attr)
        if (
            text.isascii()
            and text.isdecimal()
            and 0 < int(text) < len(self._nodes)
            and _is_string(self._key(int(text)))
        ):
            return self._string(int(text))
        return text

    def _string(self, index: int) -> str:
        """Of what is no printable text its length (eight bytes) and its bytes are given, in base 64."""
        node = self._nodes[index]
        if "repr_b64" in node:
            return base64.b64decode(str(node["repr_b64"]))[8:].decode()
        return str(node.get("repr_str", ""))

    def _child(self, index: int, *names: str) -> int:
        """The number of the node that an attribute names; 0 where there is none."""
        attrs = self._nodes[_natural(index)].get("attrs", {})
        found = next((attrs[name] for name in names if name in attrs), "0")
        return 0 if found == "null" else _natural(int(found))

    def _items(self, index: int) -> list[int]:
        return [_natural(int(i)) for i in self._nodes[_natural(index)].get("data", ())]

    # Module and metadata

    def module(self) -> Module:
        key = self._key(self._root)
        if key in ("IRModule", "relay.Module"):
            return self._module(self._root)
        root = self.expr(self._root)
        return Module({"main": root if isinstance(root, Function) else Function((), root, f"node {self._root}")})

    def _module(self, root: int) -> Module:
        functions: dict[str, Function] = {}
        others: dict[str, str] = {}
        for name, index in self._functions(self._child(root, "functions")):
            key = self._key(index)
            if key != "relay.Function":
                others[name] = f"a {key}"
                continue
            made = self.expr(index)
            assert isinstance(made, Function)
            functions[name] = made
        return Module(functions, self._constructors, others)

    def _functions(self, index: int) -> list[tuple[str, int]]:
        """A map whose keys are global variables: keys and values in turn."""
        keys = self._nodes[index].get("keys")
        items = self._items(index)
        if keys:
            return [(str(key), item) for key, item in zip(keys, items, strict=True)]
        return [(self._name(key, "name_hint"), item) for key, item in zip(items[::2], items[1::2], strict=True)]

    def metadata(self) -> dict[str, list[Any]]:
        node = self._nodes[self._root]
        if self._key(self._root) != "Map":
            raise ValueError("the metadata section is no map")
        found = {}
        for key, index in zip(node.get("keys", ()), self._items(self._root), strict=True):
            found[str(key)] = [self.value(item) for item in self._items(index)]
        return found

    # Expressions

    def expr(self, root: int) -> Expr:
        """The expression of a node, without recursion: models are thousands of calls deep."""
        stack, open_nodes = [root], set[int]()
        while stack:
            index = stack[-1]
            if index in self._made:
                stack.pop()
                continue
            wanted = [child for child in self._operands(index) if child not in self._made]
            if not wanted:
                self._made[index] = self._expr(index)
                open_nodes.discard(index)
                stack.pop()
                continue
            if index in open_nodes and open_nodes.intersection(wanted):
                raise ValueError(f"node {index} contains itself")
            open_nodes.add(index)
            stack += reversed(wanted)
        return self._made[root]

    def _operands(self, index: int) -> list[int]:
        match self._key(index):
            case "relay.Call":
                return [self._child(index, "op"), *self._items(self._child(index, "args"))]
            case "relay.Function":
                return [*self._items(self._child(index, "params")), self._child(index, "body")]
            case "relay.Let":
                return [self._child(index, name) for name in ("var", "value", "body")]
            case "relay.If":
                return [self._child(index, name) for name in ("cond", "true_branch", "false_branch")]
            case "relay.Tuple":
                return self._items(self._child(index, "fields"))
            case "relay.TupleGetItem":
                return [self._child(index, "tuple_value", "tuple")]
            case _:
                return []

    def _expr(self, index: int) -> Expr:
        at = f"node {index}"
        made = [self._made[child] for child in self._operands(index)]
        match self._key(index):
            case "relay.Call":
                attrs = self._child(index, "attrs")
                values = self.value(attrs) if attrs else {}
                kind = self.type(self._child(index, "_checked_type_"))
                return Call(made[0], tuple(made[1:]), values if isinstance(values, dict) else {}, at, kind)
            case "relay.Function":
                params = tuple(var for var in made[:-1] if isinstance(var, Var))
                return Function(params, made[-1], at)
            case "relay.Let":
                if not isinstance(made[0], Var):
                    raise ValueError(f"{at} binds no variable")
                return Let(made[0], made[1], made[2], at)
            case "relay.If":
                return If(made[0], made[1], made[2], at)
            case "relay.Tuple":
                return TupleExpr(tuple(made), at)
            case "relay.TupleGetItem":
                return Project(made[0], int(self._attr(index, "index")), at)
            case "relay.Var":
                identity = self._child(index, "vid")
                name = self._name(identity if identity else index, "name_hint")
                annotation = self.type(self._child(index, "type_annotation"))
                return Var(name, annotation or self.type(self._child(index, "_checked_type_")), at)
            case "relay.Constant":
                return Constant(self._array(int(self._attr(index, "data"))), at)
            case "Op" | "relay.Op":
                node = self._nodes[index]
                return Op(str(node.get("repr_str") or node["global_key"]), at)
            case "GlobalVar" | "relay.GlobalVar":
                return Global(self._name(index, "name_hint"), at)
            case "relay.Constructor" | "Constructor":
                name = self._name(index, "name_hint")
                self._constructors[name] = "a data type"
                return Op(name, at)
            case key:
                return Unknown(key.removeprefix("relay.").lower() or "null", at)

    def _array(self, index: int) -> np.ndarray:
        if index not in self._arrays:
            self._arrays[index] = read_tensor(base64.b64decode(self._blobs[_natural(index)], validate=True))[0]
        return self._arrays[index]

    # Types and attributes

    def type(self, index: int, depth: int = 0) -> Type:
        if depth > _MAX_DEPTH:
            raise ValueError(f"the type at node {index} is nested too deeply")
        match self._key(index):
            case "" | "relay.IncompleteType" | "IncompleteType":
                return None
            case "relay.TensorType":
                dims = [self.value(item) for item in self._items(self._child(index, "shape"))]
                shape = tuple(dim if isinstance(dim, int) else None for dim in dims)
                return Tensor(shape, self._attr(index, "dtype"))
            case "TupleType" | "relay.TupleType":
                fields = self._items(self._child(index, "fields"))
                return TupleOf(tuple(self.type(field, depth + 1) for field in fields))
            case key:
                return OtherType(key)

    def value(self, index: int, depth: int = 0) -> Any:
        """A Python value: of attributes a dictionary; None of what has no value (symbolic dimensions)."""
        if depth > _MAX_DEPTH:
            raise ValueError(f"node {index} is nested too deeply")
        node = self._nodes[_natural(index)]
        key = self._key(index)
        text = str(node.get("repr_str", ""))
        match key:
            case "Array":
                return [self.value(item, depth + 1) for item in self._items(index)]
            case "Map":
                values = [self.value(item, depth + 1) for item in self._items(index)]
                return dict(zip(map(str, node.get("keys", ())), values, strict=False))
            case "IntImm" | "relay.IntImm" | "SizeVar.IntImm":
                value = int(self._attr(index, "value"))
                return bool(value) if self._attr(index, "dtype") == "bool" else value
            case "FloatImm":
                return float(self._attr(index, "value"))
            case "StringImm" | "tir.StringImm":
                return self._name(index, "value")
            case _ if _is_string(key):
                return self._string(index)
            case "runtime.BoxInt":
                return int(text)
            case "runtime.BoxBool":
                return text.lower() in ("1", "true")
            case "runtime.BoxFloat":
                return float(text)
            case "relay.Constant":
                return self._array(int(self._attr(index, "data")))
            case "DictAttrs":
                return self.value(self._child(index, "__dict__"), depth + 1) or {}
            case "GlobalVar":
                return self._name(index, "name_hint")
            case _ if "attrs." in key.lower() or key.endswith("Attrs"):
                attrs = node.get("attrs", {})
                return {name: self._attribute(key, name, str(given), depth) for name, given in attrs.items()}
            case _:
                return None

    def _attribute(self, key: str, name: str, text: str, depth: int) -> Any:
        if name in _FLOATS:
            return float(text)
        if name in _BOOLS:
            return bool(int(text))
        if name in _INTS or (name == "axis" and _plain(key) in _INT_AXIS) or (key, name) in _INT_SIZES:
            return int(text)
        if not text.isascii() or not text.isdecimal():
            return None if text == "null" else text
        return self.value(int(text), depth + 1)


def _is_string(key: str) -> bool:
    return key in ("runtime.String", "ffi.String")


def _plain(key: str) -> str:
    return key.replace("relay.qnn.attrs.", "relay.attrs.").replace("qnn.attrs.", "relay.attrs.")


def _natural(index: int) -> int:
    """A number of a node, which must not count from the end."""
    if index < 0:
        raise IndexError(f"there is no node {index}")
    return index

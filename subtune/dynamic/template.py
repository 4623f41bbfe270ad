"""What several PrimFuncs have in common: a template whose numbers are polynomials in symbols (anti-unification).

    for i in range(154): y[i * 768 + j]      seq = 154
    for i in range(182): y[i * 768 + j]      seq = 182      ->  for i in range(seq): y[i * 768 + j]
    for i in range(238): y[i * 768 + j]      seq = 238

A workload, or a kernel that a schedule made of it, is compared with those of other instances in TVM's JSON, node by
node. Where only whole numbers differ, and each is a polynomial of the symbols, the template stands for all
instances: every family's schedules serve dynamic shapes without knowing of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import tvm_ffi
from tvm.tirx import PrimFunc
from tvm_ffi.serialization import from_json_graph_str, to_json_graph_str

from subtune.core.dims import Dim, quotient
from subtune.core.kernel import NotApplicable
from subtune.core.variants import GREATEST
from subtune.dynamic.fit import DIVISORS, NO_STEPS, Fitter

_OBJECT = 64
"""tvm_ffi's least static type index of what is an object: a field of it is a node's number in JSON."""
_ANY = -1
_CONTAINERS = frozenset(("ffi.Array", "ffi.Map", "ffi.List", "ffi.Dict"))
_OF_BUFFERS = frozenset(("tirx.BufferType", "tirx.Iter"))
"""Types whose numbers are a buffer's."""
_NAMES = frozenset(("name", "name_hint", "thread_tag"))
"""Fields that name what is told apart by itself."""
_ANYTHING = Dim.number(0)
"""In the place of a dim that nobody asks for."""

Graph = Mapping[str, Any]
"""An object in TVM's JSON: its `nodes`, and the `root_index` among them."""


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """`nodes` of TVM's JSON; `holes` are those of whole numbers that depend on symbols. It is equal to itself alone."""

    nodes: tuple[Any, ...]
    root: int
    holes: Mapping[int, Dim]

    @property
    def symbols(self) -> tuple[str, ...]:
        return tuple(sorted({name for dim in self.holes.values() for name in dim.symbols}))

    def at(self, values: Mapping[str, int]) -> Any:
        """The object at one instance."""
        nodes = list(self.nodes)
        for hole, dim in self.holes.items():
            value: float = dim.at(values)
            if nodes[hole]["type"] == "ir.FloatImm":
                value = float(value)
            else:
                nodes.append({"type": "int", "data": value})
                value = len(nodes) - 1
            nodes[hole] = {**nodes[hole], "data": {**nodes[hole]["data"], "value": value}}
        return _loaded(nodes, self.root)

    def symbolic(self, names: Sequence[str], greatest: Mapping[str, int], is_lowered: bool = True) -> PrimFunc:
        """The PrimFunc of all instances: its first parameters are the values of `names`, as int64.

        Buffers have the size that they have at the `greatest` instance, which an attribute tells.

        Args:
            is_lowered: False keeps the sizes of arguments symbolic, as their elements are yet to be counted; the first
                parameters are int32 then, with bounds (`n % 1024`) wherever they are used, for TVM to count in 32 bits.
        """
        limits = {} if is_lowered else {name: 1 << greatest[name].bit_length() for name in names}
        writer = _Writer(list(self.nodes), names, limits)
        numbers = {hole: dim.at(greatest) for hole, dim in self.holes.items()}
        kept = frozenset() if is_lowered else self._of_params()
        for at, node in enumerate(self.nodes):
            if node["type"] in _OF_BUFFERS and at not in kept:
                writer.settle(at, numbers)
        for hole, dim in self.holes.items():
            writer.fill(hole, dim)
        func, *leading = _loaded(writer.nodes, writer.together(self.root))
        made = PrimFunc([*leading, *func.params], func.body, func.ret_type, func.attrs)
        return made.with_attr(GREATEST, [greatest[name] for name in names])

    def _of_params(self) -> frozenset[int]:
        """The types of a PrimFunc's parameters."""
        params = self.nodes[self.nodes[self.root]["data"]["params"]]["data"]
        return frozenset(self.nodes[param]["data"]["ty"] for param in params)


def generalised(
    objects: Sequence[Any],
    points: Sequence[Mapping[str, int]],
    divisors: Sequence[int] = DIVISORS,
    sums: Sequence[Dim] = (),
    steps: Mapping[str, int] = NO_STEPS,
) -> Template | NotApplicable:
    """The template of `objects`, one at each of `points`; or where they differ by more than polynomials.

    Args:
        divisors, sums, steps: as of `Fitter`.
    """
    return template_of([graph_of(one) for one in objects], points, divisors, sums, steps)


def graph_of(one: Any) -> Graph:
    graph: Graph = json.loads(to_json_graph_str(one))
    return graph


def template_of(
    graphs: Sequence[Graph],
    points: Sequence[Mapping[str, int]],
    divisors: Sequence[int] = DIVISORS,
    sums: Sequence[Dim] = (),
    steps: Mapping[str, int] = NO_STEPS,
) -> Template | NotApplicable:
    """As `generalised`, of objects in JSON."""
    return _Walk(graphs, Fitter(points, divisors, sums, steps).fit).result()


def difference(graphs: Sequence[Graph], in_numbers: bool = False) -> NotApplicable | None:
    """Where objects differ by more than integers, whatever these are, or by those as well; None: nowhere."""
    found = _Walk(graphs, lambda _: None if in_numbers else _ANYTHING).result()
    return found if isinstance(found, NotApplicable) else None


class _Walk:
    """Several graphs walked together. A node of the template stands for one node of each.

    Args:
        fit: the dim of an integer that is not the same everywhere; None: there is none.
    """

    def __init__(self, graphs: Sequence[Graph], fit: Callable[[Sequence[int]], Dim | None]) -> None:
        self._nodes = [graph["nodes"] for graph in graphs]
        self._roots = tuple(graph["root_index"] for graph in graphs)
        self._fit = fit
        self._made: dict[tuple[int, ...], int] = {}
        self._out: list[Any] = []
        self._holes: dict[int, Dim] = {}

    def result(self) -> Template | NotApplicable:
        try:
            root = self._visit(self._roots)
        except _Differs as difference:
            return NotApplicable(f"the instances differ by more than extents: {difference}")
        return Template(tuple(self._out), root, self._holes)

    def _visit(self, places: tuple[int, ...]) -> int:
        known = self._made.get(places)
        if known is not None:
            return known
        nodes = [of[at] for of, at in zip(self._nodes, places, strict=True)]
        kind = nodes[0]["type"]
        if any(node["type"] != kind for node in nodes):
            raise _Differs(" or ".join(sorted({node["type"] for node in nodes})))
        hole = self._hole(kind, nodes)
        made = self._merged(kind, nodes, hole is not None)
        self._out.append(made)
        at = self._made[places] = len(self._out) - 1
        if hole is not None:
            self._holes[at] = hole
        return at

    def _merged(self, kind: str, nodes: Sequence[Any], is_hole: bool) -> Any:
        data = [node.get("data") for node in nodes]
        if is_hole:
            return {"type": kind, "data": {**self._fields(kind, data, skip="value"), "value": 0}}
        if kind in _CONTAINERS:
            if len({len(one) for one in data}) > 1:
                raise _Differs(f"so many items of an array: {sorted({len(one) for one in data})}")
            rows = list(zip(*data, strict=True))
            for row in rows:
                self._check_texts("item", kind, row)
            return {"type": kind, "data": [self._visit(row) for row in rows]}
        if isinstance(data[0], dict):
            return {"type": kind, "data": self._fields(kind, data)}
        if any(one != data[0] for one in data) and kind != "ffi.String":
            raise _Differs(f"{kind} {', '.join(str(one)[:20] for one in data)}")
        return nodes[0]

    def _hole(self, kind: str, nodes: Sequence[Any]) -> Dim | None:
        """The polynomial of a whole number that is not the same everywhere; a mean divides by a float."""
        if kind == "ir.IntImm":
            values = [graph[node["data"]["value"]]["data"] for graph, node in zip(self._nodes, nodes, strict=True)]
        elif kind == "ir.FloatImm":
            values = [node["data"]["value"] for node in nodes]
        else:
            return None
        if len(set(values)) == 1 or any(value != value // 1 for value in values):
            return None
        found = self._fit([int(value) for value in values])
        if found is None:
            raise _Differs(f"{', '.join(map(str, values))} is no polynomial of the symbols")
        return found

    def _fields(self, kind: str, data: Sequence[Any], skip: str = "") -> dict[str, Any]:
        inline = _inline(kind)
        fields: dict[str, Any] = {}
        for name, first in data[0].items():
            if name == skip:
                continue
            values = tuple(one[name] for one in data)
            if name not in _NAMES:
                self._check_texts(name, kind, values)
            if name in inline or not isinstance(first, int) or isinstance(first, bool):
                if any(value != first for value in values):
                    raise _Differs(f"{name} of {kind}: {', '.join(map(str, values))}")
                fields[name] = first
            else:
                fields[name] = self._visit(values)
        return fields

    def _check_texts(self, name: str, kind: str, values: Sequence[Any]) -> None:
        """Texts are the same at all instances, but for names: they may say what is called, and with which numbers."""
        if any(not isinstance(value, int) for value in values):
            return
        nodes = [graph[value] for graph, value in zip(self._nodes, values, strict=True) if value < len(graph)]
        texts = {str(node["data"]) for node in nodes if node["type"] == "ffi.String"}
        if len(texts) > 1:
            raise _Differs(f"{name} of {kind}: {' or '.join(sorted(texts))[:80]}")


class _Writer:
    """Adds expressions to the nodes of a template.

    Args:
        limits: what some symbols, which are int32, are below.
    """

    def __init__(self, nodes: list[Any], names: Sequence[str], limits: Mapping[str, int]) -> None:
        self.nodes = nodes
        self._nothing = self._add({"type": "None"})
        self._wide, self._narrow = (
            self._add({"type": "ir.PrimType", "data": {"span": self._nothing, "dtype": dtype}})
            for dtype in ("int64", "int32")
        )
        self._variables = [self._variable(_label(name), name in limits) for name in names]
        self._symbols = {
            name: self._limited(var, limits[name]) if name in limits else var
            for name, var in zip(names, self._variables, strict=True)
        }

    def together(self, root: int) -> int:
        """An array of what `root` is and of the variables."""
        return self._add({"type": "ffi.Array", "data": [root, *self._variables]})

    def fill(self, hole: int, dim: Dim) -> None:
        """Put the expression of `dim` in the place of an integer, as wide as that is."""
        of_type, found = self.nodes[hole]["data"]["ty"], self._expression(dim)
        is_wide = self.nodes[of_type] == self.nodes[self._wide] and found not in self._variables
        self.nodes[hole] = dict(self.nodes[found]) if is_wide else self._cast(found, of_type)

    def settle(self, at: int, numbers: Mapping[int, int]) -> None:
        """Numbers in the place of the holes in a buffer's type."""
        self.nodes[at] = {**self.nodes[at], "data": dict(self.nodes[at]["data"])}
        data = self.nodes[at]["data"]
        for name in {"shape", "strides", "extent", "stride", "elem_offset"} & set(data):
            data[name] = self._settled(data[name], numbers)

    def _settled(self, at: int, numbers: Mapping[int, int]) -> int:
        node = self.nodes[at]
        if at in numbers:
            number = self._add({"type": "int", "data": numbers[at]})
            return self._add({**node, "data": {**node["data"], "value": number}})
        if node["type"] == "ffi.Array":
            return self._add({**node, "data": [self._settled(one, numbers) for one in node["data"]]})
        return at

    def _expression(self, dim: Dim) -> int:
        total = None
        for monomial, factor in dim.terms:
            term = self._number(factor) if factor != 1 or not monomial else None
            for name in monomial:
                factor_of = self._symbol(name)
                term = factor_of if term is None else self._operation("prim.Mul", term, factor_of)
            assert term is not None
            total = term if total is None else self._operation("prim.Add", total, term)
        assert total is not None
        return total

    def _symbol(self, name: str) -> int:
        whole = quotient(name)
        if whole is None:
            return self._symbols[name]
        dividend = self._expression(whole.dividend)
        if whole.is_up:
            dividend = self._operation("prim.Add", dividend, self._number(whole.divisor - 1))
        return self._operation("prim.FloorDiv", dividend, self._number(whole.divisor))

    def _variable(self, name: str, is_narrow: bool) -> int:
        label, of_type = self._add({"type": "ffi.String", "data": name}), self._narrow if is_narrow else self._wide
        return self._add({"type": "ir.Var", "data": {"span": self._nothing, "ty": of_type, "name": label}})

    def _limited(self, var: int, limit: int) -> int:
        """The remainder by a number that the variable is below."""
        data = {"span": self._nothing, "ty": self._narrow}
        number = self._add({"type": "int", "data": limit})
        whole = self._add({"type": "ir.IntImm", "data": {**data, "value": number}})
        return self._add(
            self._cast(self._add({"type": "prim.FloorMod", "data": {**data, "a": var, "b": whole}}), self._wide)
        )

    def _cast(self, value: int, of_type: int) -> Any:
        return {"type": "prim.Cast", "data": {"span": self._nothing, "ty": of_type, "value": value}}

    def _number(self, value: int) -> int:
        number = self._add({"type": "int", "data": value})
        return self._add({"type": "ir.IntImm", "data": {"span": self._nothing, "ty": self._wide, "value": number}})

    def _operation(self, kind: str, a: int, b: int) -> int:
        return self._add({"type": kind, "data": {"span": self._nothing, "ty": self._wide, "a": a, "b": b}})

    def _add(self, node: Any) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1


class _Differs(Exception):
    """Where instances are no instances of one template."""


@cache
def _inline(kind: str) -> frozenset[str]:
    """Fields of a type whose numbers stand in JSON themselves; those of others are numbers of nodes."""
    info: Any = tvm_ffi.core._lookup_or_register_type_info_from_type_key(kind)
    found: set[str] = set()
    while info is not None:
        found |= {f.name for f in info.fields if _ANY < f.field_static_type_index < _OBJECT}
        info = info.parent_type_info
    return frozenset(found)


def _loaded(nodes: Sequence[Any], root: int) -> Any:
    return from_json_graph_str(json.dumps({"root_index": root, "nodes": list(nodes)}))


def _label(name: str) -> str:
    """Of a symbol's parameter: names of dims may be anything."""
    return f"extent_{name}"

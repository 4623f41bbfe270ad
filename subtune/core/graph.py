"""The partition of a model, and its subgraphs, as plain data: who belongs to which group, and why it ends there.

Where a rule is not sure, the partition has a `Region` with several `Alternative`s; measurements choose
(`subtune.tuning.choose`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any

import networkx as nx

from subtune.core.workload import Workload, dtype_bits


class Kind(Enum):
    """What the partition needs to know about an op."""

    CONTRACTION = "contraction"  # convolutions and matrix products
    REDUCTION = "reduction"  # sum, mean, max, argmax, …
    NORMALIZATION = "normalization"  # softmax, layer norm, …
    POOLING = "pooling"
    GATHER = "gather"  # indices are data
    OTHER = "other"  # lowered to one PrimFunc, alone
    ELEMENTWISE = "elementwise"  # broadcasting included
    MOVEMENT = "movement"  # injective, but the index changes: transpose, slice, concat, pad, …
    VIEW = "view"  # the bytes stay where they are
    OPAQUE = "opaque"  # TVM's own way, outside every kernel

    @property
    def is_anchor(self) -> bool:
        return self in _ANCHORS

    @property
    def is_injective(self) -> bool:
        return self in (Kind.ELEMENTWISE, Kind.MOVEMENT)


_ANCHORS = (Kind.CONTRACTION, Kind.REDUCTION, Kind.NORMALIZATION, Kind.POOLING, Kind.GATHER, Kind.OTHER)


@dataclass(frozen=True, slots=True)
class Tensor:
    """Shape and dtype of one value. Dims are ints; a symbolic dim is its name."""

    shape: tuple[int | str, ...]
    dtype: str

    @property
    def is_static(self) -> bool:
        return all(isinstance(dim, int) for dim in self.shape)

    @property
    def numel(self) -> int:
        """Number of elements; all dims must be static."""
        return prod(int(dim) for dim in self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * dtype_bits(self.dtype) // 8

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class Origin(Enum):
    """Who made a value."""

    OP = "op"
    INPUT = "input"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor in the graph: output `index` of the op, the model input or the constant called `source`."""

    origin: Origin
    source: str
    tensor: Tensor
    index: int = 0


@dataclass(frozen=True, slots=True)
class OpNode:
    """One Relax op of the model. `op` is its name without `relax.`; `name` says which one: `conv2d_3`.

    `keeps_rows` holds for a transpose that leaves the last axis last, and for a softmax along it. `movement` is the
    text of what an op that moves data moves where: its attributes and arguments that are no tensors. `reads` is how
    often the op's loops read one element of each input for each that they make.
    """

    name: str
    op: str
    kind: Kind
    inputs: tuple[Value, ...]
    outputs: tuple[Tensor, ...]
    keeps_rows: bool = False
    movement: str = ""
    reads: tuple[int, ...] = ()

    @property
    def output(self) -> Tensor:
        return self.outputs[0]

    @property
    def short(self) -> str:
        """The last part of the op's name: `conv2d` for `nn.conv2d`."""
        return self.op.rsplit(".", 1)[-1]


@dataclass(frozen=True, slots=True)
class Group:
    """Ops that become one PrimFunc.

    `ops` = prologue + anchor + epilogue in execution order. Of a run of injective ops without a true anchor, the
    anchor is its last op; of several anchors (a chain of contractions) the last contraction, and the others are part
    of the prologue. `outputs` are the values used outside; `boundary` says why the group ends where it does.
    """

    name: str
    anchor: str
    prologue: tuple[str, ...]
    epilogue: tuple[str, ...]
    ops: tuple[str, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    boundary: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Left:
    """An op that stays in main: a view, which costs nothing, or an opaque op, which TVM runs its own way."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class InFloats:
    """An operator of a quantised model that might compute in integers and does not. `name` is the model's own."""

    name: str
    op: str
    reason: str


@dataclass(frozen=True, slots=True)
class PartitionGraph:
    """Every op of main in exactly one group, or left in main.

    `dag` has op names as nodes, each with its `OpNode` as attribute `op`; an edge is a tensor that flows.
    `groups` are in execution order.
    """

    dag: nx.DiGraph
    groups: tuple[Group, ...]
    left: tuple[Left, ...]
    results: tuple[Value, ...]

    def op(self, name: str) -> OpNode:
        node: OpNode = self.dag.nodes[name]["op"]
        return node

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)

    def products(self) -> dict[str, int]:
        """How many matrix products and convolutions there are, by the type of their operands."""
        nodes = (self.op(name) for name in self.dag)
        types = (node.inputs[0].tensor.dtype for node in nodes if node.kind is Kind.CONTRACTION and node.inputs)
        return dict(Counter(types))

    def group_of(self, name: str) -> Group:
        """The group that holds op `name`; KeyError if it is left in main."""
        for group in self.groups:
            if name in group.ops:
                return group
        raise KeyError(f"{name} is in no group")

    def quotient(self) -> nx.DiGraph:
        """The graph of groups (each under its anchor's name) and of the ops left in main."""
        home = {op: group.anchor for group in self.groups for op in group.ops}
        result = nx.DiGraph()
        result.add_nodes_from(home.get(name, name) for name in self.dag)
        for user, consumer in self.dag.edges:
            a, b = home.get(user, user), home.get(consumer, consumer)
            if a != b:
                result.add_edge(a, b)
        return result


@dataclass(frozen=True, slots=True)
class Alternative:
    """One partition of a region: groups over its ops. `why` says what is gained if it wins.

    Views that it computes inside a group are among that group's ops; in other alternatives they stay in main.
    """

    name: str
    why: str
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """Neighbouring groups of a partition, and the alternatives to them; the first one is the partition's own."""

    name: str
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True)
class LoweredAlternative:
    """An alternative with its workloads' keys, one for each group; without keys, `refusal` says why there are none."""

    alternative: Alternative
    keys: tuple[str, ...]
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class LoweredRegion:
    """A region whose alternatives are lowered to workloads: ready to be measured."""

    name: str
    alternatives: tuple[LoweredAlternative, ...]


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A distinct workload of an outlined module. `name` is its GlobalVar, `uses` the number of its call sites."""

    name: str
    workload: Workload
    anchor: str
    ops: tuple[str, ...]
    uses: int
    position: int

    @property
    def flops(self) -> int:
        return self.workload.flops

    @property
    def nbytes(self) -> int:
        """Compulsory traffic of one call in bytes."""
        return self.workload.nbytes

    @property
    def intensity(self) -> float:
        """Arithmetic intensity in operations per byte."""
        return self.flops / self.nbytes if self.nbytes else 0.0

    def summary(self) -> dict[str, Any]:
        """Plain figures for reports."""
        return {
            "name": self.name,
            "key": self.workload.key,
            "anchor": self.anchor,
            "ops": list(self.ops),
            "uses": self.uses,
            "flops": self.flops,
            "nbytes": self.nbytes,
            "intensity": round(self.intensity, 3),
        }


@dataclass(frozen=True, slots=True)
class Alternatives:
    """What may be tried beside a partition: its regions, and the workloads that the partition itself lacks."""

    regions: tuple[LoweredRegion, ...]
    subgraphs: tuple[Subgraph, ...]

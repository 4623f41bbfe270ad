"""Groups while they grow: who is where, who reaches whom, who was refused and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import networkx as nx

from subtune.core.graph import OpNode, Origin, Value
from subtune.passes.partition_rules import is_widening


@dataclass(slots=True)
class Draft:
    """A group that is still growing."""

    anchor: str
    ops: set[str]
    is_anchored: bool
    epilogue: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    """Neighbour op -> the sentence that says why it stays out."""


class Drafts:
    """The partition under construction over `dag`.

    `rank` orders the ops by depth, then by place in main: a topological order in which the longer of two
    branches comes later. Reachability is kept between *groups* (as bit masks over ops, one mask a group, under
    the name of one of its ops), because a path may enter a group at one op and leave it at another.
    """

    def __init__(self, dag: nx.DiGraph, results: frozenset[tuple[str, int]]) -> None:
        self.dag = dag
        self.results = results
        position = {name: i for i, name in enumerate(dag)}
        depth: dict[str, int] = {}
        for name in nx.topological_sort(dag):
            depth[name] = 1 + max((depth[p] for p in dag.predecessors(name)), default=0)
        self.order = sorted(dag, key=lambda name: (depth[name], position[name]))
        self.rank = {name: i for i, name in enumerate(self.order)}
        self.home: dict[str, Draft] = {}
        self._root = {name: name for name in self.order}
        self._reach: dict[str, int] = {}
        for name in reversed(self.order):
            mask = 0
            for user in dag.successors(name):
                mask |= self._reach[user] | self._bit(user)
            self._reach[name] = mask

    def op(self, name: str) -> OpNode:
        node: OpNode = self.dag.nodes[name]["op"]
        return node

    def open(self, anchor: str, is_anchored: bool) -> Draft:
        assert anchor not in self.home, f"{anchor} is in two groups"
        draft = Draft(anchor, {anchor}, is_anchored)
        self.home[anchor] = draft
        return draft

    def join(self, draft: Draft, names: set[str]) -> None:
        """Take the ops `names` into `draft`."""
        for name in names:
            assert name not in self.home, f"{name} is in two groups"
            self.home[name] = draft
        draft.ops |= names
        self._merge_reach(draft.ops)

    def merge(self, kept: Draft, gone: Draft) -> None:
        """Take all of `gone` into `kept`."""
        for name in gone.ops:
            self.home[name] = kept
        kept.ops |= gone.ops
        kept.refused |= gone.refused
        self._merge_reach(kept.ops)

    def reaches(self, ops: set[str], target: str) -> bool:
        """True if a path leads from `ops` to `target`, through groups."""
        bit = self._bit(target)
        return any(self._reach[root] & bit for root in {self._root[op] for op in ops})

    def makes_cycle(self, ops: set[str], others: set[str]) -> bool:
        """True if merging the two sets would leave a path that goes out of the union and comes back."""
        return self._returns(ops, others) or self._returns(others, ops)

    def outputs(self, ops: set[str]) -> list[tuple[str, int]]:
        """The values (op, output index) of `ops` that are used outside, in rank order."""
        used = {
            (value.source, value.index)
            for name in ops
            for user in self.dag.successors(name)
            if user not in ops
            for value in self.op(user).inputs
            if value.origin is Origin.OP and value.source == name
        }
        used |= {result for result in self.results if result[0] in ops}
        return sorted(used, key=lambda item: (self.rank[item[0]], item[1]))

    def inputs(self, ops: set[str]) -> tuple[Value, ...]:
        """The values `ops` read from outside, each once, in order of first use."""
        values = (value for name in sorted(ops, key=self.rank.__getitem__) for value in self.op(name).inputs)
        return tuple(dict.fromkeys(v for v in values if v.origin is not Origin.OP or v.source not in ops))

    def copies(self, ops: set[str]) -> int:
        """How often the most repeated of `ops` is computed for an element, if each is computed where it is read.

        A value that is read twice by what is read twice makes four: a chain of n gates, 2 ** n. Anchors are computed
        once; a cast of what is loaded counts as little as the load.
        """
        counts = dict.fromkeys(ops, 0)
        for name in sorted(ops, key=self.rank.__getitem__, reverse=True):
            op = self.op(name)
            counts[name] = count = 1 if op.kind.is_anchor else max(counts[name], 1)
            for value, reads in zip(op.inputs, op.reads, strict=True):
                if value.origin is Origin.OP and value.source in ops:
                    counts[value.source] += count * reads
        return max((count for name, count in counts.items() if not is_widening(self.op(name))), default=0)

    def label(self, ops: Iterable[str]) -> str:
        """A readable name of at most about 70 characters for a group of `ops`, in their order."""
        shorts = [self.op(name).short for name in ops]
        base = "_".join(shorts)
        if len(base) <= 60 or len(shorts) == 1:
            return base[:60]
        shown = max(i for i in range(1, len(shorts)) if i == 1 or len("_".join(shorts[:i])) <= 48)
        return f"{'_'.join(shorts[:shown])}_and_{len(shorts) - shown}_more"

    def is_result(self, name: str) -> bool:
        return any(source == name for source, _ in self.results)

    def _returns(self, ops: set[str], others: set[str]) -> bool:
        return any(
            self.reaches(ops, pred)
            for name in others
            for pred in self.dag.predecessors(name)
            if pred not in ops and pred not in others
        )

    def _bit(self, name: str) -> int:
        return 1 << self.rank[name]

    def _merge_reach(self, ops: set[str]) -> None:
        reach = bits = 0
        for name in ops:
            bits |= self._bit(name)
        for root in {self._root[name] for name in ops}:
            reach |= self._reach.pop(root)
        kept = min(ops, key=self.rank.__getitem__)
        self._root.update(dict.fromkeys(ops, kept))
        self._reach[kept] = reach = reach | bits
        for root, mask in self._reach.items():
            if mask & bits:
                self._reach[root] = mask | reach

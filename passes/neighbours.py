"""What the search for alternatives asks of a partition: who feeds whom, through which views, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from subtune.core.graph import Group, Kind, OpNode, PartitionGraph
from subtune.passes.regroup import drafts_of


@dataclass(frozen=True, slots=True)
class Proposal:
    """Groups to try in place of those that hold `parts`' ops; views may move into a part.

    `stake_bytes` is the most that could be gained, in bytes moved: an estimate, to leave out what cannot matter.
    """

    name: str
    why: str
    parts: tuple[frozenset[str], ...]
    stake_bytes: int

    @property
    def ops(self) -> frozenset[str]:
        return frozenset().union(*self.parts)


@dataclass(frozen=True, slots=True)
class Link:
    """The only user of a group's only output: the group `user`, behind `views` (which have no other user)."""

    views: tuple[str, ...]
    user: Group


class Neighbours:
    """A partition, indexed for looking round in it."""

    def __init__(self, graph: PartitionGraph) -> None:
        self.graph = graph
        self.rank = drafts_of(graph).rank
        self.home = {op: group for group in graph.groups for op in group.ops}
        self._results = {value.source for value in graph.results}

    def op(self, name: str) -> OpNode:
        return self.graph.op(name)

    def anchor(self, group: Group) -> OpNode:
        return self.graph.op(group.anchor)

    def after(self, group: Group) -> Link | None:
        """The group's only reader; None if it has several, or results, or more than one output."""
        if len(group.outputs) != 1:
            return None
        name, views = group.outputs[0].source, []
        while True:
            users = [user for user in self.graph.dag.successors(name) if self.home.get(user) is not group]
            if name in self._results or not users:
                return None
            if len(users) == 1 and self.op(users[0]).kind is Kind.VIEW:
                views.append(name := users[0])
                continue
            homes = {id(self.home[user]): self.home[user] for user in users if user in self.home}
            # a group that reads its own output inside as well has written it for others
            if len(homes) != 1 or any(user not in self.home for user in users):
                return None
            return Link(tuple(views), next(iter(homes.values())))

    def before(self, group: Group) -> list[tuple[Group, Link]]:
        """The groups whose only reader is `group`, in order."""
        found: dict[str, tuple[Group, Link]] = {}
        for value in group.inputs:
            producer = self.home.get(self.behind_views(value.source))
            if producer is not None and (link := self.after(producer)) and link.user is group:
                found[producer.anchor] = producer, link
        return sorted(found.values(), key=lambda item: self.rank[item[0].anchor])

    def readers(self, group: Group) -> list[Group | None]:
        """The groups that read what `group` makes, in order; None: an op outside of all groups."""
        users = {user for value in group.outputs for user in self.graph.dag.successors(value.source)}
        homes = [self.home.get(user) for user in sorted(users - set(group.ops), key=self.rank.__getitem__)]
        return list({id(home): home for home in homes}.values())

    def feeding(self, group: Group) -> list[Group]:
        """The groups, of however many outputs, all of whose readers are `group`."""
        found = {home.anchor: home for v in group.inputs if (home := self.home.get(v.source)) is not None}
        return [other for other in found.values() if all(home is group for home in self.readers(other))]

    def fed(self, group: Group) -> list[Group]:
        """The groups that read nothing but what `group` makes."""
        made = {value.source for value in group.outputs}
        return [
            other for other in self.readers(group) if other is not None and {v.source for v in other.inputs} <= made
        ]

    def behind_views(self, name: str) -> str:
        """The op, or input, whose bytes `name` is a view of; itself if it is none."""
        while name in self.graph.dag and self.op(name).kind is Kind.VIEW:
            name = self.op(name).inputs[0].source
        return name

    def gives_result(self, group: Group) -> bool:
        """Whether the group's only output is a result of the model, and read by nobody here."""
        if len(group.outputs) != 1:
            return False
        name = group.outputs[0].source
        return name in self._results and not any(self.graph.dag.successors(name))

    def stored(self, ops: frozenset[str]) -> frozenset[str]:
        """Those of `ops` that others read, or that are results."""
        return frozenset(name for name in ops if name in self._results or set(self.graph.dag.successors(name)) - ops)

    def is_injective(self, group: Group) -> bool:
        return all(self.op(name).kind.is_injective for name in group.ops)

    def is_movement(self, group: Group) -> bool:
        return all(self.op(name).kind is Kind.MOVEMENT for name in group.ops)

    def operations(self, name: str) -> int:
        """Multiplications and additions of a contraction; one for each element read of everything else."""
        op = self.op(name)
        if not all(value.tensor.is_static for value in op.inputs) or not all(t.is_static for t in op.outputs):
            return 0
        if op.kind is not Kind.CONTRACTION or len(op.inputs) < 2:
            return sum(value.tensor.numel for value in op.inputs)
        left, right = op.inputs[0].tensor, op.inputs[1].tensor
        if op.op == "matmul":
            return 2 * op.output.numel * int(left.shape[-1])
        channels = next((int(d) for d in (op.output.shape[-1], op.output.shape[1]) if d in right.shape), 1)
        return 2 * op.output.numel * right.numel // max(channels, 1)


def nbytes(group: Group) -> int:
    """Bytes of a group's outputs."""
    return reduce(lambda total, value: total + value.tensor.nbytes, group.outputs, 0)


def pointwise_filters(anchor: OpNode) -> tuple[int | str, ...]:
    """Shape of a 1x1 convolution's weights, `[out, 1, 1, in]`; () for every other op."""
    filters = conv2d_filters(anchor)
    is_pointwise = len(filters) == 4 and filters[1:3] == (1, 1) and filters[3] == anchor.inputs[0].tensor.shape[-1]
    return filters if is_pointwise else ()


def conv2d_filters(anchor: OpNode) -> tuple[int | str, ...]:
    """Shape of a 2-d convolution's weights, `[out, kh, kw, in]`; () for every other op."""
    if anchor.kind is not Kind.CONTRACTION or anchor.op != "nn.conv2d" or len(anchor.inputs) < 2:
        return ()
    return anchor.inputs[1].tensor.shape

"""A compile's account of itself, for the artifact: the partition, what was tried, what decided."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from subtune.backends.base import Device
from subtune.core.account import Account, Decision, Node, Rival, Tried, TunedSubgraph
from subtune.core.candidate import DEFAULT
from subtune.core.graph import Alternatives, PartitionGraph, Subgraph
from subtune.core.measurement import Failure, Measurement, Timing
from subtune.core.record import Record
from subtune.database import Database
from subtune.passes.extract import call_names
from subtune.pipeline import Prepared
from subtune.tuning.choose import Choice
from subtune.tuning.roofline import position
from subtune.tuning.winners import Winners

_CANDIDATES = 1500
"""Listed of all subgraphs together: a quarter of a megabyte."""
_LEAST, _MOST = 6, 40
"""Listed of one subgraph."""
_NODES = 4000
"""More are not drawn by anybody."""
_CHARS = 160
_PAUSE_S = 30.0
"""Between two outcomes: longer than that, nobody was tuning."""

_Dated = tuple[float, Measurement]


@dataclass(frozen=True, slots=True)
class Tuning:
    """Where the figures come from: `found` by the search, what `ships`, the database with all that was tried, and the
    seconds of the stages that are over."""

    found: Mapping[str, Record]
    ships: Winners
    device: Device
    store: Database
    seconds: Mapping[str, float] = field(default_factory=dict)

    def tried(self, subgraphs: Iterable[Subgraph]) -> dict[str, tuple[_Dated, ...]]:
        """Candidates with outcomes and when these were stored, by workload key."""
        scope = self.device.scope()
        return {one.workload.key: self.store.dated_measurements(one.workload.key, scope) for one in subgraphs}


def account(prepared: Prepared, others: Alternatives, choices: Sequence[Choice], tuning: Tuning) -> Account:
    """Of a model of one shape.

    Args:
        prepared: the model under the partition that ships.
        others: the alternatives; kernels that were not tuned are left out.
    """
    graph, subgraphs = prepared.graph, prepared.subgraphs
    mine = {one.workload.key for one in subgraphs}
    rivals = {one.workload.key: one for one in others.subgraphs if one.workload.key not in mine}
    tried = tuning.tried([*subgraphs, *rivals.values()])
    clock = _clock([at for found in tried.values() for at, _ in found])
    listed = max(_LEAST, min(_MOST, _CANDIDATES // max(1, len(tried))))

    def tuned(one: Subgraph, uses: int) -> TunedSubgraph:
        return _tuned(one, uses, tried[one.workload.key], listed, clock, tuning)

    return Account(
        subgraphs=tuple(tuned(one, one.uses) for one in subgraphs),
        others=tuple(tuned(one, 0) for one in rivals.values() if tried[one.workload.key]),
        nodes=nodes_of(graph, call_names(prepared.mod)),
        decisions=tuple(map(_decision, choices)),
        seconds=tuple(tuning.seconds.items()),
        notes=prepared.imported.notes,
    )


def _tuned(
    subgraph: Subgraph, uses: int, tried: Sequence[_Dated], listed: int, clock: Callable[[float], float], tuning: Tuning
) -> TunedSubgraph:
    winners = tuning.ships if uses else Winners(tuning.found)
    record, candidate = winners.records.get(subgraph.workload.key), winners.candidate(subgraph.workload.key)
    place = position(subgraph.workload, tuning.device)
    candidates = [one for _, one in tried if one.candidate != DEFAULT]
    failures = Counter(str(one.outcome.kind) for one in candidates if isinstance(one.outcome, Failure))
    order = sorted(tried, key=lambda dated: _speed(dated[1]))
    fast = [dated for dated in order if dated[1].is_timed]
    failed = [dated for dated in order if not dated[1].is_timed]
    # some failures stay whatever the limit: they say more than the slowest of those that were timed
    kept = fast[: listed - min(len(failed), listed // 3)]
    kept += failed[: listed - len(kept)]
    return TunedSubgraph(
        name=subgraph.name,
        uses=uses,
        anchor=subgraph.anchor,
        schedule=cut(str(candidate)),
        default_s=record.default_s if record else 0.0,
        tuned_s=record.timing.median_s if record else 0.0,
        predicted_s=finite(candidate.predicted_s),
        flops=place.flops,
        nbytes=place.nbytes,
        flops_per_s=finite(place.flops_per_s),
        bytes_per_s=finite(place.bytes_per_s),
        tried=len(candidates),
        failures=tuple(failures.most_common()),
        candidates=tuple(_listed(at, one, clock) for at, one in kept),
    )


def _listed(at: float, one: Measurement, clock: Callable[[float], float]) -> Tried:
    outcome = one.outcome
    return Tried(
        schedule=cut(str(one.candidate)),
        predicted_s=finite(one.candidate.predicted_s),
        measured_s=outcome.median_s if isinstance(outcome, Timing) else 0.0,
        failure=str(outcome.kind) if isinstance(outcome, Failure) else "",
        message=cut(" ".join(outcome.message.split())) if isinstance(outcome, Failure) else "",
        at_s=clock(at),
    )


def _speed(one: Measurement) -> float:
    return one.outcome.median_s if isinstance(one.outcome, Timing) else math.inf


def _clock(times: Sequence[float]) -> Callable[[float], float]:
    """From times of day to seconds of tuning: pauses between compiles, which may be days, are left out."""
    seconds: dict[float, float] = {}
    last = total = 0.0
    for at in sorted(set(times)):
        total += at - last if seconds and at - last < _PAUSE_S else 0.0
        seconds[at] = round(total, 3)
        last = at
    return lambda at: seconds[at]


def nodes_of(graph: PartitionGraph, calls: Sequence[str]) -> tuple[Node, ...]:
    """In topological order; names of the quotient graph's nodes are those of anchors. None, if they are too many."""
    if len(graph.groups) + len(graph.left) > _NODES:
        return ()
    quotient = graph.quotient()
    groups = {group.anchor: (group, name) for group, name in zip(graph.groups, calls, strict=True)}
    left = {item.name: item.reason for item in graph.left}
    order = [*(group.anchor for group in graph.groups), *(item.name for item in graph.left)]
    index = {name: i for i, name in enumerate(order)}
    nodes = []
    for name in order:
        op = graph.op(name)
        after = tuple(sorted(index[before] for before in quotient.predecessors(name)))
        if name in left:
            nodes.append(Node(op.short, op.kind.value, "", (f"{name}: {op.output}",), (left[name],), after))
            continue
        group, kernel = groups[name]
        title = " + ".join(_titles(graph, group.ops))
        ops = tuple(f"{one}: {graph.op(one).output}" for one in group.ops)
        nodes.append(Node(title, op.kind.value, kernel, ops, group.boundary, after))
    return tuple(nodes)


def _titles(graph: PartitionGraph, ops: Sequence[str]) -> list[str]:
    """`conv2d`, `add`, `relu`; one that comes several times in a row is counted."""
    runs = ((short, len(list(run))) for short, run in groupby(graph.op(name).short for name in ops))
    return [short if count == 1 else f"{count} {short}" for short, count in runs]


def _decision(choice: Choice) -> Decision:
    rivals = tuple(
        Rival(one.name, one.why, len(one.kernels), finite(one.seconds), cut(one.note)) for one in choice.alternatives
    )
    return Decision(choice.regions[0], choice.uses, choice.taken, rivals)


def cut(text: str) -> str:
    return text if len(text) <= _CHARS else text[: _CHARS - 1] + "…"


def finite(value: float) -> float:
    return float(value) if math.isfinite(value) else 0.0

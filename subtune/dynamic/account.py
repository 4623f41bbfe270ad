"""The account of a compile for many shapes: its greatest instance as a model of one, and what is taken where."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from itertools import groupby

from subtune.backends.base import Device
from subtune.core.account import Account, LatencyAt, ShapedKernel, ShapedSubgraph, Span, Tried, TunedSubgraph
from subtune.core.candidate import Candidate
from subtune.core.dispatch import choose
from subtune.core.domain import Domain
from subtune.dynamic.choose import Chosen
from subtune.dynamic.model import DynamicModel
from subtune.dynamic.predict import sampled
from subtune.passes.extract import call_names
from subtune.report.account import cut, finite, nodes_of
from subtune.tuning.roofline import position

_KERNELS = 12
"""Listed of one subgraph, or as many as ship."""
_NEAR = 1.1
"""Times the fastest kernel's seconds, up to which one is about as fast: those listed are so at most instances."""
_LATENCIES = 256
"""Shapes whose latency is told."""


def account(
    dynamic: DynamicModel,
    chosen: Mapping[str, Chosen],
    untuned: Set[str],
    device: Device,
    seconds: Mapping[str, float],
    notes: Sequence[str] = (),
) -> Account:
    """Of a model of many shapes; the partition is left out where the kernels are others.

    Args:
        chosen: the kernels of all subgraphs, by name; those that are `untuned` have no times.
        seconds: of the stages that are over.
    """
    graph, calls = dynamic.greatest.graph, call_names(dynamic.greatest.mod)
    is_as_partitioned = len(graph.groups) == len(calls)  # caches in place make some groups superfluous
    uses = {one.name: one.uses for one in dynamic.greatest.subgraphs}
    anchors = {one.name: one.anchor for one in dynamic.greatest.subgraphs}
    timed = {name: one for name, one in chosen.items() if name not in untuned}
    return Account(
        subgraphs=tuple(
            _at_greatest(name, one, uses.get(name, 1), anchors.get(name, ""), name in timed, dynamic.domain, device)
            for name, one in chosen.items()
        ),
        nodes=nodes_of(graph, calls) if is_as_partitioned else (),
        seconds=tuple(seconds.items()),
        notes=tuple(notes),
        shaped=tuple(_shaped(name, one, uses.get(name, 1)) for name, one in timed.items() if one.workload.extents),
        latencies=_latencies(timed, uses, dynamic.domain) if len(timed) == len(chosen) else (),
    )


def _at_greatest(
    name: str, one: Chosen, uses: int, anchor: str, is_timed: bool, domain: Domain, device: Device
) -> TunedSubgraph:
    extents = one.workload.extents_at(domain.greatest)
    place = position(one.workload.at(extents), device)
    taken = one.candidates[choose(one.tree, extents)]
    seconds = {kernel: of[extents] for kernel, of in one.seconds.items() if extents in of} if is_timed else {}
    tried = [
        Tried(cut(str(kernel)), 0.0, of, "", "", 0.0)  # what the policy predicts is of another instance
        for kernel, of in sorted(seconds.items(), key=lambda item: item[1])
    ]
    failed = [
        Tried(cut(str(kernel)), 0.0, 0.0, str(how.kind), cut(" ".join(how.message.split())), 0.0)
        for kernel, how in one.failures.items()
    ]
    return TunedSubgraph(
        name=name,
        uses=uses,
        anchor=anchor,
        schedule=cut(str(taken)),
        default_s=0.0,
        tuned_s=one.expected_s.get(extents, 0.0) if is_timed else 0.0,
        predicted_s=0.0,
        flops=place.flops,
        nbytes=place.nbytes,
        flops_per_s=finite(place.flops_per_s),
        bytes_per_s=finite(place.bytes_per_s),
        tried=len({*one.seconds, *one.failures}),
        failures=tuple(Counter(str(how.kind) for how in one.failures.values()).most_common()),
        candidates=(*tried[:_KERNELS], *failed[:_KERNELS]),
    )


def _shaped(name: str, one: Chosen, uses: int) -> ShapedSubgraph:
    instances = sorted({at for of in one.seconds.values() for at in of}, key=lambda at: (math.prod(at), at))
    best = one.best_s

    def count(kernel: Candidate) -> int:
        return sum(seconds <= _NEAR * best[at] for at, seconds in one.seconds[kernel].items())

    others = [kernel for kernel in one.seconds if kernel not in one.candidates]
    fastest = sorted(others, key=count, reverse=True)
    listed = [*one.candidates, *fastest[: max(0, _KERNELS - len(one.candidates))]]
    return ShapedSubgraph(
        name=name,
        uses=uses,
        extents=tuple(map(str, one.workload.extents)),
        instances=tuple(instances),
        kernels=tuple(
            ShapedKernel(
                cut(str(kernel)),
                kernel in one.candidates,
                tuple(one.seconds.get(kernel, {}).get(at, 0.0) for at in instances),
            )
            for kernel in listed
        ),
        spans=_spans(one) if len(one.workload.extents) == 1 else (),
        worst_regret=finite(one.worst_regret),
    )


def _spans(one: Chosen) -> tuple[Span, ...]:
    values = sorted(extent for (extent,) in one.expected_s)
    of_kernels = groupby(values, key=lambda value: choose(one.tree, (value,)))
    return tuple(Span(run[0], run[-1], kernel) for kernel, same in of_kernels if (run := list(same)))


def _latencies(chosen: Mapping[str, Chosen], uses: Mapping[str, int], domain: Domain) -> tuple[LatencyAt, ...]:
    shapes = [values for values, _ in sampled(domain)]
    step = max(1, math.ceil(len(shapes) / _LATENCIES))
    kept = [shapes[-1 - i] for i in range(0, len(shapes), step)][::-1]
    if kept[0] != shapes[0]:
        kept.insert(0, shapes[0])
    return tuple(
        LatencyAt(
            tuple(values[name] for name in domain.names),
            sum(uses.get(name, 1) * one.expected_s[one.workload.extents_at(values)] for name, one in chosen.items()),
        )
        for values in kept
    )

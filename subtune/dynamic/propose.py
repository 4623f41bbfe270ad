"""Which kernels are built of a dynamic workload: what the policy proposes for some of its instances."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from subtune import backends
from subtune.backends.base import Device, Problem
from subtune.core.candidate import Candidate
from subtune.core.dispatch import Extents
from subtune.dynamic.marks import alone
from subtune.dynamic.working_set import DeviceAt
from subtune.dynamic.workload import DynamicWorkload
from subtune.tuning.waves import in_turn

LARGE_BYTES = 1 << 26
"""Weights of which every layout takes seconds to make."""
_MOST_KERNELS, _MANY_KERNELS = 24, 48
"""Built of one workload; and where builds are beside what is measured, and measuring takes little, candidates in whose
place some are built."""
_FEW_KERNELS = 8
"""Of a workload that has so large ones."""
_ALL_ROUND, _ALL_ROUND_OF_FAMILY = 3, 2
"""Kernels that are measured at every instance; and of each implementation, as those of one may not serve at all."""
_NEAR = 1.15
"""Times the least seconds foretold for an instance, up to which the first of another family may be the fastest."""
_OF_ONE = 4
"""Kernels of one image, or of one row, alone."""
_LATER = 3
"""Turns that what serves other instances than the candidate's own waits for: there may be no place left."""


def proposals(
    workload: DynamicWorkload,
    probes: Sequence[Extents],
    device: Device,
    topk: int,
    without: Collection[str] = (),
    between: Sequence[Extents] = (),
    at: DeviceAt | None = None,
) -> dict[Candidate, tuple[Extents, ...]]:
    """The policy's candidates for the probes, the first ones of all before the second ones, and for which probes; the
    ones that are for most probes are for all instances.

    Args:
        without: families.
        between: more instances, of which the first candidates alone are taken, beside those of the others.
        at: the device as an instance finds it; None: as it is.
    """
    turns: list[tuple[int, Candidate, Extents, Candidate]] = []
    is_many = device.backend.measuring.overlaps
    for extents in (*probes, *between):
        is_between = extents in between
        try:
            here = at(extents) if at else device
            problem = Problem(workload.at(extents), here.model, here.numerics)
            served = _served(problem, here, topk, without)
            found = list(served)
            ranked = in_turn(found, device.backend.tile, every_family=True) if is_many else found
        except Exception:  # a policy may not foresee an axis of one element
            continue
        # the first that serves many shapes serves this one best; there is one row at no other
        later = 0 if is_many or math.prod(extents) == 1 else _LATER
        for rank, candidate in enumerate(ranked) if is_many else _ranked(ranked):
            if is_between and rank:
                continue
            of_any = served[candidate][: 1 if is_between else None]
            turns += [
                (rank + later * place, one, extents, candidate if is_many else one) for place, one in enumerate(of_any)
            ]
    origins: dict[Candidate, tuple[Extents, ...]] = {}
    instead_of: dict[Candidate, Candidate] = {}
    for _, one, extents, candidate in sorted(turns, key=lambda turn: turn[0]):
        origins[one] = tuple(dict.fromkeys((*origins.get(one, ()), extents)))
        instead_of.setdefault(one, candidate)
    is_large = weights_bytes(workload, probes[-1]) > LARGE_BYTES
    most = _FEW_KERNELS if is_large else _MANY_KERNELS if is_many else _MOST_KERNELS
    of_between = {one for one, at in origins.items() if set(at) <= set(between)}
    built = [*dict.fromkeys(instead_of[one] for one in origins if one not in of_between)][:most]
    kept = {one: at for one, at in origins.items() if not set(between).isdisjoint(at) or instead_of[one] in built}
    everywhere: list[Candidate] = []
    for one in sorted(kept, key=lambda one: -len(kept[one])):
        of_family = sum(other.family == one.family for other in everywhere)
        if len(everywhere) < _ALL_ROUND or of_family < _ALL_ROUND_OF_FAMILY:
            everywhere.append(one)
    return {one: () if one in everywhere else at for one, at in kept.items()}


def for_one(workload: DynamicWorkload, device: Device, topk: int) -> dict[Candidate, tuple[Extents, ...]]:
    """Candidates for the instance of one element of every extent that are to serve no other."""
    ones = (1,) * len(workload.extents)
    try:
        found = in_turn(backends.candidates(workload.at(ones), device, topk), device.backend.tile, every_family=True)
    except Exception:  # as above
        return {}
    return {alone(one): (ones,) for one in found[:_OF_ONE]}


def _served(
    problem: Problem[Any], device: Device, topk: int, without: Collection[str]
) -> dict[Candidate, Sequence[Candidate]]:
    """The policy's candidates for an instance, each with what is tried in its place; for those in whose place nothing
    is, the next ones."""
    served: dict[Candidate, Sequence[Candidate]] = {}
    for count in (topk, 2 * topk):
        some = [one for one in backends.candidates(problem.workload, device, count) if one.family not in without]
        for one in some:
            if one not in served and len(served) < topk and (of_any := device.backend.for_many_shapes(problem, one)):
                served[one] = of_any
        if len(served) == len(some):
            break
    return served


def _ranked(candidates: Sequence[Candidate]) -> list[tuple[int, Candidate]]:
    """Each with its rank in its family, as two families' predictions compare little; if far behind, among all."""
    least_s = min((one.predicted_s for one in candidates), default=0.0)
    seen: Counter[str] = Counter()
    ranked = []
    for rank, one in enumerate(candidates):
        ranked.append((seen[one.family] if one.predicted_s <= _NEAR * least_s else rank, one))
        seen[one.family] += 1
    return ranked


def weights_bytes(workload: DynamicWorkload, extents: Extents) -> int:
    return sum(arg.nbytes for arg in workload.at(extents).args if arg.is_constant)

"""A candidate's kernel for all instances of a workload: a micro-kernel, and as many of its tiles as an instance has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from subtune.backends.base import Device, Problem
from subtune.core.candidate import Candidate
from subtune.core.kernel import ConstantTransform, Kernel, NotApplicable
from subtune.dynamic.template import Template, generalised
from subtune.dynamic.workload import PRIMES, DynamicWorkload, has_free_rows
from subtune.tir.blocks import all_blocks

PLAIN = Candidate("plain")
"""For a workload that nothing else serves at all extents."""
_POINTS = 5
"""Of one extent; of more, two more each."""


@dataclass(frozen=True, slots=True)
class DynamicKernel:
    """`template` is of flat PrimFuncs, in the numbers of tiles of each extent: `tiles = ceil(extent / granule)`.

    With a granule above 1 the last tile reads and writes rows past the last one.
    """

    candidate: Candidate
    granules: tuple[int, ...]
    template: Template
    packings: tuple[tuple[int, ConstantTransform], ...]

    def tiles(self, extents: Sequence[int]) -> tuple[int, ...]:
        return tuple(-(-extent // granule) for extent, granule in zip(extents, self.granules, strict=True))


def dynamic_kernel(workload: DynamicWorkload, candidate: Candidate, device: Device) -> DynamicKernel | NotApplicable:
    """The kernel of all instances that `candidate` schedules alike, or why there is none.

    It is exact where the schedule is the same for any extent; else a multiple of the candidate's tile is computed,
    where that is allowed.
    """
    reason = NotApplicable("no instance can be scheduled")
    for granules in _granules(workload, candidate):
        found = _with_granules(workload, candidate, device, granules)
        if isinstance(found, DynamicKernel):
            return found
        reason = found
    return reason


def _granules(workload: DynamicWorkload, candidate: Candidate) -> Iterator[tuple[int, ...]]:
    knobs = [value for _, value in candidate.knobs if isinstance(value, int) and not isinstance(value, bool)]
    if workload.extents and knobs and has_free_rows(workload):
        rows = {name: value for name, value in candidate.knobs if isinstance(value, int)}
        tile = rows.get("mr", 1)
        for granule in sorted({tile, tile * rows.get("mt", 1)}):
            yield (granule,)
    yield (1,) * len(workload.extents)


def _with_granules(
    workload: DynamicWorkload, candidate: Candidate, device: Device, granules: tuple[int, ...]
) -> DynamicKernel | NotApplicable:
    points = sample_tiles(len(granules))
    flat: list[Any] = []
    packings: set[tuple[tuple[int, ConstantTransform], ...]] = set()
    for point in points:
        instance = workload.at([tiles * granule for tiles, granule in zip(point, granules, strict=True)])
        kernel = _scheduled(Problem(instance, device.model, device.numerics), candidate, device)
        if not isinstance(kernel, Kernel):
            return kernel
        packings.add(kernel.packings)
        flat.append(device.backend.flat(kernel.func, device))
    if len(packings) > 1:
        return NotApplicable("its weights are packed otherwise at other extents")
    named = [dict(zip(workload.names, point, strict=True)) for point in points]
    template = generalised(flat, named)
    if isinstance(template, NotApplicable):
        return template
    return DynamicKernel(candidate, granules, template, packings.pop())


def _scheduled(problem: Problem[Any], candidate: Candidate, device: Device) -> Kernel | NotApplicable:
    return _plain(problem) if candidate == PLAIN else device.backend.kernel(problem, candidate)


def _plain(problem: Problem[Any]) -> Kernel:
    """The workload as it is, its outermost loops shared out: alike at all extents, where nothing else is."""
    sch = Schedule(problem.workload.func)
    for block in all_blocks(sch):
        loops = sch.get_loops(block)
        first = sch.get(block).iter_vars[0] if loops else None
        if first is not None and int(first.iter_type) == tirx.IterVar.DataPar:
            sch.parallel(loops[0])
    return Kernel(sch.mod["main"])


def sample_tiles(extents: int) -> list[tuple[int, ...]]:
    """Points at which a template is made: primes, in another order for every extent."""
    count = _POINTS + 2 * max(0, extents - 1)
    orders = [PRIMES[i:] + PRIMES[:i] for i in range(extents)]
    steps = (1, 2, 4, 5)
    return [
        tuple(order[(step * i) % len(PRIMES)] for order, step in zip(orders, steps, strict=False)) for i in range(count)
    ]

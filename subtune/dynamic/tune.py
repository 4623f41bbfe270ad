"""Joint tuning of a dynamic workload: kernels for any instance, measured at a few, and a tree that chooses among them.

A candidate's tile does not depend on the shape (DietCode's micro-kernel): what the policy proposes for some instances
is generalised to all, built once, and measured at several. Between those its time can be told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from itertools import groupby, islice, product

from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.dispatch import Extents
from subtune.core.domain import Domain, Symbol
from subtune.core.errors import SubtuneError
from subtune.core.kernel import Kernel
from subtune.core.measurement import Failure
from subtune.dynamic.kernel import MIXING, PLAIN, SINGLE, tiles_rows
from subtune.dynamic.marks import overlapped
from subtune.dynamic.measure import Measurement
from subtune.dynamic.measured import Measured
from subtune.dynamic.predict import instances_of
from subtune.dynamic.propose import LARGE_BYTES, for_one, proposals, weights_bytes
from subtune.dynamic.refine import HeldOut
from subtune.dynamic.serve import carried, schedule
from subtune.dynamic.workbench import Workbench
from subtune.dynamic.working_set import WorkingSet
from subtune.dynamic.workload import DynamicWorkload

_STEP = 1.6
"""A symbol's value at a measured instance over that at the one before; no power of it is one of 2, so that tiles of all
heights are proposed."""
_FINE_STEP = _STEP ** (1 / 3)
"""Of instances that are not measured, whose first candidates are."""
_FINER_STEP = _STEP ** (1 / 5)
"""Of those with so few rows that a last tile of another height is felt."""
_FEW_ROWS, _SMALL_BYTES = 12, 1 << 23
"""Of which every number wants tiles of its own height, where weights come faster than few rows are multiplied."""
_SOME_ROWS = 128
"""Of more than those, what the last tile lacks is little in tiles of any height."""
_MANY, _FEW = 9, 3
"""Instances that a workload is measured at; the second is of one that has little weight."""
_CHECKS = 3
"""Instances at which kernels are checked besides."""
_MOST_LOOKED_AT = 256

_EVERY: Mapping[Candidate, Sequence[Extents]] = dict.fromkeys((DEFAULT, PLAIN, SINGLE), ())


class Prospect:
    """A workload for which kernels are looked for that together serve every instance of `domain`.

    Args:
        exact_only: the kernels may not compute rows past the last one.
        is_heavy: the workload counts in the model's time.
        topk: candidates for each measured instance.
        is_light: nearly nothing of the model's time is its.
        working_set: of the model; None: `device` is as it is for any instance.
    """

    def __init__(
        self,
        workload: DynamicWorkload,
        domain: Domain,
        exact_only: bool,
        is_heavy: bool,
        topk: int,
        device: Device,
        is_light: bool = False,
        working_set: WorkingSet | None = None,
    ) -> None:
        self._workload, self._domain, self._device = workload, domain, device
        self._exact_only, self._is_heavy, self._is_light, self._topk = exact_only, is_heavy, is_light, topk
        self._at = working_set.device_at(device, workload) if working_set else lambda extents: device
        self._begun: Measurement | None = None
        self._chosen: list[Mapping[Candidate, Sequence[Extents]]] = []

    def begin(self, measurer: Workbench) -> None:
        """Let the first candidates' kernels be built; returns at once."""
        if self._begun is None:
            self._begun = self._measurement(self._choices(measurer)[0], measurer)
            self._begun.begin()

    def tuned(self, measurer: Workbench) -> Measured:
        """Kernels that were timed.

        Raises:
            SubtuneError: no schedule serves all instances.
        """
        failures: dict[Candidate, Failure] = {}
        for at, candidates in enumerate(self._choices(measurer)):
            begun = self._begun if at == 0 and not measurer.is_recall else None
            with closing(begun or self._measurement(candidates, measurer)) as one:
                found = one.result()
            if _serves_all(found, [*self._instances, *self._checks]):
                return found
            failures |= found.failures
        raise _none_serves(failures)

    def untuned(self, measurer: Workbench) -> Measured:
        """The first kernel that the policy proposes for the greatest instance, checked there and at the least.

        Raises:
            SubtuneError: no schedule serves all instances.
        """
        self.close()
        workload, domain, device = self._workload, self._domain, self._device
        ends = _spread(self._probes, 2)
        checks = _between(workload, domain, ends, 2)
        first = dict.fromkeys(proposals(workload, [workload.extents_at(domain.greatest)], device, 1), ())
        failures: dict[Candidate, Failure] = {}
        for candidates in filter(None, [first, _EVERY]):
            few = Measurement(workload, candidates, ends, checks, self._exact_only, device, measurer, is_timed=False)
            with closing(few):
                found = few.result()
            whole = [one for one in found.libraries if all(found.serves(one, at) for at in (*ends, *checks))]
            if whole:
                (one, *_) = whole
                return replace(found, libraries={one: found.libraries[one]}, seconds={one: found.seconds[one]})
            failures |= found.failures
        raise _none_serves(failures)

    def close(self) -> None:
        """Nobody waits for its builds any more."""
        if self._begun is not None:
            self._begun.close()

    def _measurement(self, candidates: Mapping[Candidate, Sequence[Extents]], measurer: Workbench) -> Measurement:
        proposed: dict[Extents, list[Candidate]] = {}
        for one, origins in candidates.items():
            for at in origins:
                if at in self._further:
                    proposed.setdefault(at, []).append(one)
        further = HeldOut(self._workload, self._domain, proposed) if self._is_heavy else None
        where = (self._instances, self._checks, self._exact_only, self._device, measurer)
        return Measurement(self._workload, candidates, *where, further=further, in_haste=self._is_light, at=self._at)

    @cached_property
    def _probes(self) -> list[Extents]:
        return _probes(self._workload, self._domain)

    def _proposed(self, measurer: Workbench) -> dict[Candidate, tuple[Extents, ...]]:
        """What was built before, and of others as many as there is time for."""
        topk, probes = self._topk if self._is_heavy else _FEW, self._probes
        if measurer.most < len(probes):
            probes = _spread(probes, max(2, int(measurer.most)))
        is_overlapping = self._exact_only and tiles_rows(self._workload, self._device)
        found = proposals(self._workload, probes, self._device, topk, between=self._further, at=self._at)
        if is_overlapping:
            found = self._exact(found)
        if self._is_heavy and self._device.backend.measuring.overlaps and set(self._probes[0]) == {1}:
            found |= for_one(self._workload, self._device, topk)
        memory = measurer.memory(
            carried(self._workload, self._workload.extents_at(self._domain.greatest)), self._device, self._at
        )
        new = [one for one in found if memory.built(one) is None]
        left_out = set(new[int(measurer.most) :]) if measurer.most < len(new) else set()
        return {one: at for one, at in found.items() if one not in left_out}

    @cached_property
    def _further(self) -> list[Extents]:
        """Instances that are not measured, at which other tiles may be the fastest: a series of those between, and on a
        CPU all of few rows, where weights come faster than these are multiplied."""
        if not self._is_heavy or len(self._workload.extents) != 1:
            return []
        instances, _ = instances_of(self._workload, self._domain)
        values = [extent for (extent,) in instances if extent > 0]
        is_few = not self._device.backend.measuring.overlaps
        found = [(value,) for value in _series(values, _FINER_STEP if is_few else _FINE_STEP)] if values else []
        if is_few:
            nbytes = weights_bytes(self._workload, self._probes[-1])
            if nbytes > LARGE_BYTES or not tiles_rows(self._workload, self._device):
                return []
            few = values[:_FEW_ROWS] if nbytes <= _SMALL_BYTES else ()
            found = [
                *((value,) for value in few if value <= _FEW_ROWS),
                *(at for at in found if _FEW_ROWS < at[0] <= _SOME_ROWS),
            ]
        return [at for at in dict.fromkeys(found) if at not in self._probes]

    def _exact(self, found: Mapping[Candidate, tuple[Extents, ...]]) -> dict[Candidate, tuple[Extents, ...]]:
        """The same, with tiles that overlap: they serve no fewer rows than one has. The lowest serve any number.

        Those that know how many rows there are read none behind the last.
        """
        kept = {one if one.family in MIXING else overlapped(one): at for one, at in found.items()}
        tiled = [one for one in found if one.family not in MIXING]
        lowest = min(tiled, key=lambda one: self._device.backend.shape_of_tile(one).rows, default=DEFAULT)
        return {one: () if one == overlapped(lowest) else at for one, at in kept.items()}

    def _choices(self, measurer: Workbench) -> list[Mapping[Candidate, Sequence[Extents]]]:
        """Candidates that are measured until one kernel serves all instances: at first near what they are for."""
        if not self._chosen:
            proposed = self._proposed(measurer)
            near = [proposed] if self._is_heavy and proposed else []
            self._chosen = [*near, {**dict.fromkeys(proposed, ()), DEFAULT: ()}, _EVERY]
        return self._chosen

    @cached_property
    def _instances(self) -> list[Extents]:
        if self._is_heavy and self._device.backend.measuring.overlaps:  # measuring takes little
            return self._probes
        return _spread(self._probes, _MANY if self._is_heavy else _FEW)

    @cached_property
    def _checks(self) -> tuple[Extents, ...]:
        return _between(self._workload, self._domain, self._instances, _CHECKS if self._is_heavy else 2)


def can_overlap(workload: DynamicWorkload, domain: Domain, device: Device) -> bool:
    """Whether tiles that overlap serve all instances, as far as the first candidates for the ends tell."""
    greatest = workload.extents_at(domain.greatest)
    (low, *_), high = _probes(workload, domain), greatest
    for extents in (low, high):
        one = next(iter(proposals(workload, [extents], device, _FEW, MIXING)), DEFAULT)
        rows = device.backend.shape_of_tile(one).rows
        if one == DEFAULT or rows > extents[0]:
            return False
        if not isinstance(schedule(carried(workload, greatest), overlapped(one), device), Kernel):
            return False
    return True


def _none_serves(failures: Mapping[Candidate, Failure]) -> SubtuneError:
    reasons = "; ".join(f"{one}: {failure.message}" for one, failure in list(failures.items())[-2:])
    return SubtuneError(f"no schedule serves all instances of a subgraph: {reasons}")


def _serves_all(found: Measured, instances: Sequence[Extents]) -> bool:
    """Whether one kernel does, so that there is one whatever number of kernels is allowed."""
    return any(all(found.serves(one, at) for at in instances) for one in found.libraries)


def _probes(workload: DynamicWorkload, domain: Domain) -> list[Extents]:
    """Instances that are measured: a geometric series of each symbol's values, the others at their least and greatest;
    in the order of their work. Nothing is measured where there is nothing: 0 is none of the values."""
    points: dict[Extents, None] = {}
    values_of = {symbol.name: _above_zero(symbol) for symbol in domain.symbols}
    for symbol in domain.symbols:
        values = values_of[symbol.name]
        for end in (-1, 0):
            others = {name: values[end] for name, values in values_of.items()}
            for value_of in _series(values, _STEP):
                points[workload.extents_at({**others, symbol.name: value_of})] = None
    if not domain.symbols:
        points[workload.extents_at({})] = None
    return sorted(points, key=lambda at: (math.prod(at), at))


def _series(values: Sequence[int], step: float) -> list[int]:
    """Some of them, from the least to the greatest: a geometric series from the greatest down."""
    series = {values[0], values[-1]}
    value = values[-1] / step
    while value > values[0]:
        series.add(min(values, key=lambda one: abs(one - value)))  # called at once
        value /= step
    return sorted(series)


def _between(workload: DynamicWorkload, domain: Domain, probes: Sequence[Extents], count: int) -> tuple[Extents, ...]:
    """Instances of other remainders than those that are measured: next to the least and the greatest, and between.

    Of each extent there are odd and even ones, and some that 4 and 8 divide, where the domain has such: kernels are
    generalised from extents that are primes.
    """
    shares = (0.04, 0.99, 0.25)[:count]
    values_of = {symbol.name: _above_zero(symbol) for symbol in domain.symbols}
    points = [{name: of[int(share * (len(of) - 1))] for name, of in values_of.items()} for share in shares]
    found = [at for at in dict.fromkeys(map(workload.extents_at, points)) if at not in probes]
    seen = {one for at in (*probes, *found) for one in _divisible(at)}
    some = [[next(group) for _, group in groupby(sorted(of, key=_twos), key=_twos)] for of in values_of.values()]
    for point in islice(product(*some), _MOST_LOOKED_AT):
        at = workload.extents_at(dict(zip(values_of, point, strict=True)))
        if not seen.issuperset(_divisible(at)):
            found.append(at)
            seen.update(_divisible(at))
    return tuple(found)


def _divisible(extents: Extents) -> list[tuple[int, int]]:
    """How often 2 divides each of them."""
    return [(i, _twos(extent)) for i, extent in enumerate(extents)]


def _twos(number: int) -> int:
    """How often 2 divides it, up to three times."""
    return next(power for power in (3, 2, 1, 0) if number % 2**power == 0)


def _above_zero(symbol: Symbol) -> tuple[int, ...]:
    """The values of a symbol that has several, without 0: an array without elements, as the cache before a prompt."""
    return symbol.values if symbol.values[0] else symbol.values[1:]


def _spread(ordered: Sequence[Extents], count: int) -> list[Extents]:
    """The first, the last, and some between."""
    if len(ordered) <= count:
        return list(ordered)
    return [ordered[round(i * (len(ordered) - 1) / (count - 1))] for i in range(count)]

"""Which alternatives to its partition a model of many shapes takes: at all instances the same.

An attention may be one kernel, where the partition has two products, a softmax and the copies round them; so may a
first convolution and the pooling behind it. What is foreseen to be the fastest at the greatest instance, or measured to
be so there and at the least one, is taken, if its kernels serve all instances.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from subtune import backends
from subtune.backends.base import Device
from subtune.core.domain import Domain
from subtune.core.errors import UnsupportedOpsError
from subtune.core.graph import Alternatives
from subtune.dynamic.kernel import DynamicKernel, dynamic_kernel
from subtune.dynamic.model import DynamicModel, dynamic_model
from subtune.dynamic.workload import DynamicWorkload
from subtune.passes.alternatives import alternatives
from subtune.passes.pad_attention import Lengths
from subtune.pipeline import Prepared
from subtune.tuning.alternatives import with_alternatives

_TRIED = 6
"""Candidates of a kernel, of which one has to serve all instances."""

Prepare = Callable[[Mapping[str, int], Lengths], Prepared]
Choose = Callable[[Prepared, Alternatives, Callable[[], Prepared], Device], dict[str, int]]
"""Of the greatest instance with its alternatives, and what gives the least one."""


def arranged_model(domain: Domain, prepare: Prepare, device: Device, choose: Choose) -> DynamicModel:
    """As `dynamic_model`, with alternatives in the place of parts of the partition.

    Args:
        choose: `contest.Contest.taken`.
    """
    arranger = _Arranger(domain, prepare, device, choose)
    try:
        found = dynamic_model(domain, arranger.prepare)
        kept = arranger.served(found)
    except UnsupportedOpsError:
        if not arranger.taken:
            raise
        kept = {}
    if kept != arranger.taken:
        arranger.taken = kept
        found = dynamic_model(domain, arranger.prepare)
    return found


class _Arranger:
    """Prepares instances: those from the greatest on with the alternatives that are taken there.

    Attributes:
        taken: of regions by name, the number of the alternative.
    """

    def __init__(self, domain: Domain, prepare: Prepare, device: Device, choose: Choose) -> None:
        self._domain, self._prepare, self._device, self._choose = domain, prepare, device, choose
        self.taken: dict[str, int] = {}
        self._greatest: tuple[Lengths, Prepared] | None = None
        self._others: Alternatives | None = None
        self._own: frozenset[str] = frozenset()
        """Keys of the partition's own workloads at the greatest instance."""

    def prepare(self, point: Mapping[str, int], lengths: Lengths) -> Prepared:
        if point is not self._domain.greatest:
            return self._arranged(self._prepare(point, lengths))
        if self._greatest is None or self._greatest[0] != lengths:
            self._greatest = lengths, self._prepare(point, lengths)
            self._begin(self._greatest[1], lengths)
        return self._arranged(self._greatest[1])

    def served(self, model: DynamicModel) -> dict[str, int]:
        """Of what is taken, that of which every kernel that the partition does not have has a candidate for all
        instances."""
        new = {one.workload.key: model.workloads[one.name] for one in model.greatest.subgraphs}
        left_out = {key for key, one in new.items() if key not in self._own and not self._is_served(one)}
        of = {one.name: one.alternatives for one in (self._others.regions if self._others else ())}
        return {name: at for name, at in self.taken.items() if not left_out & {*of[name][at].keys}}

    def _begin(self, greatest: Prepared, lengths: Lengths) -> None:
        self._others = greatest.alternatives()
        device = self._device.for_working_set(greatest.working_set_bytes)
        chosen = self._choose(greatest, self._others, lambda: self._prepare(self._domain.least, lengths), device)
        self.taken = {name: number for name, number in chosen.items() if number}
        self._own = frozenset(one.workload.key for one in greatest.subgraphs)

    def _arranged(self, prepared: Prepared) -> Prepared:
        found = []
        for region in alternatives(prepared.graph, prepared.forms):
            number = self.taken.get(region.name, 0)
            if number >= len(region.alternatives):
                raise UnsupportedOpsError(f"The region {region.name} has other alternatives at other shapes.")
            if number:
                found.append(region.alternatives[number])
        return prepared.arranged(with_alternatives(prepared.graph, found))

    def _is_served(self, workload: DynamicWorkload) -> bool:
        candidates = backends.candidates(workload.at(workload.greatest), self._device, _TRIED)
        return any(isinstance(dynamic_kernel(workload, one, self._device), DynamicKernel) for one in candidates)

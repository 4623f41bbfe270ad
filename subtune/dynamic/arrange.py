"""Which alternatives to its partition a model of many shapes takes: at all instances the same.

An attention may be one kernel, where the partition has two products, a softmax and the copies round them. What is
expected to be the fastest at the greatest instance is taken, if its kernels serve all instances.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from subtune import backends
from subtune.backends.base import Device
from subtune.core.domain import Domain
from subtune.core.errors import UnsupportedOpsError
from subtune.dynamic.kernel import DynamicKernel, dynamic_kernel
from subtune.dynamic.model import DynamicModel, dynamic_model
from subtune.dynamic.workload import DynamicWorkload
from subtune.passes.alternatives import alternatives
from subtune.passes.pad_attention import Lengths
from subtune.pipeline import Prepared
from subtune.tuning.alternatives import plan, with_alternatives
from subtune.tuning.choose import fastest_foreseen

_TRIED = 6
"""Candidates of a kernel, of which one has to serve all instances."""

Prepare = Callable[[Mapping[str, int], Lengths], Prepared]


def arranged_model(domain: Domain, prepare: Prepare, device: Device) -> DynamicModel:
    """As `dynamic_model`, with alternatives in the place of parts of the partition."""
    arranger = _Arranger(domain, prepare, device)
    try:
        found = dynamic_model(domain, arranger.prepare)
    except UnsupportedOpsError:
        if not arranger.takes_any:
            raise
        return dynamic_model(domain, prepare)
    return found if arranger.serves(found) else dynamic_model(domain, prepare)


class _Arranger:
    """Prepares instances: those from the greatest on with the alternatives that are taken there."""

    def __init__(self, domain: Domain, prepare: Prepare, device: Device) -> None:
        self._domain, self._prepare, self._device = domain, prepare, device
        self._taken: dict[str, int] = {}
        """Of regions by name, the number of the alternative."""
        self._own: frozenset[str] = frozenset()
        """Keys of the partition's own workloads at the greatest instance."""

    @property
    def takes_any(self) -> bool:
        return bool(self._taken)

    def prepare(self, point: Mapping[str, int], lengths: Lengths) -> Prepared:
        prepared = self._prepare(point, lengths)
        if point is self._domain.greatest:
            self._choose(prepared)
        return self._arranged(prepared)

    def serves(self, model: DynamicModel) -> bool:
        """Whether each kernel that the partition does not have has a candidate for all instances."""
        new = [one.name for one in model.greatest.subgraphs if one.workload.key not in self._own]
        return not self._taken or all(self._is_served(model.workloads[name]) for name in new)

    def _choose(self, greatest: Prepared) -> None:
        others = greatest.alternatives()
        expected = plan(greatest.subgraphs, others, self._device, None).expected
        between_s = self._device.model.between_kernels_s
        taken = {region.name: fastest_foreseen(region, expected, between_s) for region in others.regions}
        self._taken = {name: number for name, number in taken.items() if number}
        self._own = frozenset(one.workload.key for one in greatest.subgraphs)

    def _arranged(self, prepared: Prepared) -> Prepared:
        found = []
        for region in alternatives(prepared.graph, prepared.forms):
            number = self._taken.get(region.name, 0)
            if number >= len(region.alternatives):
                raise UnsupportedOpsError(f"The region {region.name} has other alternatives at other shapes.")
            if number:
                found.append(region.alternatives[number])
        return prepared.arranged(with_alternatives(prepared.graph, found))

    def _is_served(self, workload: DynamicWorkload) -> bool:
        candidates = backends.candidates(workload.at(workload.greatest), self._device, _TRIED)
        return any(isinstance(dynamic_kernel(workload, one, self._device), DynamicKernel) for one in candidates)

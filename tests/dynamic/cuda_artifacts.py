"""Dynamic models built for a GPU that is not here: of every subgraph the first kernel that serves all instances."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from subtune import frontends
from subtune.assembly import Package, write_artifact
from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.dispatch import Leaf
from subtune.core.domain import Domain, Symbol
from subtune.core.kernel import Kernel
from subtune.dynamic.assemble import variants_of
from subtune.dynamic.choose import Chosen
from subtune.dynamic.constants import with_corners
from subtune.dynamic.kernel import PLAIN, SINGLE
from subtune.dynamic.model import corner_workloads, dynamic_model
from subtune.dynamic.propose import proposals
from subtune.dynamic.serve import carried, schedule
from subtune.dynamic.workload import DynamicWorkload
from subtune.passes.pad_attention import NO_LENGTHS, Lengths
from subtune.passes.splice import splice
from subtune.pipeline import Prepared, prepare_imported


def domain_of(**most: int) -> Domain:
    """Of symbols from 1 to their greatest values."""
    return Domain(tuple(Symbol.uniform(name, tuple(range(1, last + 1))) for name, last in most.items()))


def written(
    model: Any, domain: Domain, device: Device, path: Path, is_traced: bool = False, **fixed: int
) -> dict[str, Candidate]:
    """Write an artifact; the candidates of its subgraphs, which nobody has checked.

    Args:
        fixed: values of symbols that are not in the domain.
    """
    inputs = frontends.symbolic_inputs(model, None, None)
    forms = device.backend.forms(device.model)

    def prepare(point: Mapping[str, int], lengths: Lengths) -> Prepared:
        imported = frontends.load(model, frontends.instance(inputs, {**fixed, **point}, None), None)
        return prepare_imported(imported, device.numerics, None, forms, lengths if forms.pads_lengths else NO_LENGTHS)

    dynamic = dynamic_model(domain, prepare)
    shapes = {name: one.shapes for name, one in dynamic.workloads.items()}
    mod, corners, more = with_corners(dynamic.greatest.mod, shapes, dynamic.made)
    workloads = {**dynamic.workloads, **corner_workloads(corners, domain), **more}
    first = {name: _first(one, domain, device) for name, one in workloads.items()}
    found = {name: candidate for name, (candidate, _) in first.items()}
    chosen = {name: Chosen(one, (found[name],), Leaf(0), {}, {}) for name, one in workloads.items()}
    pairs = {name: variants_of(one, [first[name][1]], domain, device) for name, one in chosen.items()}
    whole = splice(mod, {name: static for name, (_, static) in pairs.items()})
    variants = {name: one for name, (one, _) in pairs.items()}
    package = Package(
        whole, dynamic.inputs, dynamic.outputs, name="model", domain=domain, variants=variants, is_traced=is_traced
    )
    write_artifact(path, package, device)
    return found


def _first(workload: DynamicWorkload, domain: Domain, device: Device) -> tuple[Candidate, Kernel]:
    greatest = workload.extents_at(domain.greatest)
    proposed, whole = proposals(workload, [greatest], device, 1), carried(workload, greatest)
    for candidate in (*proposed, DEFAULT, PLAIN, SINGLE):
        if isinstance(kernel := schedule(whole, candidate, device), Kernel):
            return candidate, kernel
    raise AssertionError(f"nothing serves all instances of {workload.at(greatest)}")

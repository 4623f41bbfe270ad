"""A model with symbolic dimensions from its file to its artifact, top to bottom."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from subtune import backends, frontends
from subtune.assembly.build import to_calls
from subtune.backends.base import Device
from subtune.core.domain import Domain
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.variants import Variant, Variants
from subtune.database import opened
from subtune.dynamic.constants import corner, with_corners
from subtune.dynamic.kernel import DynamicKernel
from subtune.dynamic.model import dynamic_model, sample_points
from subtune.dynamic.tune import Chosen, tuned
from subtune.dynamic.workload import DynamicWorkload, dynamic_workload
from subtune.options import Options
from subtune.passes.splice import splice
from subtune.pipeline import Prepared, prepare_imported
from subtune.tuning.search import Search


def dynamic_parts(model: Any, domain: Domain, options: Options) -> Any:
    """For now: everything that assembly needs."""
    device = backends.device_of(
        options.target, options.threads, options.device_file, options.numerics, is_measured=False
    )
    forms = device.backend.forms(device.model)

    fixed = {one.name: one.values[0] for one in domain.symbols if len(one.values) == 1}
    domain = Domain(tuple(one for one in domain.symbols if len(one.values) > 1))

    def prepare(point: Mapping[str, int]) -> Prepared:
        imported = frontends.load(
            model, {name: (value,) for name, value in (*fixed.items(), *point.items())}, options.parameters
        )
        return prepare_imported(imported, options.numerics, None, forms)

    begin = time.perf_counter()
    whole = dynamic_model(domain, prepare, lambda mod: to_calls(mod, device))
    print("generalised", round(time.perf_counter() - begin, 1))
    shapes = {name: one.shapes for name, one in whole.workloads.items()}
    mod, corners = with_corners(whole.greatest.mod, shapes)
    reads_inputs = _that_read_inputs(mod)
    workloads = {**whole.workloads, **_corner_workloads(corners, domain)}
    with opened(options.database) as store:
        search = Search(options.topk, options.budget_s if options.tune else 0.0)
        chosen = tuned(workloads, reads_inputs, domain, device, search, store, options.measurer, options.progress)
    print("tuned", round(time.perf_counter() - begin, 1))
    greatest = {name: _at_greatest(one, domain, device) for name, one in chosen.items()}
    spliced = splice(mod, greatest)
    variants = {name: _variants(one, domain) for name, one in chosen.items()}
    return domain, whole, spliced, variants, device


def _that_read_inputs(mod: Any) -> frozenset[str]:
    from tvm.ir import Call

    main, found = mod["main"], set()
    for block in main.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, Call) and len(value.args) > 1 and hasattr(value.args[1], "fields"):
                if any(arg.same_as(param) for arg in value.args[1].fields for param in main.params):
                    found.add(value.args[0].name_hint)
    return frozenset(found)


def _corner_workloads(corners: Mapping[str, Any], domain: Domain) -> dict[str, DynamicWorkload]:
    made = {}
    points = sample_points(domain)
    for name, (whole, dims, dtype) in corners.items():
        one = dynamic_workload([corner(whole, [dim.at(point) for dim in dims], dtype) for point in points], points)
        assert not isinstance(one, NotApplicable), one.reason
        made[name] = one
    return made


def _at_greatest(chosen: Chosen, domain: Domain, device: Device) -> Kernel:
    """The static kernel whose packed constants the artifact has; at run time the variants take its place."""
    workload = chosen.pool.workload.at(chosen.pool.workload.extents_at(domain.greatest))
    for candidate in chosen.candidates:
        kernel = backends.schedule(workload, candidate, device)
        if isinstance(kernel, Kernel) and kernel.packings == chosen.packings:
            return kernel
    raise AssertionError(f"none of {chosen.candidates} can be scheduled at {domain.greatest}")


def _variants(chosen: Chosen, domain: Domain) -> Variants:
    workload = chosen.pool.workload
    greatest = workload.extents_at(domain.greatest)

    def variant(kernel: DynamicKernel) -> Variant:
        tiles = dict(zip(workload.names, kernel.tiles(greatest), strict=True))
        return Variant(kernel.template.symbolic(workload.names, tiles), kernel.granules)

    kernels = [chosen.pool.kernels[one] for one in chosen.candidates]
    return Variants(
        workload.extents,
        tuple(map(variant, kernels)),
        chosen.tree,
    )

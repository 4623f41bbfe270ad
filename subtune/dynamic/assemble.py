"""A tuned dynamic model as a package: the greatest instance's module, and kernels for any instance beside it."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.ir import Call

from subtune import backends
from subtune.backends.base import Device
from subtune.core.domain import Domain
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.variants import Variant, Variants
from subtune.dynamic.kernel import dynamic_kernel
from subtune.dynamic.serve import linked
from subtune.dynamic.tune import Chosen
from subtune.passes.data_views import without_body


def that_read_inputs(mod: Any) -> frozenset[str]:
    """Names of the PrimFuncs of an outlined module that are called on inputs of the model, behind whose last rows is
    memory of somebody else."""
    main, found = mod["main"], set()
    for block in main.body.blocks:
        for binding in block.bindings:
            value = binding.value
            args = value.args[1].fields if isinstance(value, Call) and _has_tuple(value) else ()
            if any(arg.same_as(param) for arg in args for param in main.params):
                found.add(value.args[0].name_hint)
    return frozenset(found)


def _has_tuple(call: Call) -> bool:
    return len(call.args) > 1 and isinstance(call.args[1], relax.Tuple)


def variants_of(chosen: Chosen, domain: Domain, device: Device) -> tuple[Variants, Kernel]:
    """The kernels of a subgraph, and in the place of a static one what has the same arguments and constants.

    Without symbols that is the kernel of the only instance.
    """
    workload = chosen.workload
    greatest = workload.extents_at(domain.greatest)
    kernels: list[Kernel] = []
    for candidate in chosen.candidates:
        found = dynamic_kernel(workload, candidate, device)
        assert not isinstance(found, NotApplicable), f"{candidate} was built before: {found.reason}"
        kernels.append(linked(workload, found, greatest))
    static = Kernel(workload.at(greatest).func, kernels[0].packings)
    for candidate in chosen.candidates:
        scheduled = backends.schedule(workload.at(greatest), candidate, device)
        if isinstance(scheduled, Kernel) and scheduled.packings == kernels[0].packings:
            static = scheduled
            break
    if domain.symbols:  # what copies nothing but a view at the greatest instance may do more at others
        static = Kernel(without_body(static.func), static.packings)
    variants = tuple(Variant(kernel.func, kernel.granules) for kernel in kernels)
    return Variants(workload.extents, variants, chosen.tree), static

"""A tuned dynamic model as a package: the greatest instance's module, and kernels for any instance beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import tirx

from subtune import backends
from subtune.backends.base import Device
from subtune.core.domain import Domain
from subtune.core.kernel import ConstantTransform, Kernel
from subtune.core.measurement import Failure
from subtune.core.variants import Variant, Variants
from subtune.core.workload import Arg
from subtune.dynamic.choose import Chosen
from subtune.dynamic.serve import SCHEDULE, carried, schedule
from subtune.dynamic.workload import DynamicWorkload
from subtune.measure import LocalMeasurer
from subtune.passes.data_views import without_body


def kernels_of(
    chosen: Mapping[str, Chosen], domain: Domain, device: Device, measurer: LocalMeasurer
) -> dict[str, list[Kernel]]:
    """The kernels of every subgraph, in the order of its candidates."""
    names = [name for name, one in chosen.items() for _ in one.candidates]
    whole = {name: carried(one.workload, one.workload.extents_at(domain.greatest)) for name, one in chosen.items()}
    wanted = [(whole[name], candidate) for name, one in chosen.items() for candidate in one.candidates]
    found: dict[str, list[Kernel]] = {name: [] for name in chosen}
    made = measurer.scheduled(wanted, device, SCHEDULE)
    for name, (workload, candidate), kernel in zip(names, wanted, made, strict=True):
        # it was built before: whatever ended a builder is not its fault
        again = schedule(workload, candidate, device) if isinstance(kernel, Failure) else kernel
        assert isinstance(again, Kernel), f"{candidate}: {again.reason}"
        found[name].append(again)
    return found


def variants_of(chosen: Chosen, kernels: Sequence[Kernel], domain: Domain, device: Device) -> tuple[Variants, Kernel]:
    """The kernels of a subgraph, and in the place of a static one what has the same arguments and constants.

    Without symbols that is the kernel of the only instance.
    """
    workload = chosen.workload
    greatest = workload.extents_at(domain.greatest)
    if not domain.symbols:
        static = backends.schedule(workload.at(greatest), chosen.candidates[0], device)
        assert isinstance(static, Kernel), static.reason
    else:  # what copies nothing but a view at the greatest instance may do more at others
        static = _all_arguments(workload, greatest, kernels)
    variants = tuple(
        Variant(kernel.func, kernel.granules, kernel.knows_extents, _taken(workload, kernel, static))
        for kernel in kernels
    )
    return Variants(workload.extents, variants, chosen.tree), static


def _all_arguments(workload: DynamicWorkload, greatest: Sequence[int], kernels: Sequence[Kernel]) -> Kernel:
    """A function without a body that takes what any of the kernels does: constants in all layouts."""
    args = workload.at(greatest).args
    first = dict(kernels[0].packings)
    packed = sorted({index for kernel in kernels for index, _ in kernel.packings})
    forms = [(index, dict(kernel.packings).get(index)) for kernel in kernels for index in packed]
    more = tuple(dict.fromkeys(form for form in forms if form != (form[0], first.get(form[0]))))
    inputs = len(args) - workload.num_outputs
    given = [_buffer(arg, first.get(index)) for index, arg in enumerate(args)]
    again = [_buffer(args[index], form) for index, form in more]
    params = [*given[:inputs], *again, *given[inputs:]]
    whole = tirx.PrimFunc(params, tirx.Evaluate(0))
    return Kernel(without_body(whole), kernels[0].packings, more=more)


def _buffer(arg: Arg, form: ConstantTransform | None) -> Any:
    return tirx.decl_buffer(form.shape if form else arg.shape, arg.dtype, arg.name)


def _taken(workload: DynamicWorkload, kernel: Kernel, static: Kernel) -> tuple[int, ...]:
    """Which arguments of `static` a kernel takes."""
    wanted, first = dict(kernel.packings), dict(static.packings)
    count = len(workload.shapes)
    inputs = count - workload.num_outputs
    packed = {*wanted, *first}
    places = [
        inputs + static.more.index((index, wanted.get(index)))
        if index in packed and wanted.get(index) != first.get(index)
        else index
        for index in range(inputs)
    ]
    return (*places, *range(inputs + len(static.more), count + len(static.more)))

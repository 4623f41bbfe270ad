"""A dynamic workload on its way to the builders: its greatest instance, which carries it along."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from subtune.backends.base import Device
from subtune.core.candidate import Candidate
from subtune.core.dims import parse
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.dynamic.kernel import DynamicKernel, dynamic_kernel, single_kernel
from subtune.dynamic.marks import is_alone, of_family
from subtune.dynamic.overlap import overlapping
from subtune.dynamic.shares import iterations_per_tile
from subtune.dynamic.template import Template
from subtune.dynamic.workload import DynamicWorkload

SCHEDULE = "subtune.dynamic.serve:schedule"
"""For `LocalMeasurer.session`: kernels for all instances."""
_CARRIED = "subtune.dynamic"


def carried(workload: DynamicWorkload, greatest: Sequence[int]) -> Workload:
    """The greatest instance, with all others in an attribute."""
    holes = {str(at): str(dim) for at, dim in workload.template.holes.items()}
    text = json.dumps(
        {
            "nodes": workload.template.nodes,
            "root": workload.template.root,
            "holes": holes,
            "extents": [str(dim) for dim in workload.extents],
            "shapes": [[str(dim) for dim in shape] for shape in workload.shapes],
            "greatest": list(greatest),
            "least": list(workload.least),
        }
    )
    return Workload.of(workload.at(greatest).func.with_attr(_CARRIED, text), workload.num_outputs)


def schedule(workload: Workload, candidate: Candidate, device: Device) -> Kernel | NotApplicable:
    """As `subtune.backends.schedule`: the kernel for all instances of a workload that `carried` made."""
    whole, greatest = _whole(str(workload.func.attrs[_CARRIED]), workload.num_outputs)
    tiles = of_family(candidate)
    found = single_kernel(whole, tiles, device) if is_alone(candidate) else dynamic_kernel(whole, tiles, device)
    if isinstance(found, NotApplicable):
        return found
    kernel = linked(whole, found, greatest, device)
    if is_alone(candidate):
        return replace(kernel, iterations=0.0, least=1, most=1)
    return kernel if tiles == candidate else overlapping(whole, kernel)


@lru_cache(maxsize=4)
def _whole(text: str, num_outputs: int) -> tuple[DynamicWorkload, tuple[int, ...]]:
    """What `carried` wrote: the workload, the same object for all candidates, and its greatest instance."""
    data: dict[str, Any] = json.loads(text)
    template = Template(tuple(data["nodes"]), data["root"], {int(k): parse(v) for k, v in data["holes"].items()})
    extents = tuple(map(parse, data["extents"]))
    shapes = tuple(tuple(map(parse, shape)) for shape in data["shapes"])
    greatest = tuple(data["greatest"])
    return DynamicWorkload(template, num_outputs, extents, shapes, greatest, tuple(data["least"])), greatest


def linked(workload: DynamicWorkload, kernel: DynamicKernel, greatest: Sequence[int], device: Device) -> Kernel:
    """The kernel as it is built: with memory of its own for the greatest instance."""
    numbers = dict(zip(kernel.names(workload), kernel.numbers(greatest), strict=True))
    func = kernel.template.symbolic(list(numbers), numbers, kernel.is_lowered)
    return Kernel(
        device.backend.completed(func, device),
        kernel.packings,
        granules=kernel.granules,
        knows_extents=kernel.knows_extents,
        iterations=iterations_per_tile(func, kernel.granules, kernel.knows_extents),
    )

"""Products of Hopper's tensor cores, run on the processor: whole kernels, as they are proposed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from subtune import backends
from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.families.wgmma.schedule import product_of
from subtune.core.kernel import NotApplicable
from subtune.core.numerics import PLAIN
from subtune.core.workload import Workload
from subtune.measure.guarded import numpy_dtype
from tests.backends.cuda import cuda_on_cpu, hopper_on_cpu
from tests.backends.cuda.proposals import tile_of


def on_hopper(given: Workload, inputs: list[np.ndarray], folder: Path) -> np.ndarray:
    """What the kernel computes that is predicted to be the fastest of those without clusters, on three processors."""
    device = replace(CUDA("H100"), sms=3)
    found = [tile_of(c) for c in backends.candidates(given, CUDA("H100"), 60) if c.family == "cuda.wgmma"]
    tiling = next(t for t in found if t.cluster == t.split == 1)
    made = product_of(Problem(given, device, PLAIN), given, tiling, in_place=True)
    assert not isinstance(made, NotApplicable), made
    out = np.zeros([int(d) for d in given.args[-1].shape], numpy_dtype(given.args[-1].dtype))
    params = tuple(made.buffers.values())
    arrays = dict(zip((str(p.name) for p in params), [*inputs, out], strict=True))
    for i, packing in made.packings:
        arrays[str(params[i].name)] = np.ascontiguousarray(packing(inputs[i]))
    (one,) = made.copies
    maps = {
        f"map_{letter}": hopper_on_cpu.tensor_map(arrays[str(buffer.name)], map_.arguments)
        for letter, buffer, map_ in zip("ab", (one.a, one.b), one.maps, strict=True)
    }
    operands = {str(operand.name) for operand in made.operands}
    rest = {name: array for name, array in arrays.items() if name not in operands}
    code = cuda_on_cpu.source(made.kernel(params, made.store).func, CUDA("H100"))
    cuda_on_cpu.launch(code, "main_kernel", maps | rest, made.walk.clusters, tiling.threads, folder)
    return out

"""How to run a kernel of a workload."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm

from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.lowering.pipeline import PIPELINE
from subtune.core.kernel import Kernel
from subtune.core.record import func_hash
from subtune.core.workload import Workload


@pytest.fixture(scope="session")
def run(device: CPUModel) -> Callable[[Workload, Kernel], np.ndarray]:
    """Run a kernel of a workload on seeded inputs, compiled as an artifact's kernels are.

    A kernel of nothing (`None`) is the unscheduled function, compiled by TVM alone, quickly; run once for a workload.
    """
    unscheduled = tvm.target.Target({**dict(device.target().export()), "opt-level": 0})
    expected: dict[str, np.ndarray] = {}

    def run(workload: Workload, kernel: Kernel | None) -> np.ndarray:
        if kernel:
            return computed(workload, kernel)
        key = func_hash(workload.func)
        if key not in expected:
            expected[key] = computed(workload, None)
        return expected[key].copy()

    def computed(workload: Workload, kernel: Kernel | None) -> np.ndarray:
        rng = np.random.default_rng(1)
        arrays = [rng.standard_normal(arg.shape).astype(arg.dtype) for arg in workload.args]
        for index, packing in kernel.packings if kernel else ():
            arrays[index] = packing(arrays[index])
        func = (kernel.func if kernel else workload.func).with_attr("global_symbol", "main")
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        tensors[-1] = tvm.runtime.tensor(np.full(workload.args[-1].shape, np.nan, workload.args[-1].dtype))
        if kernel:
            built = tvm.compile(func, target=device.target(), tir_pipeline=PIPELINE)
        else:
            built = tvm.compile(func, target=unscheduled)
        built["main"](*tensors)
        return tensors[-1].numpy()

    return run

"""Strassen's algorithm on a caller's memory: no row behind the last one is read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tvm

from subtune.backends import as_device
from subtune.backends.cpu.device import CPU
from subtune.core.candidate import Candidate
from subtune.core.domain import Domain, Symbol
from subtune.core.kernel import Kernel
from subtune.dynamic.kernel import DynamicKernel, dynamic_kernel
from subtune.dynamic.serve import linked
from subtune.dynamic.tune import Prospect
from subtune.dynamic.workbench import Workbench
from subtune.measure import LocalMeasurer
from subtune.measure.guarded import _fenced
from tests.backends.workloads import dense, dense_residual
from tests.dynamic.flat_kernels import of_rows

DEVICE = as_device(CPU("x86-64-v3", threads=1))
DEPTH, COLUMNS, LONGEST = 512, 64, 40


@pytest.mark.skipif(sys.platform != "linux", reason="memory has no fence elsewhere")
@pytest.mark.parametrize(("levels", "mb", "order"), [(1, 8, "m"), (2, 4, "n")])
def test_rows_behind_the_last_are_not_read(levels: int, mb: int, order: str, tmp_path: Path) -> None:
    workload = of_rows(lambda rows: dense(rows, COLUMNS, DEPTH))
    candidate = Candidate.make("strassen", levels=levels, mr=4, nr=16, mb=mb, order=order)
    found = dynamic_kernel(workload, candidate, DEVICE)
    assert isinstance(found, DynamicKernel)
    kernel: Kernel = linked(workload, found, (LONGEST,), DEVICE)
    library = DEVICE.backend.build(kernel.func.with_attr("global_symbol", "main"), DEVICE, str(tmp_path / "k"), True)
    (granule,) = found.granules
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(shape).astype(np.float32) for shape in ((DEPTH, COLUMNS), (COLUMNS,))]
    packings = dict(kernel.packings)
    np.savez(tmp_path / "constants.npz", *(packings[i](w) if i in packings else w for i, w in enumerate(weights, 1)))
    calls = [(rows, *found.numbers((rows,))) for rows in (1, 5, granule - 1, granule + 1, LONGEST)]
    text = f"from {__name__} import run; run({str(library)!r}, {str(tmp_path / 'constants.npz')!r}, {granule}, {calls})"
    subprocess.run([sys.executable, "-c", text], check=True, cwd=Path(__file__).parents[2], timeout=120)


def run(library: str, constants: str, granule: int, calls: Sequence[Sequence[int]]) -> None:
    """In a process of its own, as who reads behind the rows has none afterwards."""
    main = tvm.runtime.load_module(library)["main"]
    arrays = [tvm.runtime.tensor(array) for array in np.load(constants).values()]
    for rows, *numbers in calls:
        x = _fenced(rows * DEPTH * 4)
        x.view(np.float32)[:] = 1.0
        out = tvm.runtime.empty((-(-rows // granule) * granule, COLUMNS), "float32")
        main(*numbers, tvm.runtime.from_dlpack(x)._create_view((rows, DEPTH), "float32"), *arrays, out)


def test_it_is_proposed_where_nothing_else_varies() -> None:
    device = as_device(CPU("znver4", threads=2))
    domain = Domain((Symbol.uniform("seq", range(1, 129)),))
    with LocalMeasurer() as local:
        bench, families = Workbench(local), {}
        for name, build in {"product": dense, "product and sum": dense_residual}.items():
            workload = of_rows(lambda rows, build=build: build(rows, 1792, 640))  # type: ignore[misc]
            prospect = Prospect(workload, domain, True, True, 8, device)
            families[name] = {one.family for one in prospect._proposed(bench)}
    assert "strassen" in families["product"]
    assert "strassen" not in families["product and sum"], "the other summand ends with the last row, too"

"""Strassen's algorithm on a caller's memory: no row behind the last one is read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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

DEVICE = as_device(CPU("x86-64-v3", threads=2))
DEPTH, COLUMNS, LONGEST = 512, 64, 40


@pytest.mark.skipif(sys.platform != "linux", reason="memory has no fence elsewhere")
@pytest.mark.parametrize("is_sum", [False, True])
@pytest.mark.parametrize(("levels", "mb", "order"), [(1, 8, "m"), (2, 4, "n"), (1, 4, "tn"), (1, 8, "tm")])
def test_rows_behind_the_last_are_not_read(levels: int, mb: int, order: str, is_sum: bool, tmp_path: Path) -> None:
    """Nor of another summand, which ends with the last row, too."""
    workload = of_rows(lambda rows: (dense_residual if is_sum else dense)(rows, COLUMNS, DEPTH))
    candidate = Candidate.make("strassen", levels=levels, mr=4, nr=16, mb=mb, order=order)
    found = dynamic_kernel(workload, candidate, DEVICE)
    assert isinstance(found, DynamicKernel)
    kernel: Kernel = linked(workload, found, (LONGEST,), DEVICE)
    library = DEVICE.backend.build(kernel.func.with_attr("global_symbol", "main"), DEVICE, str(tmp_path / "k"), True)
    (granule,) = found.granules
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(shape).astype(np.float32) for shape in ((DEPTH, COLUMNS), (COLUMNS,))]
    *args, _ = workload.at((LONGEST,)).args
    constant = [i for i, arg in enumerate(args) if arg.is_constant]
    packings = dict(kernel.packings)
    packed = (packings[i](w) if i in packings else w for i, w in zip(constant, weights, strict=True))
    np.savez(tmp_path / "constants.npz", *packed)
    calls = [(rows, *found.numbers((rows,))) for rows in (1, 5, granule - 1, granule + 1, LONGEST)]
    about = (
        str(library),
        str(tmp_path / "constants.npz"),
        granule,
        calls,
        [0 if arg.is_constant else arg.shape[1] for arg in args],
    )
    text = f"from {__name__} import run; run{about!r}"
    subprocess.run([sys.executable, "-c", text], check=True, cwd=Path(__file__).parents[2], timeout=120)


def run(library: str, constants: str, granule: int, calls: Sequence[Sequence[int]], columns: Sequence[int]) -> None:
    """In a process of its own, as who reads behind the rows has none afterwards.

    `columns`: of inputs, 0 of constants.
    """
    main = tvm.runtime.load_module(library)["main"]
    arrays = [tvm.runtime.tensor(array) for array in np.load(constants).values()]
    for rows, *numbers in calls:
        left = iter(arrays)
        args = [_last_in_memory(rows, width) if width else next(left) for width in columns]
        out = tvm.runtime.empty((-(-rows // granule) * granule, COLUMNS), "float32")
        main(*numbers, *args, out)


def _last_in_memory(rows: int, columns: int) -> Any:
    array = _fenced(rows * columns * 4)
    array.view(np.float32)[:] = 1.0
    return tvm.runtime.from_dlpack(array)._create_view((rows, columns), "float32")


def test_it_is_proposed_for_products_and_sums() -> None:
    device = as_device(CPU("znver4", threads=2))
    domain = Domain((Symbol.uniform("seq", range(1, 129)),))
    with LocalMeasurer() as local:
        bench, families = Workbench(local), {}
        for name, build in {"product": dense, "product and sum": dense_residual}.items():
            workload = of_rows(lambda rows, build=build: build(rows, 1792, 640))  # type: ignore[misc]
            prospect = Prospect(workload, domain, True, True, 8, device)
            families[name] = {one.family for one in prospect._proposed(bench)}
    assert all("strassen" in of for of in families.values()), families

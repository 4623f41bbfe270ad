"""Tiles of rows that there are: right at every extent, and nothing behind the last row is read or written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper
from tvm import te

import subtune
from subtune.backends import as_device
from subtune.backends.base import Device
from subtune.backends.cpu.device import CPU
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.driver import compile_model
from subtune.dynamic.marks import of_family, overlapped
from subtune.dynamic.measured import Measured
from subtune.dynamic.overlap import overlapping
from subtune.dynamic.serve import carried, schedule
from subtune.dynamic.workload import DynamicWorkload, dynamic_workload
from subtune.measure.messages import Library
from subtune.models.builder import Builder
from tests.backends.cpu.test_amx import SPR, needs_tiles
from tests.backends.workloads import dense
from tests.dynamic.flat_kernels import FlatKernel, of_rows
from tests.dynamic.test_kernel import expected

DEVICE = as_device(CPU("x86-64-v3", threads=2))
TILES = {
    "rows of tiles one after the other": Candidate.make("contraction", mr=4, mt=1, nr=16, order="n", panel=8),
    "tiles shared out": Candidate.make("contraction", mr=4, mt=1, nr=16, order="m", panel=8),
    "two tiles together": Candidate.make("contraction", mr=3, mt=2, nr=16, order="m", panel=8),
    "one row": Candidate.make("contraction", mr=1, mt=1, nr=16, order="n", panel=8),
}


@pytest.mark.parametrize("case", TILES)
def test_every_extent_from_a_tile_on(case: str) -> None:
    """The arrays end with the last row: `FlatKernel` sees what is written behind it, and NaN is what is read there."""
    workload = of_rows(lambda rows: dense(rows, 32, 16))
    kernel = schedule(carried(workload, (29,)), overlapped(TILES[case]), DEVICE)
    assert isinstance(kernel, Kernel), kernel
    assert kernel.granules == (1,)
    _is_right(workload, kernel, DEVICE)


BLOCKS = Candidate.make("amx_parts", mr=3, mt=1, nr=1, order="n", rows=5, passes=1)
"""Of 15 rows, which are packed and written in loops over them."""


def test_rows_of_a_loop_need_no_whole_tile() -> None:
    workload = of_rows(lambda rows: dense(rows, 32, 16))
    kernel = schedule(carried(workload, (29,)), overlapped(BLOCKS), as_device(SPR))
    assert isinstance(kernel, Kernel), kernel
    assert kernel.granules == (1,)
    assert kernel.least == 1


@needs_tiles
def test_rows_past_the_last_are_the_last() -> None:
    workload, device = of_rows(lambda rows: dense(rows, 32, 16)), as_device(SPR)
    kernel = schedule(carried(workload, (29,)), overlapped(BLOCKS), device)
    assert isinstance(kernel, Kernel), kernel
    _is_right(workload, kernel, device)


def test_fewer_rows_than_a_tile_are_for_others() -> None:
    one = overlapped(TILES["tiles shared out"])
    workload = of_rows(lambda rows: dense(rows, 32, 16))
    kernel = schedule(carried(workload, (29,)), one, DEVICE)
    assert isinstance(kernel, Kernel)
    library = Library("", "", (), 0.0, kernel.granules, least=kernel.least)
    found = Measured({one: library}, right={one: [(29,), (16,)]}, ends=((29,), (1,)))
    assert [rows for rows in range(1, 40) if found.serves(one, (rows,))] == list(range(4, 40))


def test_candidates_and_their_tiles() -> None:
    for candidate in TILES.values():
        assert of_family(overlapped(candidate)) == candidate != overlapped(candidate)
    assert overlapped(DEFAULT) == DEFAULT


def test_what_cannot_overlap() -> None:
    """A row inside of others, and a kernel that adds up the rows that there are."""
    heads = dynamic_workload([_heads(rows) for rows in (11, 13, 17, 19)], [{"seq": rows} for rows in (11, 13, 17, 19)])
    assert isinstance(heads, DynamicWorkload)
    kernel = Kernel(heads.at((16,)).func, granules=(4,))
    assert "outermost" in _reason(overlapping(heads, kernel))
    rows = of_rows(lambda rows: dense(rows, 32, 16))
    assert "alike" in _reason(overlapping(rows, Kernel(rows.at((16,)).func, granules=(8,), knows_extents=True)))


def test_a_model_of_one_layer_copies_nothing(tmp_path: Path) -> None:
    b = Builder("layer", opset=17, dtype="float32")
    x = b.input("x", ("seq", 48))
    b.output(b.op("Relu", b.linear("layer", x, 48, 32)), ("seq", 32))
    model, path = b.finish(), tmp_path / "layer.subtune"
    compile_model(model, path, dynamic={"seq": "1..12"}, threads=2, topk=1, verify=False)
    artifact = subtune.load(path)
    assert [one.name for one in artifact.manifest.subgraphs if "copied" in one.name] == []
    weights, bias = sorted(map(numpy_helper.to_array, model.graph.initializer), key=lambda one: -one.ndim)
    rng = np.random.default_rng(0)
    for rows in range(1, 13):
        given = rng.standard_normal((rows, 48)).astype("float32")
        (got,) = artifact.run({"x": given}).values()
        np.testing.assert_allclose(got, np.maximum(given @ weights + bias, 0), rtol=1e-4, atol=1e-4)


def _is_right(workload: DynamicWorkload, kernel: Kernel, device: Device) -> None:
    built = FlatKernel(kernel, device)
    rng = np.random.default_rng(0)
    for rows in range(max(kernel.least, 1), 29):
        args = [arg for arg in workload.at((rows,)).args if not arg.is_output]
        given = [rng.standard_normal(arg.shape).astype(arg.dtype) for arg in args]
        constants = [i for i, arg in enumerate(args) if arg.is_constant]
        got = built((rows,), given, (rows, 32), constants=constants)
        np.testing.assert_allclose(got, expected("dense", given), rtol=1e-4, atol=1e-5)


def _heads(rows: int) -> Workload:
    x = te.placeholder((3, rows, 8), name="x")
    y = te.compute((3, rows, 8), lambda *at: x(*at) + 1, name="y")
    return Workload.of(te.create_prim_func([x, y]), 1)


def _reason(found: Kernel | NotApplicable) -> str:
    assert isinstance(found, NotApplicable)
    return found.reason

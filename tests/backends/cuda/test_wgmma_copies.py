"""Products for Hopper that store copies of their results: what is recognised, what is stored where, that it builds."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subtune import backends
from subtune.backends.base import Problem
from subtune.backends.cpu.device import CPU
from subtune.backends.cuda.building.compiler import compile_source, compiler
from subtune.backends.cuda.building.cubin import resources
from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.families import FAMILIES, wgmma
from subtune.backends.cuda.families.wgmma.schedule import product_of
from subtune.backends.cuda.families.wgmma.store_copies import (
    bounds,
    copied_bytes,
    indices,
    product_alone,
    with_copies,
)
from subtune.backends.cuda.families.wgmma.tiling import Tiling
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.measure.guarded import numpy_dtype
from subtune.patterns.contraction import Contraction
from subtune.patterns.copies import Walked
from subtune.patterns.product_copies import ProductWithCopies, Run, product_with_copies
from subtune.patterns.recognise import recognise
from tests.backends.cuda import cuda_on_cpu, hopper_on_cpu
from tests.backends.cuda.copied_workloads import copies_of, outputs_on_gpu, product_and_widened, product_that_gives
from tests.backends.cuda.proposals import proposed
from tests.backends.cuda.test_wgmma import HERE

H200 = CUDA("H200")

KEYS_AND_VALUES = {"heads": 2, "rows": 36, "dim": 64, "k": 64}

CASES: dict[str, tuple[dict[str, Any], Tiling]] = {
    "as float32, rows beyond": (KEYS_AND_VALUES, Tiling((64,), 128, 3, 1)),
    "as halves, columns beyond": ({**KEYS_AND_VALUES, "heads": 3, "given_dtype": "float16"}, Tiling((64,), 256, 2, 1)),
    "tiles across a copy's ends": ({**KEYS_AND_VALUES, "dim": 40, "given": "k"}, Tiling((128,), 96, 3, 2)),
    "all three, as they lie": ({**KEYS_AND_VALUES, "given": "qkv", "order": (0, 1, 2, 3)}, Tiling((64,), 64, 3, 1)),
    "the last rows": ({**KEYS_AND_VALUES, "batch": 1, "rows": 200, "cut": 70}, Tiling((64,), 128, 3, 2, True)),
    "rows of batches side by side": ({**KEYS_AND_VALUES, "order": (2, 1, 0, 3)}, Tiling((64,), 128, 3, 1)),
    "bfloat16, GELU, a residual": (
        {**KEYS_AND_VALUES, "dtype": "bfloat16", "gelu": True, "residual": True}, Tiling((64,), 128, 3, 1)),
    "swapped": ({**KEYS_AND_VALUES, "dim": 16, "heads": 2}, Tiling((128,), 128, 3, 2, swapped=True)),
}  # fmt: skip


def pattern_of(workload: Workload) -> ProductWithCopies:
    found = recognise(workload)
    assert isinstance(found, ProductWithCopies), found
    return found


def inputs_of(workload: Workload) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    given = [arg for arg in workload.args if not arg.is_output]
    return [(rng.standard_normal(arg.shape) / 2).astype(numpy_dtype(arg.dtype)) for arg in given]


def test_it_is_a_pattern_of_its_own_that_one_family_takes() -> None:
    workload = product_that_gives(4, 128, 64, 256)
    found = pattern_of(workload)
    assert isinstance(recognise(found.front), Contraction)
    assert found.front.num_outputs == 1
    assert [arg.is_constant for arg in found.front.args] == [arg.is_constant for arg in workload.args][:-2]
    keys, values = found.sections
    assert (keys.param, values.param) == (len(workload.args) - 2, len(workload.args) - 1)
    assert (keys.rows.first, keys.rows.count) == (0, 256)
    assert [(s.columns.first, s.columns.count) for s in found.sections] == [(256, 256), (512, 256)]
    assert [family.name for family in FAMILIES if proposed(family, workload, H200)] == ["cuda.wgmma"]
    assert not backends.candidates(workload, CUDA("A100"))
    assert not backends.candidates(workload, CPU("auto"))


def test_candidates_are_those_of_the_product_that_write_more() -> None:
    workload = product_that_gives(12, 1024, 64, 768, batch=4)
    problem = Problem(workload, H200)
    front = product_alone(problem)
    assert copied_bytes(problem) == 2 * 4 * 1024 * 768 * 4
    assert copied_bytes(front) == 0
    alone = {c.knobs: c.predicted_s for c in wgmma.FAMILY.candidates(front)}
    found = {c.knobs: c.predicted_s for c in wgmma.FAMILY.candidates(problem)}
    least_s = 0.9 * copied_bytes(problem) / H200.dram_bytes_per_s
    both = alone.keys() & found.keys()
    assert len(both) > 20
    assert all(found[knobs] > alone[knobs] + least_s for knobs in both)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"order": (0, 2, 3, 1)}, ""),  # keys transposed: neighbours are of other rows
        ({"dim": 12}, ""),
        ({"cut": 4}, "no neighbours"),
        ({"step": 2}, "no neighbours"),
        ({"by": 2.0}, "no result is a part"),
    ],
)
def test_what_is_no_run_of_rows_and_columns_is_refused(options: dict[str, Any], reason: str) -> None:
    workload = product_that_gives(**{**KEYS_AND_VALUES, **options})
    if reason:
        found = product_with_copies(workload)
        assert isinstance(found, NotApplicable)
        assert reason in found.reason
        assert "several outputs" in wgmma.FAMILY.accepts(Problem(workload, H200))
        return
    pattern_of(workload)
    kernel = backends.schedule(workload, Candidate.make("cuda.wgmma", **Tiling((64,), 64, 3, 1).knobs()), H200)
    assert isinstance(kernel, NotApplicable)
    assert "side by side" in kernel.reason or "straddle" in kernel.reason


def test_a_result_that_is_only_widened_is_an_epilogue() -> None:
    """That is no matter of where it is stored: other families know two values of an element."""
    workload = product_and_widened(128, 64, 64)
    assert isinstance(recognise(workload), Contraction)
    assert product_with_copies(workload) == NotApplicable("no result is a part of the first, or in another order")


def test_an_index_is_taken_apart_by_the_dims_that_walk_it() -> None:
    run = Run(4, 24, (Walked(2, 12, 2), Walked(0, 4, 3), Walked(1, 1, 4)))
    places = [indices(run, 4 + i) for i in range(24)]
    assert [at[2] * 12 + at[0] * 4 + at[1] for at in places] == list(range(24))
    assert [max(at[dim] for at in places) for dim in range(3)] == [2, 3, 1]
    assert [all(bounds(run, i, 30)) for i in (3, 4, 27, 28)] == [False, True, True, False]
    assert bounds(Run(0, 24, run.walk), 5, 24) == []


@pytest.mark.parametrize("case", CASES)
def test_every_element_is_stored_once(case: str) -> None:
    """By the kernel's own expressions of what is in a copy, and where."""
    options, _ = CASES[case]
    workload = product_that_gives(**options)
    shape = workload.args[pattern_of(workload).sections[0].param - 1].shape
    rows, columns = prod(shape[:-1]), shape[-1]
    joined = np.arange(rows * columns, dtype="int64").reshape(rows, columns)
    wanted = copies_of(joined, workload, **options)
    for section, want in zip(pattern_of(workload).sections, wanted, strict=True):
        found = np.full(section.shape, -1, "int64")
        for row in range(rows):
            for column in range(columns):
                if all((*bounds(section.rows, row, rows), *bounds(section.columns, column, columns))):
                    at = indices(section.rows, row) | indices(section.columns, column)
                    place = tuple(at.get(dim, 0) for dim in range(len(section.shape)))
                    assert found[place] == -1
                    found[place] = joined[row, column]
        assert np.array_equal(found, want)


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.grid
def test_kernels_are_right(case: str, tmp_path: Path) -> None:
    """The whole kernel on the processor: the product within its rounding, and its copies bit by bit."""
    options, tiling = CASES[case]
    workload = product_that_gives(**options)
    problem = Problem(workload, replace(H200, sms=3))
    product = product_of(problem, pattern_of(workload).front, tiling)
    assert not isinstance(product, NotApplicable), product
    copied = with_copies(problem, product.store, tuple(product.buffers.values()))
    assert not isinstance(copied, NotApplicable), copied
    copies, params = copied
    inputs = inputs_of(workload)
    outputs = [np.full(arg.shape, np.nan, numpy_dtype(arg.dtype)) for arg in workload.args if arg.is_output]
    arrays = dict(zip((str(p.name) for p in params), [*inputs, *outputs], strict=True))
    for i, packing in product.packings:
        arrays[str(params[i].name)] = np.ascontiguousarray(packing(inputs[i]))
    (one,) = product.copies
    maps = {
        f"map_{letter}": hopper_on_cpu.tensor_map(arrays[str(buffer.name)], map_.arguments)
        for letter, buffer, map_ in zip("ab", (one.a, one.b), one.maps, strict=True)
    }
    multiplied = {str(operand.name) for operand in product.operands}
    rest = {name: array for name, array in arrays.items() if name not in multiplied}
    func = product.kernel(params, replace(product.store, copies=copies)).func
    code = cuda_on_cpu.source(func, H200)
    cuda_on_cpu.launch(code, "main_kernel", maps | rest, product.walk.clusters, tiling.threads, tmp_path)
    check(workload, options, inputs, outputs)


def check(workload: Workload, options: dict[str, Any], inputs: list[np.ndarray], outputs: list[np.ndarray]) -> None:
    """The joined result as the reference has it, and the others as that is."""
    joined, *copies = outputs
    right = cuda_on_cpu.reference(workload, inputs)[0]
    limit = 2**-7 if joined.dtype.name == "bfloat16" else 2**-10
    np.testing.assert_allclose(joined.astype("float64"), right, rtol=limit, atol=limit * np.abs(right).max())
    for copy, want in zip(copies, copies_of(joined, workload, **options), strict=True):
        assert copy.dtype == want.dtype
        assert copy.tobytes() == want.tobytes()


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
@pytest.mark.parametrize("case", ["as float32, rows beyond", "bfloat16, GELU, a residual"])
def test_the_default_schedule_is_right(case: str, tmp_path: Path) -> None:
    options, _ = CASES[case]
    workload = product_that_gives(**options)
    kernel = backends.schedule(workload, DEFAULT, H200)
    assert isinstance(kernel, Kernel)
    inputs = inputs_of(workload)
    check(workload, options, inputs, cuda_on_cpu.run(kernel, inputs, workload, H200, tmp_path))


@pytest.mark.skipif(not compiler(), reason="neither NVRTC nor nvcc is installed")
@pytest.mark.parametrize(
    "tiling", [Tiling((192,), 192, 4, 3), Tiling((128,), 256, 4, 2), Tiling((64,), 128, 5, 2, True)]
)
def test_it_builds_without_spills(tiling: Tiling) -> None:
    workload = product_that_gives(12, 128, 64, 768, batch=8)
    kernel = backends.schedule(workload, Candidate.make("cuda.wgmma", **tiling.knobs()), H200)
    assert isinstance(kernel, Kernel), kernel
    text = cuda_on_cpu.source(kernel.func, H200)
    body = text[text.rindex("main_kernel(") :]
    stores = body.count("_global_cs_v4_b32(")
    assert stores
    assert stores % 4 == 0  # two copies, and two times 16 bytes of each vector
    (used,) = resources(compile_source(text, H200.target()))
    assert used.stack_bytes == 0


@pytest.mark.gpu
@pytest.mark.skipif(isinstance(HERE, str) or HERE.capability != 90, reason=f"no Hopper GPU: {HERE}")
@pytest.mark.parametrize("case", CASES)
def test_copies_on_a_gpu(case: str) -> None:
    options, _ = CASES[case]
    workload = product_that_gives(**options)
    inputs = inputs_of(workload)
    for candidate in proposed(wgmma.FAMILY, workload, H200)[::8]:
        check(workload, options, inputs, outputs_on_gpu(workload, candidate, H200, inputs))

"""Two products that are added up in one kernel: recognised, run on the processor, and built for Hopper."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from subtune import backends
from subtune.backends.base import Problem
from subtune.backends.cuda.building.compiler import compile_source, compiler
from subtune.backends.cuda.building.cubin import resources
from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.families import wgmma_summed
from subtune.backends.cuda.families.wgmma.schedule import Product, WgmmaKnobs, product_in_tiles
from subtune.backends.cuda.families.wgmma.tiling import Tiling
from subtune.backends.cuda.families.wgmma_summed.schedule import reads_of
from subtune.backends.cuda.lowering.pipeline import register
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from tests.backends.cuda import cuda_on_cpu, hopper_on_cpu
from tests.backends.cuda.proposals import allowing, proposed
from tests.backends.cuda.summed_workloads import fused
from tests.backends.cuda.test_wgmma import HERE

H200 = CUDA("H200")


def product_of(workload: Workload, tiling: Tiling) -> Product:
    """For a device so small that a block has several tiles."""
    problem = Problem(workload, replace(H200, sms=3))
    reads = reads_of(problem)
    assert isinstance(reads, tuple), reads
    product = product_in_tiles(problem, reads, tiling)
    assert isinstance(product, Product), product
    return product


# size, k, the shortcut's k, columns, and options
CASES: dict[str, tuple[tuple[int, ...], dict[str, Any], Tiling]] = {
    "one run of rows": ((9, 64, 64, 64), {}, Tiling((64,), 64, 3, 1)),
    "stride 2": ((16, 64, 128, 128), {"stride": 2}, Tiling((2, 8, 8), 128, 3, 2)),
    "stride 2 of odd sizes, and k beyond": ((13, 40, 72, 64), {"stride": 2}, Tiling((1, 8, 8), 64, 4, 1)),
    "consumers in turn": ((14, 128, 64, 96), {"stride": 2, "batch": 5}, Tiling((16, 2, 2), 96, 3, 2, True)),
    "boxes of images": ((7, 64, 64, 128), {"stride": 2, "batch": 70}, Tiling((64, 1, 1), 64, 3, 2, boxes=2)),
    "narrow rows of a stage": ((9, 32, 96, 64), {"stride": 2}, Tiling((2, 8, 4), 64, 4, 1, row_bytes=64)),
    "swapped, weights that stay": ((12, 64, 128, 64), {}, Tiling((128,), 64, 2, 2, True, swapped=True, resident=3)),
    "rasterised, without a bias": ((16, 64, 64, 192), {"bias": False}, Tiling((64,), 64, 3, 1, raster=2)),
    "SiLU": ((10, 64, 64, 64), {"act": "silu", "stride": 2}, Tiling((4, 4, 4), 64, 3, 1)),
    "bfloat16, no activation": ((10, 64, 64, 64), {"act": "", "dtype": "bfloat16"}, Tiling((64,), 64, 3, 1)),
}  # fmt: skip


def inputs_of(workload: Workload) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    given = [arg for arg in workload.args if not arg.is_output]
    dtypes = [np.dtype(cuda_on_cpu.numpy_dtype(arg.dtype)) for arg in given]
    return [(rng.standard_normal(arg.shape) / 4).astype(dtype) for arg, dtype in zip(given, dtypes, strict=True)]


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.grid
def test_kernels_are_right(case: str, tmp_path: Path) -> None:
    """The whole kernel: copies through tensor maps, products, and stores."""
    shape, options, tiling = CASES[case]
    workload = fused(*shape, **options)
    product = product_of(workload, tiling)
    inputs = inputs_of(workload)
    (wanted,) = cuda_on_cpu.reference(workload, inputs)
    out = workload.args[-1]
    made = np.full(out.shape, -7, inputs[0].dtype)
    arrays = dict(zip((arg.name for arg in workload.args), [*inputs, made], strict=True))
    for i, packing in product.packings:
        arrays[workload.args[i].name] = np.ascontiguousarray(packing(inputs[i]))
    maps = {
        f"map_{letter}{f'_{i}' if i else ''}": hopper_on_cpu.tensor_map(arrays[str(buffer.name)], map_.arguments)
        for i, copies in enumerate(product.copies)
        for letter, buffer, map_ in zip("ab", (copies.a, copies.b), copies.maps, strict=True)
    }
    multiplied = {str(operand.name) for operand in product.operands}
    rest = {name: array for name, array in arrays.items() if name not in multiplied}
    func = product.kernel(tuple(product.buffers.values()), product.store).func
    blocks = product.walk.clusters
    cuda_on_cpu.launch(cuda_on_cpu.source(func, H200), "main_kernel", maps | rest, blocks, tiling.threads, tmp_path)
    limit = 2**-7 if out.dtype == "bfloat16" else 2**-10
    np.testing.assert_allclose(made.astype("float64"), wanted, rtol=limit, atol=limit * np.abs(wanted).max())


RESNET = {56: (64, 64, 256, 1), 28: (128, 256, 512, 2), 14: (256, 512, 1024, 2), 7: (512, 1024, 2048, 2)}
"""Of every first block of ResNet-50's stages: pixels a side of the result, channels of both inputs and of the result,
the shortcut's stride."""


def of_resnet(side: int, batch: int = 128) -> Workload:
    k, other_k, n, stride = RESNET[side]
    return fused(side * stride, k, other_k, n, stride, batch)


@pytest.mark.parametrize("side", RESNET)
def test_candidates_of_a_residual_network(side: int) -> None:
    """Those of one product of as many steps, in less time than both take by themselves: all that fit."""
    workload = of_resnet(side)
    found = proposed(wgmma_summed.FAMILY, workload, H200)
    assert len(found) > 20
    k, other_k, n, _ = RESNET[side]
    least = 2 * 128 * side**2 * (k + other_k) * n / H200.mma_flops("float16")
    for candidate in found:
        knobs = candidate.as_knobs(WgmmaKnobs)
        assert isinstance(knobs, WgmmaKnobs)
        limits = H200.shared_per_block_bytes, H200.shared_per_sm_bytes
        assert not knobs.tiling.obstacle("float16", *limits)
        assert candidate.predicted_s > least
        assert len(knobs.tiling.rows) == (1 if side == 56 else 3)
    best = min(found, key=lambda candidate: candidate.predicted_s)
    assert isinstance(backends.schedule(workload, best, H200), Kernel)
    assert isinstance(backends.schedule(workload, DEFAULT, H200), Kernel)


def test_it_is_for_hopper_and_for_rows_that_the_hardware_copies() -> None:
    workload = of_resnet(28)
    assert wgmma_summed.FAMILY.accepts(Problem(workload, CUDA("A100")))
    assert wgmma_summed.FAMILY.accepts(Problem(workload, replace(H200, arch="sm_90")))
    assert proposed(wgmma_summed.FAMILY, workload, allowing(H200, tensor_core="off")) == []
    assert proposed(wgmma_summed.FAMILY, fused(12, 64, 68, 64, 2), H200) == []


def test_the_shortcut_of_a_tile_is_copied_by_maps_of_its_own() -> None:
    """Every step's boxes come from one product or the other, and what is stored is the only thing written."""
    workload = of_resnet(28)
    tiling = Tiling((2, 8, 8), 128, 4, 2)
    kernel = backends.schedule(workload, Candidate.make("cuda.wgmma_summed", **tiling.knobs()), H200)
    assert isinstance(kernel, Kernel), kernel
    text = cuda_on_cpu.source(kernel.func, H200)
    text = text[text.rindex("main_kernel(") :]
    copies = re.findall(r"async_bulk_tensor_(\d)d\w*\(.*?&\((map_\w+)\)", text)
    ahead, *copies = copies
    assert ahead == ("2", "map_b")
    assert copies == [("4", "map_a"), ("2", "map_b"), ("4", "map_a_1"), ("2", "map_b_1")]
    assert re.search(r"if \(local < 2\) \{", text)  # 128 channels, then 256
    assert "< 6; ++step" in text


def test_tiles_that_only_one_product_has_are_refused() -> None:
    for tiling, reason in (
        (Tiling((128,), 128, 4), "groups of rows"),
        (Tiling((1, 8, 8), 64, 2, 1, taps=3), "3 taps, the window has 1"),
        (Tiling((2, 8, 8), 512, 4), "columns"),
    ):
        found = backends.schedule(of_resnet(28), Candidate.make("cuda.wgmma_summed", **tiling.knobs()), H200)
        assert isinstance(found, NotApplicable)
        assert reason in found.reason


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
def test_the_default_schedule_has_tiles_of_images_where_rows_of_pixels_are_short(tmp_path: Path) -> None:
    workload = fused(7, 24, 40, 32, 2, 20)
    kernel = backends.schedule(workload, DEFAULT, H200)
    assert isinstance(kernel, Kernel)
    inputs = inputs_of(workload)
    (made,) = cuda_on_cpu.run(kernel, inputs, workload, H200, tmp_path)
    (wanted,) = cuda_on_cpu.reference(workload, inputs)
    np.testing.assert_allclose(made.astype("float64"), wanted, rtol=2**-9, atol=2**-9 * np.abs(wanted).max())
    text = cuda_on_cpu.source(kernel.func, H200)
    assert "__shfl" not in text  # no block for every element
    assert text.count("__shared__") == 4


@pytest.mark.skipif(not compiler(), reason="nothing compiles CUDA here")
def test_registers_suffice() -> None:
    workload = of_resnet(14)
    best = min(proposed(wgmma_summed.FAMILY, workload, H200), key=lambda candidate: candidate.predicted_s)
    kernel = backends.schedule(workload, best, H200)
    assert isinstance(kernel, Kernel)
    (used,) = resources(compile_source(cuda_on_cpu.source(kernel.func, H200), H200.target()))
    assert used.stack_bytes == 0


@pytest.mark.gpu
@pytest.mark.skipif(isinstance(HERE, str) or HERE.capability != 90, reason=f"no Hopper GPU: {HERE}")
@pytest.mark.parametrize("side", RESNET)
def test_results_on_a_gpu(side: int) -> None:
    workload = of_resnet(side, batch=8)
    inputs = inputs_of(workload)
    (wanted,) = cuda_on_cpu.reference(workload, inputs)
    device = tvm.cuda(0)
    for candidate in proposed(wgmma_summed.FAMILY, workload, H200)[:12]:
        kernel = backends.schedule(workload, candidate, H200)
        assert isinstance(kernel, Kernel)
        func = kernel.func.with_attr("global_symbol", "main")
        with H200.target():
            built = tvm.compile(func, target=H200.target(), tir_pipeline=register())
        packed = dict(kernel.packings)
        arrays = [tvm.runtime.tensor(packed[i](x) if i in packed else x, device) for i, x in enumerate(inputs)]
        result = tvm.runtime.tensor(np.full(wanted.shape, np.nan, "float16"), device)
        built["main"](*arrays, result)
        limit = 4e-3 * np.abs(wanted).max()
        np.testing.assert_allclose(
            result.numpy().astype("float64"), wanted, rtol=4e-3, atol=limit, err_msg=str(candidate)
        )

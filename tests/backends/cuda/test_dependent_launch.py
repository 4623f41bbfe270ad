"""Kernels of GPUs that can start them early wait for the one before; those of others are as they were."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tvm.relax import op

from subtune import backends
from subtune.backends import device_of
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.numerics import Numerics
from subtune.dynamic.kernel import DynamicKernel, dynamic_kernel
from subtune.dynamic.serve import linked
from subtune.models import reduced
from subtune.pipeline import prepare
from tests.backends.cuda.gemm_workloads import convolution
from tests.backends.workloads import build, conv
from tests.dynamic.flat_kernels import of_rows

WAIT, RELEASE = "griddepcontrol_wait()", "griddepcontrol_launch_dependents()"


def kernels(target: str, model: Any = None, defaults: tuple[Candidate, ...] = (DEFAULT,)) -> list[tuple[str, str]]:
    """(schedule, body) of every kernel of a model: the default and the first candidate of each workload."""
    device = device_of(target, None, None, Numerics(), is_measured=False)
    forms = device.backend.forms(device.model)
    model = model or reduced("bert", layers=1)
    prepared = prepare(model, None, Numerics(precision="fp16"), None, None, forms)
    found = []
    for subgraph in prepared.subgraphs:
        for candidate in (*defaults, *backends.candidates(subgraph.workload, device, 1)):
            kernel: Any = backends.schedule(subgraph.workload, candidate, device)
            module = device.backend.lower(kernel.func.with_attr("global_symbol", "main"), device)
            source = str(module.imports[0].inspect_source())
            for definition in re.split(r'extern "C" __global__ ', source)[1:]:
                head, _, body = definition.partition("{")
                if body and ";" not in head:
                    found.append((str(candidate), body))
    return found


def test_every_kernel_waits_before_it_touches_memory() -> None:
    found = kernels("h200")
    assert len({schedule.partition("(")[0] for schedule, _ in found}) >= 4
    for schedule, body in found:
        assert RELEASE in body, schedule
        before, waits, after = body.partition(WAIT)
        assert waits, schedule
        assert WAIT not in after, schedule
        parameters = set(re.findall(r"\b\w+_ptr\b", after)) & set(re.findall(r"\b\w+_ptr\b", before))
        declared = set(re.findall(r"(\w+_ptr)\[\d*\];", before))
        assert not parameters - declared, f"{schedule} uses {parameters} before it waits"


def test_large_kernels_let_nobody_start_early_and_windows_start_late() -> None:
    found = kernels("h200", "zoo:mobilenet_v2?batch=128", ())
    by_family: dict[str, list[str]] = {}
    for schedule, body in found:
        by_family.setdefault(schedule.partition("(")[0], []).append(body)
    assert all(WAIT in body for body in by_family["cuda.wgmma"])
    assert any(RELEASE in body for body in by_family["cuda.wgmma"])  # one block on every multiprocessor
    assert all(WAIT in body for body in by_family["cuda.stem"])
    windows = [*by_family.get("cuda.window", ()), *by_family["cuda.strip"]]
    assert len(windows) >= 10
    assert sum(WAIT in body for body in windows) < len(windows)
    assert not any("griddepcontrol" in body for body in by_family["cuda.strip"][:3])


def test_of_many_shapes_those_with_few_blocks_let_the_next_one_start() -> None:
    """Products in tiles of 64 rows, with a block of 256 threads each, one on a multiprocessor."""
    device = device_of("h200", None, None, Numerics(), is_measured=False)

    def made(single: bool, columns: int, most: int = 1 << 12) -> str:
        product = lambda rows: build(lambda emit, x, w: op.matmul(x, w), [(rows, 512)], [(512, columns)], "float16")  # noqa: E731
        workload = of_rows(product)
        knobs = {"rows": "64", "columns": 64, "stages": 4, "consumers": 1, "alternate": False, "blocks_per_sm": 1}
        candidate = Candidate.make("cuda.wgmma", raster=1, **knobs, **({"single": True} if single else {}))
        kernel = dynamic_kernel(workload, candidate, device)
        assert isinstance(kernel, DynamicKernel), kernel.reason
        func = linked(workload, kernel, (most,), device).func.with_attr("global_symbol", "main")
        return str(device.backend.lower(func, device).imports[0].inspect_source())

    of_tiles = made(single=True, columns=256)
    condition = re.search(r"if \(([^{]*)\) \{\s*\w*griddepcontrol_launch_dependents", of_tiles)
    assert condition
    assert condition.group(1).replace("(", "").endswith("<= 132")
    assert re.search(r"griddepcontrol_launch_dependents\(\);\s*\}\s*\w*griddepcontrol_wait\(\)", of_tiles)
    few_at_any = made(single=True, columns=256, most=1024).rpartition("__global__")[2]
    assert re.search(r"\{\s*\w*griddepcontrol_launch_dependents", few_at_any), "first of all, and whatever the rows"
    assert not re.search(r"if \([^{]*\) \{\s*\w*griddepcontrol_launch_dependents", made(single=False, columns=1 << 14))


def test_convolutions_with_split_sums_let_the_next_one_start() -> None:
    """Their kernels bind pointers besides numbers."""
    device = device_of("h200", None, None, Numerics(), is_measured=False)
    workload = convolution(1, 7, 256, 256, 3)
    proposed = backends.candidates(workload, device, 4)
    split = [one for one in proposed if one.family == "cuda.wgmma" and dict(one.knobs).get("split", 1) > 1]
    assert split
    for candidate in split:
        kernel: Any = backends.schedule(workload, candidate, device)
        source = device.backend.lower(kernel.func.with_attr("global_symbol", "main"), device).imports[0]
        assert RELEASE in str(source.inspect_source()).rpartition("__global__")[2]


def test_windows_of_many_shapes_start_early_if_the_largest_has_few_threads() -> None:
    device = device_of("h200", None, None, Numerics(), is_measured=False)
    workload = of_rows(lambda images: conv(14, 64, 64, 3, groups=64, batch=images))
    candidates = backends.candidates(workload.at((7,)), device, 8)
    (first, *_) = (one for one in candidates if one.family in ("cuda.window", "cuda.strip"))
    kernel = dynamic_kernel(workload, first, device)
    assert isinstance(kernel, DynamicKernel), kernel.reason

    def body(most: int) -> str:
        func = linked(workload, kernel, (most,), device).func.with_attr("global_symbol", "main")
        return str(device.backend.lower(func, device).imports[0].inspect_source())

    assert WAIT in body(8)
    assert RELEASE in body(8)
    assert "griddepcontrol" not in body(4096).partition('extern "C" __global__')[2]


@pytest.mark.parametrize("target", ["nvidia/geforce-rtx-3070"])
def test_older_gpus_know_nothing_of_it(target: str) -> None:
    assert not [schedule for schedule, body in kernels(target) if "griddepcontrol" in body]

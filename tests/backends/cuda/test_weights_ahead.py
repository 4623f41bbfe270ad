"""What a kernel copies of its weights before the kernel in front of it has ended, and that it copies nothing else."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
import tvm
from tvm.relax import op

from subtune import backends
from subtune.backends import device_of
from subtune.backends.cuda.lowering.flat import with_host
from subtune.backends.cuda.lowering.pipeline import flat, register
from subtune.backends.cuda.lowering.straight_line import by_address
from subtune.core.candidate import Candidate
from subtune.core.numerics import Numerics
from subtune.core.workload import Workload
from subtune.dynamic.kernel import DynamicKernel, dynamic_kernel
from subtune.dynamic.serve import linked
from tests.backends.workloads import build
from tests.dynamic.flat_kernels import of_rows

DEVICE = device_of("h200", None, None, Numerics(), is_measured=False)
STAGES = 4
TILES = Candidate.make("cuda.mma", bk=64, bm=16, bn=32, raster=1, split=1, stages=STAGES, wm=1, wn=2)
WAIT, COMMIT = "griddepcontrol_wait()", "cp_async_commit_group_async_commit_group()"


def product(rows: int) -> Workload:
    return build(lambda emit, x, w: op.matmul(x, w), [(rows, 512)], [(512, 96)], "float16")


def body(func: Any) -> str:
    source = str(DEVICE.backend.lower(func.with_attr("global_symbol", "main"), DEVICE).imports[0].inspect_source())
    return source[source.rindex('extern "C" __global__') :].partition("{")[2]


def copied(text: str) -> list[str]:
    """The arrays that asynchronous copies read, in their order."""
    return re.findall(r"cp_async\w*\(.*?, (\w+_ptr), ", text)


def body_in_model(func: Any, numbers: int) -> str:
    """As `body`, of a kernel that the host's code of a model of many shapes calls by the addresses of its arrays."""
    build = sys.modules["tvm.tirx.build"]
    target = with_host(DEVICE.model.target())
    made = by_address(flat(func, target=target), numbers)
    lower, _, finalize = tvm.tirx.get_tir_pipeline(register())
    mod = tvm.tirx.transform.BindTarget(target)(tvm.IRModule({"kernel": made}))
    ((of_device, device),) = build.split_host_device_mods(lower(mod))[1].items()
    source = str(build.codegen_build(finalize()(device), of_device).inspect_source())
    return source[source.rindex('extern "C" __global__') :].partition("{")[2]


@pytest.fixture(scope="module", params=["of 77 rows", "of many shapes", "in a model of many shapes"])
def kernel(request: pytest.FixtureRequest) -> str:
    if request.param == "of 77 rows":
        made: Any = backends.schedule(product(77), TILES, DEVICE)
        return body(made.func)
    workload = of_rows(product)
    found = dynamic_kernel(workload, TILES, DEVICE)
    assert isinstance(found, DynamicKernel), found.reason
    func = linked(workload, found, (128,), DEVICE).func
    return body(func) if request.param == "of many shapes" else body_in_model(func, len(found.names(workload)))


def test_weights_of_all_stages_are_copied_before_the_wait(kernel: str) -> None:
    ahead, _, behind = kernel.partition(WAIT)
    assert copied(ahead) == ["p1_ptr"] * (STAGES - 1)
    assert "p0_ptr" not in ahead.partition("extern __shared__")[2]
    assert COMMIT not in ahead, "the first group has them all"
    assert WAIT not in behind


def test_every_stage_is_a_group_as_before(kernel: str) -> None:
    groups = kernel.partition(WAIT)[2].split(COMMIT)
    assert [copied(group) for group in groups[: STAGES - 1]] == [["p0_ptr"]] * (STAGES - 1)
    assert copied(groups[STAGES - 1]) == ["p0_ptr", "p1_ptr"], "the loop copies both"


def test_what_another_kernel_may_have_written_is_copied_behind_it() -> None:
    of_two = build(lambda emit, x, y: op.matmul(x, y), [(77, 512), (512, 96)], dtype="float16")
    made: Any = backends.schedule(of_two, TILES, DEVICE)
    ahead, waits, behind = body(made.func).partition(WAIT)
    assert waits
    assert not copied(ahead)
    assert {"p0_ptr", "p1_ptr"} <= {*copied(behind)}

"""Stores past the caches, and lines prefetched: the same results, other instructions, where they can pay."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.relax import op

from subtune import backends
from subtune.backends.cpu.device import CPU, CPUModel
from subtune.backends.cpu.lowering.pipeline import PIPELINE
from subtune.backends.cpu.lowering.streaming import is_streamed
from subtune.bench.ops_memory import MEMORY
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel
from subtune.core.workload import Workload
from subtune.pipeline import prepare
from subtune.tir.blocks import root_stages
from subtune.tir.substitute import substitute
from tests.backends.workloads import build, dense, elementwise, global_pool, layer_norm, max_pool, softmax, transpose

Run = Callable[[Workload, Kernel | None], np.ndarray]

CASES: dict[str, tuple[Callable[[], Workload], Candidate]] = {
    "elementwise": (lambda: elementwise(37, 33), Candidate.make("elementwise", shape="rows", unroll=1, wide=False)),
    "flat": (lambda: elementwise(40, 32), Candidate.make("elementwise", shape="flat", unroll=4, wide=False)),
    "transpose": (lambda: transpose(1, 16, 6, 48), Candidate.make("transpose", inner="a")),
    "blocks": (lambda: transpose(1, 16, 6, 48), Candidate.make("transpose", rows=16)),
    "whole blocks": (lambda: transpose(1, 16, 6, 48), Candidate.make("transpose", rows=16, columns=16)),
    "rows": (lambda: layer_norm(13, 96), Candidate.make("rowwise", unroll=2)),
    "softmax": (lambda: softmax(7, 256), Candidate.make("rowwise", unroll=4)),
    "pool": (lambda: max_pool(8, 32), Candidate.make("window", ht=1, mr=1, cb=16, order="h")),
    "joined": (
        lambda: build(lambda emit, x, y: op.concat((x, y), 1), [(9, 32), (9, 16)]),
        Candidate.make("elementwise", shape="rows", unroll=1, wide=False),
    ),
}
AHEAD: dict[str, tuple[Callable[[], Workload], Candidate]] = {
    "rows": CASES["rows"],
    "softmax": CASES["softmax"],
    "columns": (lambda: global_pool(7, 48), Candidate.make("columns", cb=16)),
    "flat": CASES["flat"],
    "windows": (lambda: max_pool(8, 32), Candidate.make("window", ht=2, mr=2, cb=16, order="c", inline=True)),
}


def with_knob(candidate: Candidate, name: str) -> Candidate:
    return Candidate.make(candidate.family, **{**dict(candidate.knobs), name: True})


def scheduled(workload: Workload, candidate: Candidate, device: CPUModel) -> Kernel:
    kernel = backends.schedule(workload, candidate, device)
    assert isinstance(kernel, Kernel), kernel
    return kernel


def compiled(kernel: Kernel, device: CPUModel) -> Any:
    func = kernel.func.with_attr("global_symbol", "main")
    return tvm.compile(func, target=device.target(), tir_pipeline=PIPELINE)


def output(kernel: Kernel, workload: Workload, device: CPUModel, shift: int = 0) -> np.ndarray:
    """What the kernel writes, `shift` elements behind the beginning of a line."""
    rng = np.random.default_rng(2)
    *given, last = workload.args
    arrays = [rng.standard_normal(arg.shape).astype(arg.dtype) for arg in given]
    raw = np.full(last.nbytes // 4 + 64, np.nan, "float32")
    start = -raw.ctypes.data % 64 // 4 + shift
    result = raw[start : start + last.nbytes // 4].reshape(last.shape)
    compiled(kernel, device)["main"](*arrays, result)
    assert np.isnan(raw[:start]).all()
    assert np.isnan(raw[start + result.size :]).all()
    return result


@pytest.mark.parametrize("case", CASES)
def test_streamed_kernels_write_the_same_wherever_the_output_begins(case: str, device: CPUModel) -> None:
    make, candidate = CASES[case]
    workload = make()
    plain = scheduled(workload, candidate, device)
    past = scheduled(workload, with_knob(candidate, "stream"), device)
    assert is_streamed(past.func)
    assert not is_streamed(plain.func)
    assert past.trace is None, "TVM's replay would store as ever"
    expected = output(plain, workload, device)
    for shift in (0, 1):
        assert np.array_equal(output(past, workload, device, shift), expected)


@pytest.mark.parametrize(("target", "instruction"), [("skylake-avx512", "movnt"), ("haswell", "movnt")])
def test_only_streamed_kernels_store_past_the_caches(target: str, instruction: str) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("x86's instructions")
    device = CPU(target)
    make, candidate = CASES["flat"]
    for knob, expected in (("stream", True), ("wide", False)):
        kernel = scheduled(make(), with_knob(candidate, knob), device)
        text = str(compiled(kernel, device).mod.inspect_source("asm"))
        assert (instruction in text) == expected


def test_joined_inputs_are_streamed_as_vectors() -> None:
    """TVM takes a vector apart unless it sees that all of it comes from one input."""
    if platform.machine() != "x86_64":
        pytest.skip("x86's instructions")
    device = CPU("skylake-avx512")
    make, candidate = CASES["joined"]
    kernel = scheduled(make(), with_knob(candidate, "stream"), device)
    assert "movnt" in str(compiled(kernel, device).mod.inspect_source("asm"))


def test_only_outputs_that_no_cache_keeps_are_streamed(device: CPUModel) -> None:
    small = replace(device, l3_bytes=1 << 14)
    workload = elementwise(64, 64)  # 16 KB
    assert any(c.get("stream") for c in backends.candidates(workload, small))
    assert any(not c.get("stream") for c in backends.candidates(workload, small)), "measuring decides"
    assert not any(c.get("stream") for c in backends.candidates(workload, device))
    assert not any(c.get("stream") for c in backends.candidates(global_pool(64, 64), small)), "little is written"


@pytest.mark.parametrize("case", AHEAD)
def test_what_is_asked_for_ahead_changes_no_result(case: str, device: CPUModel) -> None:
    make, candidate = AHEAD[case]
    workload = make()
    plain = scheduled(workload, candidate, device)
    ahead = scheduled(workload, with_knob(candidate, "ahead"), device)
    assert "prefetch" in ahead.func.script()
    assert "prefetch" not in plain.func.script()
    assert np.array_equal(output(ahead, workload, device), output(plain, workload, device))


@pytest.mark.parametrize("make", [layer_norm, softmax])
def test_every_line_of_a_coming_row_is_asked_for_after_the_first_pass(make: Callable[[int, int], Workload]) -> None:
    kernel = scheduled(make(7, 256), Candidate.make("rowwise", unroll=4, ahead=True), CPU("skylake-avx512"))
    (rows,) = root_stages(kernel.func)
    asked = [offsets_asked_for(stage) for stage in rows.body.seq]
    assert sum(bool(offsets) for offsets in asked) == 2
    assert not any(asked[:2]), "the first reduction's begin, and its pass over the row"
    first = 8192 // 4
    assert {offset // 16 * 16 for offsets in asked for offset in offsets} == set(range(first, first + 256, 16))


def offsets_asked_for(stage: Any) -> list[int]:
    """Elements behind the first of a row, over the steps of the only serial loop of `stage`."""
    calls: list[Any] = []
    tvm_ffi.structural_walk(stage, (ir.Call, calls.append))
    indices = [call.args[0].args[0].indices[-1] for call in calls if "prefetch" in str(getattr(call.op, "name", ""))]
    simplify = tvm.sym.Analyzer().simplify
    return [
        int(simplify(substitute(index, {stage.loop_var: tirx.const(step, "int64")})))
        for index in indices
        for step in range(int(stage.extent))
    ]


@pytest.mark.parametrize(("m", "mr", "lines"), [(3, 3, 4), (4, 2, 2), (6, 2, 2), (4, 1, 1)])
def test_every_line_of_weights_is_asked_for(m: int, mr: int, lines: int, run: Run, device: CPUModel) -> None:
    """By one tile of rows those a little ahead; by more, each its share of the next panel."""
    workload = dense(m, 128, 32)
    knobs: dict[str, int | str | bool] = {"mr": mr, "nr": 64, "mt": 1, "order": "n"}
    kernel = scheduled(workload, Candidate.make("contraction", prefetch=True, **knobs), device)
    assert kernel.func.script().count("T.prefetch") == lines
    assert kernel.trace is None
    plain = scheduled(workload, Candidate.make("contraction", **knobs), device)
    assert np.array_equal(run(workload, kernel), run(workload, plain))


@pytest.mark.parametrize(("family", "knobs"), [
    ("contraction", {"mr": 2, "mt": 1}), ("strassen", {"levels": 1, "mr": 2, "mb": 4}),
])  # fmt: skip
@pytest.mark.parametrize("prefetch", [False, True])
def test_tiles_of_all_widths_take_the_same_panels(
    family: str, knobs: dict[str, int], prefetch: bool, run: Run, device: CPUModel
) -> None:
    workload, lanes = dense(16, 128, 8 * device.lanes()), device.lanes()
    kernels = [
        scheduled(workload, Candidate.make(family, nr=nr, order="n", panel=lanes, prefetch=prefetch, **knobs), device)
        for nr in (lanes, 2 * lanes, 4 * lanes)
    ]
    assert len({kernel.packings for kernel in kernels}) == 1
    apart = scheduled(workload, Candidate.make(family, nr=4 * lanes, order="n", prefetch=prefetch, **knobs), device)
    assert apart.packings != kernels[-1].packings
    expected = run(workload, apart)
    for kernel in kernels:
        np.testing.assert_allclose(run(workload, kernel), expected, rtol=1e-5, atol=1e-5)


def test_measuring_decides_whether_weights_that_are_read_once_are_asked_for(device: CPUModel) -> None:
    small = replace(device, l3_bytes=1 << 16)
    few = [c for c in backends.candidates(dense(3, 512, 256), small) if c.family == "contraction"]
    assert {bool(c.get("prefetch")) for c in few if c["mr"] == 3} == {False, True}
    many = [c for c in backends.candidates(dense(64, 512, 256), small) if c.family == "contraction"]
    assert all(c.get("prefetch") for c in many if c["order"] == "n")
    row = [c for c in backends.candidates(dense(1, 512, 256), small) if c.family == "contraction"]
    assert not any(c.get("prefetch") for c in row), "the hardware foresees it, and no time is left to ask"


def test_windows_ask_once_for_each_line_that_their_tile_adds() -> None:
    """Of a 3x3 window two pixels on: two rows, and two pixels for every pixel of the tile."""
    candidate = Candidate.make("window", ht=2, mr=2, cb=32, order="c", inline=True, ahead=True)
    kernel = scheduled(max_pool(8, 32), candidate, CPU("skylake-avx512"))
    assert kernel.func.script().count("prefetch") == 2 * 4 * 2
    assert kernel.trace is None


def test_windows_and_elements_are_asked_for_ahead_where_they_come_from_memory(device: CPUModel) -> None:
    small = replace(device, l2_bytes=1 << 13, l3_bytes=1 << 14)
    for workload in (build(lambda emit, x: op.exp(x), [(64, 64)]), max_pool(32, 32)):
        assert not any(c.get("ahead") for c in backends.candidates(workload, device))
        offered = backends.candidates(workload, small)
        assert {bool(c.get("ahead")) for c in offered} == {False, True}, "measuring decides"


def test_windows_that_are_asked_for_ahead_go_pixel_by_pixel() -> None:
    small = replace(CPU("znver4", threads=2), l2_bytes=1 << 13, l3_bytes=1 << 14)
    ahead = [c for c in backends.candidates(max_pool(64, 64), small) if c.family == "window" and c.get("ahead")]
    assert ahead[0]["mr"] == 1


def test_what_tables_give_the_place_of_is_not_asked_for(device: CPUModel) -> None:
    case = next(case for case in MEMORY if case.name == "resize-linear-L2")
    (subgraph,) = prepare(case.model(nhwc=True)).subgraphs
    small = replace(device, l2_bytes=1 << 13, l3_bytes=1 << 14)
    proposed = [c for c in backends.candidates(subgraph.workload, small) if c.family == "window"]
    assert proposed
    assert not any(c.get("ahead") for c in proposed)
    kernel = scheduled(subgraph.workload, with_knob(proposed[0], "ahead"), small)
    assert "prefetch" not in kernel.func.script()


def test_rows_are_asked_for_ahead_where_they_come_from_afar(device: CPUModel) -> None:
    near, far = layer_norm(8, 64), layer_norm(2048, 2 * device.l2_bytes // 4 // 2048)
    assert not any(c.get("ahead") for c in backends.candidates(near, device))
    assert any(c.get("ahead") for c in backends.candidates(far, device))


def test_two_streamed_kernels_live_in_one_module(device: CPUModel) -> None:
    make, candidate = CASES["flat"]
    func = scheduled(make(), with_knob(candidate, "stream"), device).func
    module = tvm.IRModule({name: func.with_attr("global_symbol", name) for name in ("one", "two")})
    library = tvm.compile(module, target=device.target(), tir_pipeline=PIPELINE)
    rng = np.random.default_rng(3)
    given = [rng.standard_normal(arg.shape).astype("float32") for arg in make().args[:-1]]
    results = [np.full((40, 32), np.nan, "float32") for _ in range(2)]
    for name, result in zip(("one", "two"), results, strict=True):
        library[name](*given, result)
    assert np.array_equal(*results)
    assert np.isfinite(results[0]).all()

"""1x1, depthwise and 1x1 convolution in one kernel: what is recognised, and that every tile is what numpy computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.relax import op

from subtune import backends
from subtune.backends.cpu.device import CPU, CPUModel
from subtune.backends.cpu.lowering.pipeline import PIPELINE
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.bottleneck import BottleneckExpressions, Taps, bottleneck_expressions
from subtune.patterns.recognise import recognise
from tests.backends.cpu.chains import build_one, exp_chain
from tests.backends.workloads import conv

NHWC = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}


def block(
    height: int, width: int, inputs: int, channels: int, outputs: int, kernel: int = 3, stride: int = 1,
    dilation: int = 1, pad: int | None = None, batch: int = 1, residual: bool = False, act: str = "relu6",
) -> tuple[Workload, Callable[..., np.ndarray]]:  # fmt: skip
    """The workload (`inputs` 0: no first convolution), and numpy's answer to its arguments."""
    pad = dilation * (kernel // 2) if pad is None else pad
    acts: dict[str, Any] = {
        "relu6": (lambda emit, x: emit(op.clip(x, 0, 6)), lambda x: np.clip(x, 0, 6)),
        "silu": (lambda emit, x: emit(op.nn.silu(x)), lambda x: x / (1 + np.exp(-x))),
    }
    on_graph, on_arrays = acts[act]

    def body(emit: Any, x: Any, *weights: Any) -> Any:
        *first, wd, bd, wp, bp = weights
        y = x
        if first:
            y = on_graph(emit, emit(op.add(emit(op.nn.conv2d(x, first[0], **NHWC)), first[1])))
        y = emit(op.nn.conv2d(y, wd, strides=stride, padding=pad, dilation=dilation, groups=channels, **NHWC))
        y = on_graph(emit, emit(op.add(y, bd)))
        y = emit(op.add(emit(op.nn.conv2d(y, wp, **NHWC)), bp))
        return emit(op.add(x, y)) if residual else y

    def answer(x: Any, *weights: Any) -> np.ndarray:
        *first, wd, bd, wp, bp = weights
        y = x
        if first:
            y = on_arrays(x @ first[0][:, 0, 0].T + first[1])
        y = np.pad(y, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        rows, columns = ((size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1 for size in (height, width))
        ends = rows * stride, columns * stride
        taps = [(i, j) for i in range(kernel) for j in range(kernel)]
        moved = [y[:, i * dilation :, j * dilation :][:, : ends[0] : stride, : ends[1] : stride] for i, j in taps]
        y = sum(part * wd[:, i, j, 0] for part, (i, j) in zip(moved, taps, strict=True))
        y = on_arrays(y + bd) @ wp[:, 0, 0].T + bp
        return x + y if residual else y

    weights = [(channels, 1, 1, inputs), (1, 1, 1, channels)] if inputs else []
    weights += [(channels, kernel, kernel, 1), (1, 1, 1, channels), (outputs, 1, 1, channels), (1, 1, 1, outputs)]
    return build_one(body, [(batch, height, width, inputs or channels)], weights), answer


CASES: dict[str, dict[str, Any]] = {
    "residual": {"height": 12, "width": 12, "inputs": 24, "channels": 96, "outputs": 24, "residual": True},
    "stride 2": {"height": 16, "width": 20, "inputs": 16, "channels": 96, "outputs": 40, "stride": 2},
    "stride 2 of an odd image": {"height": 13, "width": 15, "inputs": 8, "channels": 32, "outputs": 20, "stride": 2},
    "no first convolution": {"height": 10, "width": 18, "inputs": 0, "channels": 48, "outputs": 16},
    "5x5, SiLU": {"height": 20, "width": 12, "inputs": 24, "channels": 64, "outputs": 33, "kernel": 5, "act": "silu"},
    "dilated": {"height": 14, "width": 11, "inputs": 16, "channels": 32, "outputs": 16, "dilation": 2},
    "not padded": {"height": 12, "width": 12, "inputs": 16, "channels": 32, "outputs": 72, "pad": 0},
    "three images": {"height": 6, "width": 7, "inputs": 16, "channels": 32, "outputs": 16, "batch": 3},
}


def inputs_of(workload: Workload) -> list[Any]:
    rng = np.random.default_rng(1)
    return [(rng.standard_normal(arg.shape) * 0.5).astype(arg.dtype) for arg in workload.args if not arg.is_output]


def check(workload: Workload, candidate: Candidate, answer: Callable[..., np.ndarray], device: CPUModel) -> None:
    kernel = backends.schedule(workload, candidate, device)
    assert isinstance(kernel, Kernel), f"{candidate}: {kernel}"
    inputs = inputs_of(workload)
    arrays = [*inputs, np.full(workload.args[-1].shape, np.nan, np.float32)]
    for index, packing in kernel.packings:
        arrays[index] = packing(arrays[index])
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    func = kernel.func.with_attr("global_symbol", "main")
    tvm.compile(func, target=device.target(), tir_pipeline=PIPELINE)["main"](*tensors)
    want = answer(*(x.astype(float) for x in inputs))
    assert np.abs(tensors[-1].numpy() - want).max() <= 2e-6 * np.abs(want).max(), str(candidate)


def large_caches(device: CPUModel) -> CPUModel:
    """The policy leaves out blocks whose tensors are too small for anything to be won: here none is, on any machine."""
    return replace(device, l1d_bytes=1 << 8, l2_bytes=1 << 20, fma_per_cycle=2)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.grid
def test_the_policys_candidates_are_right(case: str, device: CPUModel) -> None:
    workload, answer = block(**CASES[case])
    proposed = backends.candidates(workload, large_caches(device))
    if not proposed and device.vector_bytes < 64:
        pytest.skip("sixteen short registers hold no tile of it that pays")
    assert proposed, case
    assert {candidate.family for candidate in proposed} == {"bottleneck"}
    for candidate in {proposed[0], proposed[-1]}:
        check(workload, candidate, answer, device)


TILE = {"blocks": 2, "step": 1, "mr": 8, "nr": 16, "dr": 1, "dw": 8, "mr2": 8, "nr2": 16}
TILES = {
    "nothing divides": {"mr": 5, "dw": 5, "mr2": 7, "nr2": 32},
    "two rows at a time": {"step": 2, "dr": 2, "dw": 7},
    "panels of three vectors": {"nr": 48, "nr2": 48, "mr": 4, "mr2": 4},
    "one block": {"blocks": 1, "step": 3},
    "one thread": {"serial": True},
}


@pytest.mark.parametrize("name", TILES)
@pytest.mark.parametrize("case", ["residual", "no first convolution"])
def test_tiles(name: str, case: str, device: CPUModel) -> None:
    knobs = {**CASES[case], "height": 12, "outputs": CASES[case].get("outputs", 16)}
    workload, answer = block(**knobs)
    check(workload, Candidate.make("bottleneck", **{**TILE, **TILES[name]}), answer, device)


def test_blocks_of_unequal_height(device: CPUModel) -> None:
    workload, answer = block(**{**CASES["residual"], "height": 13})
    check(workload, Candidate.make("bottleneck", **TILE), answer, device)


def test_narrower_target_is_right() -> None:
    device = CPU("haswell", threads=2)
    workload, answer = block(**CASES["stride 2"])
    check(workload, backends.candidates(workload, large_caches(device))[0], answer, device)


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        ({"nr": 8}, "nr=8 or nr2=16 is no multiple of the 16 vector lanes"),
        ({"nr": 64}, "nr=64 does not divide the 96 channels"),
        ({"step": 4}, "steps of 4 rows do not divide blocks of 6 and 6"),
        ({"blocks": 13}, "steps of 1 rows do not divide blocks of 1 and 0"),
    ],
)
def test_tiles_that_do_not_fit(knobs: dict[str, int], reason: str) -> None:
    workload, _ = block(**CASES["residual"])
    found = backends.schedule(workload, Candidate.make("bottleneck", **{**TILE, **knobs}), CPU("znver4"))
    assert found == NotApplicable(reason)


def test_what_is_recognised() -> None:
    workload, _ = block(**CASES["stride 2 of an odd image"])
    form = bottleneck_expressions(workload.func, workload.num_outputs)
    assert isinstance(form, BottleneckExpressions), form
    found = form.pattern
    assert (found.images, found.height, found.width, found.out_height, found.out_width) == (1, 13, 15, 7, 8)
    assert (found.inputs, found.channels, found.outputs) == (8, 32, 20)
    assert found.rows == found.columns == Taps(3, 2, 1, 1)
    assert (found.ring_rows(1), found.ring_rows(2), found.ring_width) == (3, 5, 17)
    assert recognise(workload) == found

    workload, _ = block(**CASES["dilated"])
    form = bottleneck_expressions(workload.func, workload.num_outputs)
    assert isinstance(form, BottleneckExpressions), form
    assert form.pattern.rows == Taps(3, 1, 2, 2)


def two_ordinary(emit: Any, x: Any, w: Any, v: Any) -> Any:
    y = emit(op.nn.conv2d(x, w, **NHWC))
    return op.nn.conv2d(y, v, padding=1, **NHWC)


def depthwise_last(emit: Any, x: Any, w: Any, v: Any) -> Any:
    y = emit(op.nn.conv2d(x, w, **NHWC))
    return op.nn.conv2d(y, v, padding=1, groups=32, **NHWC)


def filters_computed(emit: Any, x: Any, v: Any, w: Any) -> Any:
    y = emit(op.nn.conv2d(x, v, padding=1, groups=16, **NHWC))
    return op.nn.conv2d(y, emit(op.exp(w)), **NHWC)


def neighbours_added(emit: Any, x: Any, v: Any, w: Any) -> Any:
    y = emit(op.nn.conv2d(x, v, padding=1, groups=16, **NHWC))
    return op.nn.conv2d(emit(op.add(y, emit(op.flip(y, 1)))), w, **NHWC)


@pytest.mark.parametrize(
    ("body", "weights", "reason"),
    [
        (two_ordinary, [(32, 1, 1, 16), (8, 3, 3, 32)], "the last convolution is not 1x1"),
        (depthwise_last, [(32, 1, 1, 16), (32, 3, 3, 1)], "the last convolution is not 1x1"),
        (filters_computed, [(16, 3, 3, 1), (32, 1, 1, 16)], "weights are computed on the way"),
        (neighbours_added, [(16, 3, 3, 1), (32, 1, 1, 16)], "the last convolution is not 1x1"),
    ],
)
def test_what_is_not(body: Callable[..., Any], weights: list[Any], reason: str) -> None:
    workload = build_one(body, [(1, 8, 8, 16)], weights)
    assert bottleneck_expressions(workload.func, workload.num_outputs) == NotApplicable(reason)


def test_other_workloads_are_none() -> None:
    for workload in (conv(8, 16, 16, 3), exp_chain(8, 8, 8, 8)):
        assert isinstance(bottleneck_expressions(workload.func, workload.num_outputs), NotApplicable)


def test_no_candidates_where_too_much_is_computed_twice() -> None:
    """Two blocks of a 7x7 image share two of its rows, and the first convolution has most of the work."""
    device = CPU("znver4", threads=2)
    assert backends.candidates(block(7, 7, 160, 960, 160)[0], device) == ()
    assert backends.candidates(block(7, 7, 160, 960, 160)[0], replace(device, threads=1))
    assert backends.candidates(block(56, 56, 24, 144, 24)[0], device)

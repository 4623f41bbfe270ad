"""Pooling and convolution with channels first: their family, and the models that stay so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from subtune import backends
from subtune.backends import as_device
from subtune.backends.cpu.backend import CPUBackend
from subtune.backends.cpu.device import CPU, CPUModel
from subtune.backends.cuda.device import CUDA
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.numerics import Numerics
from subtune.core.workload import Workload
from subtune.passes.exprs import op_name
from subtune.passes.halves import with_half
from subtune.passes.layout_nhwc import channels_to_last
from subtune.pipeline import normalize
from subtune.tuning.order import bound_s
from tests.backends.workloads import build

Run = Callable[[Workload, Kernel | None], np.ndarray]
CHANNELS = 3


def depthwise(height: int, width: int, taps: int, stride: int = 1, dilation: int = 1, each: int = 1) -> Workload:
    """`each`: results of a channel."""
    pad, results = taps // 2, CHANNELS * each

    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        y = emit(op.nn.conv2d(x, w, strides=stride, padding=pad, dilation=dilation, groups=CHANNELS))
        return op.nn.relu(emit(op.add(y, b)))

    return build(body, [(2, CHANNELS, height, width)], [(results, 1, taps, taps), (1, results, 1, 1)])


def grouped(
    size: Sequence[int], groups: int, read: int, made: int, taps: int, stride: int = 1, dilation: int = 1, pad: int = -1
) -> Workload:
    """Of two images; `read`, `made`: channels of a group. With bias, a residual and ReLU."""
    around = taps // 2 if pad < 0 else pad
    results = groups * made
    out = [(extent + 2 * around - dilation * (taps - 1) - 1) // stride + 1 for extent in size]

    def body(emit: Any, x: Any, residual: Any, w: Any, b: Any) -> Any:
        y = emit(op.nn.conv2d(x, w, strides=stride, padding=around, dilation=dilation, groups=groups))
        return op.nn.relu(emit(op.add(emit(op.add(y, b)), residual)))

    shapes = [(2, groups * read, *size), (2, results, *out)]
    return build(body, shapes, [(results, read, taps, taps), (1, results, 1, 1)])


def pool(kind: str, size: int, taps: int, stride: int, padding: Sequence[int] = (0, 0), **kwargs: bool) -> Workload:
    make = getattr(op.nn, f"{kind}_pool2d")
    return build(
        lambda emit, x: make(x, (taps, taps), (stride, stride), tuple(padding), **kwargs), [(1, CHANNELS, size, size)]
    )


def half_pool(kind: str, size: int, taps: int, stride: int, pad: int) -> Workload:
    """Of a float16 file: cast to float32 before the windows and back after them."""
    make = getattr(op.nn, f"{kind}_pool2d")

    def body(emit: Any, x: Any) -> Any:
        y = emit(make(emit(op.astype(x, "float32")), (taps, taps), (stride, stride), (pad, pad)))
        return op.astype(y, "float16")

    return build(body, [(1, CHANNELS, size, size)], dtype="float16")


CASES = {
    "max pool of float16": lambda: half_pool("max", 13, 3, 2, 1),
    "average pool of float16, nothing padded": lambda: half_pool("avg", 16, 2, 2, 0),
    "average pool of float16, the input itself": lambda: half_pool("avg", 14, 3, 1, 0),
    "depthwise 3x3": lambda: depthwise(13, 19, 3),
    "depthwise 5x5, stride 2": lambda: depthwise(14, 21, 5, 2),
    "depthwise 7x7": lambda: depthwise(9, 14, 7),
    "depthwise, stride 3": lambda: depthwise(16, 28, 3, 3),
    "depthwise, dilated": lambda: depthwise(16, 16, 3, 2, 2),
    "depthwise, two results a channel": lambda: depthwise(13, 19, 3, each=2),
    "depthwise, three results a channel, stride 2": lambda: depthwise(14, 21, 5, 2, each=3),
    "depthwise, one row": lambda: depthwise(1, 37, 3),
    "depthwise, narrow": lambda: depthwise(8, 5, 3),
    "grouped 3x3": lambda: grouped((16, 32), 2, 3, 8, 3),
    "grouped, stride 2": lambda: grouped((14, 21), 3, 2, 5, 3, 2),
    "grouped, stride 3": lambda: grouped((16, 28), 2, 4, 4, 5, 3),
    "grouped, dilated": lambda: grouped((16, 19), 2, 2, 6, 3, dilation=2),
    "grouped, nothing padded": lambda: grouped((11, 37), 2, 2, 6, 3, pad=0),
    "grouped, a plane of rows of a prime number": lambda: grouped((13, 17), 3, 2, 7, 5),
    "grouped, each result of its own": lambda: grouped((8, 16), 4, 2, 1, 3),
    "grouped 1x1": lambda: grouped((8, 16), 2, 9, 6, 1),
    "grouped 1x1, stride 2": lambda: grouped((15, 31), 2, 12, 6, 1, 2),
    "one group": lambda: grouped((9, 16), 1, 3, 10, 3),
    "max pool": lambda: pool("max", 13, 3, 2, (1, 1)),
    "max pool, nothing padded": lambda: pool("max", 16, 2, 2),
    "max pool, the last window overhangs": lambda: pool("max", 16, 3, 2, ceil_mode=True),
    "average pool": lambda: pool("avg", 14, 3, 1, (1, 1)),
    "average pool, padded below": lambda: pool("avg", 13, 3, 2, (0, 0, 2, 2), count_include_pad=True),
    "average pool, the input itself": lambda: pool("avg", 17, 3, 1),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.grid
def test_candidates_are_right(case: str, run: Run, device: CPUModel) -> None:
    workload = CASES[case]()
    found = [c for c in backends.candidates(workload, device, topk=200) if c.family == "planes"]
    assert found, "no candidates"
    expected = run(workload, None)
    for candidate in (found[0], found[-1]):
        kernel = backends.schedule(workload, candidate, device)
        assert not isinstance(kernel, NotApplicable), kernel.reason
        np.testing.assert_allclose(run(workload, kernel), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("knobs", [{"band": 5}, {"mr": 3}, {"vectors": 2}])
def test_tiles_that_do_not_divide_are_refused(knobs: dict[str, int], device: CPUModel) -> None:
    candidate = Candidate.make("planes", **{"band": 8, "mr": 2, "vectors": 1, **knobs})
    kernel = backends.schedule(pool("max", 8, 3, 1, (1, 1)), candidate, device)
    assert isinstance(kernel, NotApplicable)
    assert "does not divide" in kernel.reason


@pytest.mark.parametrize("knobs", [{"results": 4}, {"results": 3, "nr": 4}])
def test_parts_of_a_group_that_do_not_divide_it_are_refused(knobs: dict[str, int], device: CPUModel) -> None:
    candidate = Candidate.make("planes", band=8, mr=1, vectors=1, **knobs)
    kernel = backends.schedule(grouped((8, 8), 2, 2, 6, 3), candidate, device)
    assert isinstance(kernel, NotApplicable)
    assert "do not divide those of a group" in kernel.reason


@pytest.mark.parametrize(("nr", "results"), [(1, 1), (1, 3), (2, 3), (3, 3), (5, 6), (6, 6)])
def test_parts_of_a_group_and_blocks_that_overlap_are_right(nr: int, results: int, run: Run, device: CPUModel) -> None:
    workload = grouped((8, 19), 2, 3, 6, 3)
    candidate = Candidate.make("planes", band=4, mr=2, vectors=1, nr=nr, results=results)
    kernel = backends.schedule(workload, candidate, device)
    assert not isinstance(kernel, NotApplicable), kernel.reason
    np.testing.assert_allclose(run(workload, kernel), run(workload, None), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", ["znver4", "haswell"])
def test_groups_are_predicted_near_the_roofline(target: str) -> None:
    workload, device = grouped((32, 32), 4, 2, 32, 3), as_device(CPU(target, threads=2))
    found = [c for c in backends.candidates(workload, device, topk=200) if c.family == "planes"]
    assert 0.5 < min(c.predicted_s for c in found) / bound_s(workload, device) < 4


def test_few_groups_are_taken_apart_for_many_threads(device: CPUModel) -> None:
    workload = grouped((7, 16), 1, 3, 32, 3)
    parts = {}
    for threads in (1, 16):
        found = backends.candidates(workload, replace(device, threads=threads), topk=200)
        parts[threads] = next(c["results"] for c in found if c.family == "planes" and not c.is_serial)
    assert parts[1] == 32
    assert int(parts[16]) < 32


def _module(groups: int, width: int, turned: bool = False) -> tvm.IRModule:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 8, 8, width), "float32"))
    w = relax.const(np.zeros((8, 8 // groups, 3, 3), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit(op.nn.conv2d(x, w, padding=1, groups=groups))
            y = bb.emit(op.permute_dims(y, [0, 2, 3, 1])) if turned else y
            out = bb.emit_output(op.nn.relu(y))
        bb.emit_func_output(out)
    return bb.get()


@pytest.mark.parametrize(
    ("groups", "width", "turned", "stays"),
    [(8, 8, False, True), (8, 3, False, False), (1, 8, False, False), (4, 8, False, False), (8, 8, True, False)],
)
def test_only_depthwise_models_stay_channels_first(groups: int, width: int, turned: bool, stays: bool) -> None:
    mod = _module(groups, width, turned)
    assert channels_to_last(mod, keeps_planes=True).same_as(mod) == stays
    assert _layouts(channels_to_last(mod)) == {"NHWC"}, "unless the device asks for it"


def _layouts(mod: tvm.IRModule) -> set[str]:
    bindings = mod["main"].body.blocks[0].bindings
    return {str(b.value.attrs.data_layout) for b in bindings if op_name(b.value) == "relax.nn.conv2d"}


@pytest.mark.parametrize(
    ("groups", "width", "most", "stays"), [(4, 8, 2, True), (2, 8, 2, False), (4, 7, 2, False), (1, 8, 8, False)]
)
def test_models_of_groups_of_few_channels_stay_channels_first(groups: int, width: int, most: int, stays: bool) -> None:
    mod = _module(groups, width)
    assert channels_to_last(mod, keeps_planes=True, planes_of_group=most).same_as(mod) == stays
    assert not channels_to_last(mod, planes_of_group=most).same_as(mod)


def _convolutions(groups: Sequence[int]) -> tvm.IRModule:
    """3x3 and 1x1 by turns, of 256 channels each."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 256, 16, 16), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            y = x
            for i, count in enumerate(groups):
                taps = 1 if i % 2 else 3
                w = relax.const(np.ones((256, 256 // count, taps, taps), "float32"))
                y = bb.emit(op.nn.relu(bb.emit(op.nn.conv2d(y, w, padding=taps // 2, groups=count))))
            out = bb.emit_output(op.negative(y))
        bb.emit_func_output(out)
    return bb.get()


@pytest.mark.parametrize(
    ("groups", "layout"),
    [([32], "NCHW"), ([2], "NHWC"), ([64, 32], "NCHW"), ([32, 1], "NHWC"), ([256, 1], "NHWC"), ([256, 32], "NCHW")],
)
def test_a_cpu_keeps_groups_of_few_channels_first(groups: Sequence[int], layout: str) -> None:
    forms = CPUBackend().forms(CPU("znver4", threads=2))
    assert _layouts(normalize(_convolutions(groups), forms=forms)) == {layout}


def test_pointwise_groups_of_few_results_are_products_still() -> None:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 8, 8, 16), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            w = relax.const(np.ones((12, 4, 1, 1), "float32"))
            out = bb.emit_output(op.nn.conv2d(x, w, groups=2))
        bb.emit_func_output(out)
    after = normalize(bb.get(), forms=CPUBackend().forms(CPU("znver4", threads=2)))
    found = {op_name(binding.value) for binding in after["main"].body.blocks[0].bindings}
    assert "relax.matmul" in found
    assert not found & {"relax.nn.conv2d", "relax.permute_dims"}


def test_a_gpu_turns_them() -> None:
    device = as_device(CUDA("sm_90a"))
    assert _layouts(normalize(_convolutions([32]), forms=device.backend.forms(device.model))) == {"NHWC"}


@pytest.mark.parametrize(("target", "layout"), [("znver4", "NCHW"), ("sapphirerapids", "NHWC")])
def test_tiles_multiply_groups_of_halves_with_channels_last(target: str, layout: str) -> None:
    """Which of the two has them: `CPUModel.has_tiles`."""
    forms, mod = CPUBackend().forms(CPU(target, threads=2)), _convolutions([32])
    asked = normalize(mod, Numerics(precision="bf16"), forms=forms)
    own = normalize(with_half(mod, "bfloat16"), forms=forms)
    assert _layouts(asked) == _layouts(own) == {layout}

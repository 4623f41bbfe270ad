"""Pooling and depthwise convolution with channels first: their family, and the models that stay so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from subtune import backends
from subtune.backends.cpu.device import CPUModel
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.passes.exprs import op_name
from subtune.passes.layout_nhwc import channels_to_last
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
    "max pool": lambda: pool("max", 13, 3, 2, (1, 1)),
    "max pool, nothing padded": lambda: pool("max", 16, 2, 2),
    "max pool, the last window overhangs": lambda: pool("max", 16, 3, 2, ceil_mode=True),
    "average pool": lambda: pool("avg", 14, 3, 1, (1, 1)),
    "average pool, padded below": lambda: pool("avg", 13, 3, 2, (0, 0, 2, 2), count_include_pad=True),
    "average pool, the input itself": lambda: pool("avg", 17, 3, 1),
}


@pytest.mark.parametrize("case", CASES)
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
    layouts = {
        str(binding.value.attrs.data_layout)
        for binding in channels_to_last(mod)["main"].body.blocks[0].bindings
        if op_name(binding.value) == "relax.nn.conv2d"
    }
    assert layouts == {"NHWC"}, "unless the device asks for it"

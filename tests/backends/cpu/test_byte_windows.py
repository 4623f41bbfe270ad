"""Depthwise convolutions of bytes in words of taps, and planes of an image put side by side: exact, in vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from subtune import backends
from subtune.backends.cpu.device import CPU
from subtune.backends.cpu.lowering.pipeline import PIPELINE
from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload
from tests.backends.cpu.test_bf16 import NHWC, run, scheduled, workload_of
from tests.backends.cpu.test_int8 import ICELAKE, IS_X86, build, given, needs_vnni, requantised, stored

pytestmark = pytest.mark.skipif(not IS_X86, reason="LLVM here builds for another architecture")
needs_vbmi = pytest.mark.skipif("avx512vbmi" not in CPU("auto").features, reason="the processor has no AVX512-VBMI")


def depthwise(size: int, channels: int, window: tuple[int, int], stride: int = 1, dilation: int = 1) -> Workload:
    kh, kw = window
    padding = [dilation * (kh - 1) // 2, dilation * (kw - 1) // 2]

    def body(emit: Any, x: Any, w: Any, b: Any, f: Any) -> Any:
        how = {**NHWC, "out_dtype": "int32", "groups": channels, "dilation": dilation}
        return requantised(emit, emit(op.nn.conv2d(x, w, strides=stride, padding=padding, **how)), b, f)

    weights = ((channels, kh, kw, 1), "int8")
    vectors = [((1, 1, 1, channels), dtype) for dtype in ("int32", "float32")]
    return build(body, [((1, size, size, channels), "uint8")], [weights, *vectors])


def sums(x: np.ndarray, w: np.ndarray, stride: int, dilation: int) -> np.ndarray:
    kh, kw = w.shape[1:3]
    ph, pw = (dilation * (k - 1) // 2 for k in (kh, kw))
    padded = np.pad(x, ((0, 0), (ph, ph), (pw, pw), (0, 0)))
    rows, columns = (
        (e - dilation * (k - 1) - 1) // stride + 1 for e, k in zip(padded.shape[1:3], (kh, kw), strict=True)
    )
    total = np.zeros((1, rows, columns, x.shape[3]), np.int64)
    for i in range(kh):
        for j in range(kw):
            top, left = i * dilation, j * dilation
            seen = padded[
                :, top : top + stride * (rows - 1) + 1 : stride, left : left + stride * (columns - 1) + 1 : stride
            ]
            total += seen.astype(np.int64) * w[:, i, j, 0]
    return total


WINDOWS = {
    "3x3": (12, 32, (3, 3), 1, 1),
    "3x3, stride 2": (13, 48, (3, 3), 2, 1),
    "5x5": (10, 16, (5, 5), 1, 1),
    "7x7": (9, 16, (7, 7), 1, 1),
    "1x9": (11, 32, (1, 9), 1, 1),
    "4x1": (11, 32, (5, 1), 1, 1),
    "3x3, dilated": (14, 16, (3, 3), 1, 2),
}


@needs_vnni
@needs_vbmi
@pytest.mark.parametrize("name", WINDOWS)
def test_depthwise_sums_are_exact(name: str) -> None:
    size, channels, window, stride, dilation = WINDOWS[name]
    workload = depthwise(size, channels, window, stride, dilation)
    proposed = [c for c in backends.candidates(workload, ICELAKE, topk=60) if c.family == "window_int8"]
    assert proposed
    x, w, b, f, zero = (array.astype(np.int64) if array.dtype.kind in "iu" else array for array in given(workload)[:-1])
    expected = stored(sums(x, w, stride, dilation), b, f, zero)
    for candidate in {proposed[0], proposed[-1], *proposed[1 : -1 : max(1, len(proposed) // 3)]}:
        np.testing.assert_array_equal(
            run(workload, scheduled(workload, candidate, ICELAKE), ICELAKE, given(workload)), expected
        )


def test_four_taps_are_one_instruction() -> None:
    workload = depthwise(14, 32, (3, 3))
    candidate = next(c for c in backends.candidates(workload, ICELAKE) if c.family == "window_int8")
    code = _code(scheduled(workload, candidate, ICELAKE), ICELAKE)
    assert "vpdpbusd" in code
    assert "vpmulld" not in code
    assert "vpslld" not in code  # words are not made by shifts


def test_it_is_refused_without_the_instructions() -> None:
    workload = depthwise(14, 32, (3, 3))
    candidate = next(c for c in backends.candidates(workload, ICELAKE) if c.family == "window_int8")
    refused = backends.schedule(workload, candidate, CPU("cascadelake"))
    assert isinstance(refused, NotApplicable)
    assert "avx512vbmi" in refused.reason


def test_fewer_channels_than_a_vector_are_left_to_others() -> None:
    families = {c.family for c in backends.candidates(depthwise(14, 24, (3, 3)), ICELAKE, topk=60)}
    assert "window_int8" not in families
    assert "window" in families


def image(shape: tuple[int, int, int, int], pad: int) -> Workload:
    """What a quantised network does to its input."""

    def body(emit: Any, x: Any) -> Any:
        scale, zero = relax.const(np.float32(0.05)), relax.const(121, "uint8")
        q = emit(op.quantize(x, scale, zero, axis=0, out_dtype="uint8"))
        if pad:
            q = emit(op.nn.pad(q, [0, 0, 0, 0, pad, pad, pad, pad], "constant", 121.0))
        return op.permute_dims(q, [0, 2, 3, 1])

    return workload_of(body, [(shape, "float32")], [])


@pytest.mark.parametrize("shape", [(1, 3, 40, 61), (2, 4, 33, 35), (1, 2, 36, 64)])
@pytest.mark.parametrize("pad", [0, 3])
def test_planes_are_put_side_by_side(shape: tuple[int, int, int, int], pad: int) -> None:
    workload = image(shape, pad)
    x = (4 * np.random.default_rng(0).standard_normal(shape)).astype(np.float32)
    q = np.clip(np.rint(x / np.float32(0.05)) + 121, 0, 255).astype(np.uint8)
    padded = np.pad(q, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=121)
    host = CPU("auto", threads=2)
    proposed = [c for c in backends.candidates(workload, host, topk=60) if c.family == "interleaved"]
    assert proposed
    arrays = [x, np.float32(0.05), np.uint8(121), np.empty(workload.args[-1].shape, "uint8")]
    for candidate in proposed:
        found = run(workload, scheduled(workload, candidate, host), host, [np.asarray(array) for array in arrays])
        np.testing.assert_array_equal(found, padded.transpose(0, 2, 3, 1))


def test_more_channels_are_left_to_others() -> None:
    families = {c.family for c in backends.candidates(image((1, 8, 40, 64), 0), ICELAKE, topk=60)}
    assert "interleaved" not in families


def _code(kernel: Any, device: CPU) -> str:
    built = tvm.compile(kernel.func, target=device.target(), tir_pipeline=PIPELINE)
    return str(built.mod.inspect_source("asm"))

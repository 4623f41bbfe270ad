"""Winograd's algorithm in integers: the same bits as the direct convolution of bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from subtune import backends
from subtune.backends.algorithms.winograd import (
    INTEGER_DEPTH,
    INTEGER_FACTORS,
    INTEGER_TRANSFORMS,
    WinogradWords,
)
from subtune.backends.cpu.device import CPU
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.core.workload import SUM_BITS_ATTR, Workload
from tests.backends.cpu.test_bf16 import NHWC, conv_of, module, run, scheduled, workload_of
from tests.backends.cpu.test_int8 import ICELAKE, IS_X86, build, conv, given, needs_vnni, stored

pytestmark = pytest.mark.skipif(not IS_X86, reason="LLVM here builds for another architecture")


def made(fuse: bool, **knobs: int) -> Candidate:
    return Candidate.make("winograd", **{"m": 4, "mr": 2, "nr": 16, **knobs, "fuse": fuse})


def images(size: int, cin: int, cout: int, dtype: str = "uint8") -> Workload:
    """Two images, sums as they are."""

    def body(emit: Any, x: Any, w: Any) -> Any:
        return op.nn.conv2d(x, w, padding=1, **{**NHWC, "out_dtype": "int32"})

    return build(body, [((2, size, size, cin), dtype)], [((cout, 3, 3, cin), "int8")])


def direct(arrays: list[np.ndarray]) -> np.ndarray:
    x, w = (array.astype(np.int64) for array in arrays[:2])
    result: np.ndarray = conv_of(x, w)
    return result


def test_transforms_give_the_convolution_times_their_factors() -> None:
    rng = np.random.default_rng(3)
    bt, g, at = (np.array(matrix) for matrix in INTEGER_TRANSFORMS)
    d, w = rng.integers(-128, 128, (6, 6)), rng.integers(-128, 128, (3, 3))
    y = at @ ((g @ w @ g.T) * (bt @ d @ bt.T)) @ at.T
    expected = [[int((d[i : i + 3, j : j + 3] * w).sum()) for j in range(4)] for i in range(4)]
    np.testing.assert_array_equal(y, np.outer(INTEGER_FACTORS, INTEGER_FACTORS) * expected)


def test_sums_are_multiplied_by_powers_of_two_alone() -> None:
    """What is done at every run is shifts; other factors are in the weights."""
    *_, at = INTEGER_TRANSFORMS
    assert {abs(value) for row in at for value in row} <= {0, 1, 2, 4}


def test_transformed_operands_fit_int16_and_sums_the_shift() -> None:
    bt, g, _ = (np.abs(np.array(matrix)).sum(1).max() for matrix in INTEGER_TRANSFORMS)
    assert 128 * bt**2 < 2**15
    assert 128 * g**2 < 2**15
    assert 128 * 128 * 9 * INTEGER_DEPTH * 64 < 2**31 <= 128 * 128 * 9 * (INTEGER_DEPTH + 1) * 64


@needs_vnni
@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("size", [8, 13])
def test_tiles_that_fit_and_tiles_that_overhang(size: int, fuse: bool) -> None:
    workload = images(size, 32, 48)
    arrays = given(workload)
    kernel = scheduled(workload, made(fuse), ICELAKE)
    np.testing.assert_array_equal(run(workload, kernel, ICELAKE, arrays), direct(arrays))


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("name", ["nehalem", "haswell", "skylake-avx512", "icelake-server"])
@pytest.mark.grid
def test_processors_with_other_instructions(name: str, dtype: str) -> None:
    device = CPU(name, threads=2)
    if device.obstacle():
        pytest.skip(f"this processor cannot run it: {device.obstacle()}")
    workload = images(8, 32, 48, dtype)
    arrays = given(workload)
    proposed = [c for c in backends.candidates(workload, device, topk=99) if c.family == "winograd"]
    kernel = scheduled(workload, proposed[0], device)
    np.testing.assert_array_equal(run(workload, kernel, device, arrays), direct(arrays))


@pytest.mark.parametrize(("name", "instruction"), [("alderlake", "vpdpwssd"), ("haswell", "vpmaddwd")])
def test_instructions(name: str, instruction: str) -> None:
    device = CPU(name, threads=2)
    kernel = scheduled(images(8, 32, 48), made(True), device)
    assert instruction in module(kernel, device).mod.inspect_source("asm")


def test_products_of_a_tile_lie_side_by_side() -> None:
    """For each vector of its channels the 36 that the output's transform reads."""
    script = scheduled(images(8, 32, 48), made(True), ICELAKE).func.script()
    assert "wino_m = T.sblock_alloc_buffer((T.int64(8), T.int64(3), T.int64(6), T.int64(6), T.int64(16))" in script


def test_padding_is_copied_in_whole_vectors() -> None:
    """Of 64 bytes, where the channels are so many."""
    for channels, lanes in ((64, 64), (32, 32), (96, 32)):
        script = scheduled(conv(8, channels, 32, 3), made(True), ICELAKE).func.script()
        (copied,) = (part for part in script.split("for ") if 'T.sblock("pad_temp")' in part)
        assert f"T.vectorized(T.int64({lanes}))" in copied


@pytest.mark.parametrize(("nr", "instruction"), [(16, "prefetcht0"), (64, "prefetcht1")])
def test_the_next_panel_goes_into_l1_where_two_fit(nr: int, instruction: str) -> None:
    """Of 224 channels in words: 7 KB in 16 columns, 28 KB in 64."""
    device = replace(ICELAKE, l1d_bytes=32768)
    candidate = Candidate.make("winograd", m=4, mr=2, nr=nr, fuse=False, prefetch=True)
    code = module(scheduled(images(8, 224, 64), candidate, device), device).mod.inspect_source("asm")
    assert {line.split()[0] for line in code.splitlines() if "prefetcht" in line} == {instruction}


def test_rows_to_come_are_asked_for() -> None:
    """Behind row 5 of the image, where one row above it is padding, 4 * 12 * 64 / 64 lines in 6 * 6 * 2 steps."""
    workload = conv(12, 64, 32, 3)
    script = scheduled(workload, made(True), ICELAKE).func.script()
    (asked,) = (line for line in script.splitlines() if "prefetch" in line)
    assert "% T.int64(3) * T.int64(4) + T.int64(5)" in asked
    assert "prefetch" not in scheduled(workload, made(False), ICELAKE).func.script()


@needs_vnni
def test_every_kind_of_candidate_is_exact_when_requantised() -> None:
    workload = conv(12, 64, 64, 3)
    proposed = [c for c in backends.candidates(workload, ICELAKE, topk=200) if c.family == "winograd"]
    assert {bool(c["fuse"]) for c in proposed} == {False, True}
    exact = [array.astype(np.int64) if array.dtype.kind in "iu" else array for array in given(workload)[:-1]]
    expected = stored(conv_of(exact[0], exact[1]), *exact[2:])
    for candidate in proposed[:: max(1, len(proposed) // 5)]:
        np.testing.assert_array_equal(
            run(workload, scheduled(workload, candidate, ICELAKE), ICELAKE, given(workload)), expected
        )


@needs_vnni
@pytest.mark.parametrize("x", [0, 128, 255])
@pytest.mark.parametrize("w", [-128, 127])
def test_the_largest_sums_are_exact(x: int, w: int) -> None:
    """Of as many channels as are taken: sums of up to 7e7, whose multiples in between do not fit 32 bits."""
    workload = images(8, 224, 16)
    image, weights, result = given(workload)
    arrays = [np.full_like(image, x), np.full_like(weights, w), result]
    kernel = scheduled(workload, made(True), ICELAKE)
    np.testing.assert_array_equal(run(workload, kernel, ICELAKE, arrays), direct(arrays))


def test_weights_are_pairs_and_what_the_shift_of_activations_takes() -> None:
    w = np.random.default_rng(0).integers(-128, 128, (32, 3, 3, 4)).astype(np.int8)
    packing = WinogradWords(16, 32, 4, zero=128)
    words = packing(w)
    assert words.shape == packing.shape == (6, 6, 2, 3, 16)
    pairs = words.view(np.int16).reshape(6, 6, 2, 3, 16, 2)
    g = np.array(INTEGER_TRANSFORMS[1])
    np.testing.assert_array_equal(pairs[:, :, 1, 1, 5, 1], g @ w[21, :, :, 3].astype(int) @ g.T)
    np.testing.assert_array_equal(words[0, 0, :, -1].reshape(-1), 128 * w.astype(int).sum((1, 2, 3)))


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (conv(8, 512, 32, 3), "too large"),
        (conv(8, 32, 32, 3, stride=2), "stride"),
        (conv(8, 32, 32, 1), "3x3"),
        (conv(8, 48, 32, 3), "multiples of 32 and 16"),
    ],
)
def test_it_says_why_it_does_not_apply(workload: Workload, reason: str) -> None:
    refused = backends.schedule(workload, made(False), ICELAKE)
    assert isinstance(refused, NotApplicable)
    assert reason in refused.reason
    assert "winograd" not in {c.family for c in backends.candidates(workload, ICELAKE, topk=200)}


def of_weights(largest: int, channels: int = 256) -> tuple[Workload, np.ndarray]:
    """A deep convolution of equal weights, and these."""
    array = np.full((16, 3, 3, channels), largest, np.int8)

    def body(_emit: Any, x: Any, w: Any) -> Any:
        return op.nn.conv2d(x, w, padding=1, **{**NHWC, "out_dtype": "int32"})

    return workload_of(body, [((1, 8, 8, channels), "uint8")], [relax.const(array)]), array


@needs_vnni
@pytest.mark.parametrize("byte", [0, 255])
@pytest.mark.parametrize("weight", [113, -113])
def test_deep_sums_are_exact_up_to_the_bound(weight: int, byte: int) -> None:
    """128 * 113 * 9 * 256 is the last below 2^25."""
    workload, weights = of_weights(weight)
    arrays = [np.full((1, 8, 8, 256), byte, np.uint8), weights, np.zeros((1, 8, 8, 16), np.int32)]
    found = run(workload, scheduled(workload, made(False), ICELAKE), ICELAKE, arrays)
    np.testing.assert_array_equal(found, direct(arrays))


@pytest.mark.parametrize(("weight", "channels", "bits"), [(113, 256, 25), (114, 256, None), (127, 227, None)])
def test_what_is_known_of_deep_sums(weight: int, channels: int, bits: int | None) -> None:
    """Nothing is said of few channels, whose sums are small whatever the weights."""
    workload, _ = of_weights(weight, channels)
    assert workload.func.attrs.get(SUM_BITS_ATTR) == bits


def test_there_is_one_tile_size() -> None:
    refused = backends.schedule(conv(8, 32, 32, 3), made(False, m=2), ICELAKE)
    assert isinstance(refused, NotApplicable)
    assert "F(2)" in refused.reason


def test_arm_has_no_instruction() -> None:
    device = CPU({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-v1"}, threads=2)
    refused = backends.schedule(conv(8, 32, 32, 3), made(False), device)
    assert isinstance(refused, NotApplicable)
    assert "pairs of int16" in refused.reason

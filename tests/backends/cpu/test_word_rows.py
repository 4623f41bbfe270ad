"""Words along the rows of windows: exact for channels, sizes and strides of all kinds, as few as bytes fill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm.relax import op

from subtune import backends
from subtune.backends.cpu.device import CPU, CPUModel
from subtune.backends.cpu.math.word_rows import RowPacking
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable, Packing
from subtune.core.workload import Workload
from tests.backends.cpu.test_bf16 import NHWC, module, run, scheduled
from tests.backends.cpu.test_bf16 import conv as conv_of_halves
from tests.backends.cpu.test_byte_dots import HERE, here
from tests.backends.cpu.test_int8 import ICELAKE, IS_X86, build, given, needs_vnni, requantised, stored
from tests.backends.cpu.test_int8 import conv as conv_of_int8

pytestmark = pytest.mark.skipif(not IS_X86, reason="LLVM here builds for another architecture")
Pair = tuple[int, int]


def conv(
    size: Pair, cin: int, kernel: Pair, stride: int = 1, padding: int = 0, rows: str = "uint8", cout: int = 32,
    dilation: int = 1, batch: int = 1,
) -> Workload:  # fmt: skip
    def body(emit: Any, x: Any, w: Any, b: Any, f: Any) -> Any:
        attrs = {**NHWC, "out_dtype": "int32", "dilation": dilation}
        return requantised(emit, emit(op.nn.conv2d(x, w, strides=stride, padding=padding, **attrs)), b, f)

    vectors = [((1, 1, 1, cout), dtype) for dtype in ("int32", "float32")]
    return build(body, [((batch, *size, cin), rows)], [((cout, *kernel, cin), "int8"), *vectors])


def expected(x: np.ndarray, w: np.ndarray, *rest: np.ndarray, stride: int = 1, padding: int = 0) -> np.ndarray:
    x = np.pad(x.astype(np.int64), ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[1:3], axis=(1, 2))[:, ::stride, ::stride]
    return stored(np.einsum("nyxcij,oijc->nyxo", windows, w.astype(np.int64)), *rest)


def of_words(workload: Workload, device: CPUModel = ICELAKE) -> list[Candidate]:
    return [c for c in backends.candidates(workload, device, topk=60) if c.family == "contraction_int8"]


def words_of_a_row(workload: Workload, candidate: Candidate) -> int:
    """Words of the weights for one column and one row of windows."""
    ((param, packing),) = scheduled(workload, candidate, ICELAKE).packings
    cout, height, *_ = workload.args[param].shape
    nr = int(candidate["nr"])
    return int(np.prod(packing.shape)) // (-(-cout // nr) * nr * height)


def check(workload: Workload, stride: int, padding: int) -> None:
    arrays = given(workload)
    wanted = expected(*arrays[:-1], stride=stride, padding=padding)
    found = [c for c in of_words(workload) if c.get("by_row")]
    assert found
    # every order of loops: a copy is made in the loop that threads share, or before
    for candidate in {str(c["order"]): c for c in reversed(found)}.values():
        kernel = scheduled(workload, candidate, ICELAKE)
        np.testing.assert_array_equal(run(workload, kernel, ICELAKE, arrays), wanted, str(candidate))


@needs_vnni
@pytest.mark.parametrize("rows", ["uint8", "int8"])
@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize(
    ("size", "cin", "kernel", "stride"),
    [
        ((17, 19), 3, (7, 7), 2),
        ((11, 23), 3, (5, 5), 1),
        ((13, 12), 2, (3, 3), 2),
        ((14, 15), 2, (5, 7), 1),
        ((16, 21), 1, (7, 7), 2),
        ((9, 10), 1, (5, 5), 1),
        ((9, 11), 1, (3, 3), 2),
        ((8, 9), 1, (1, 3), 1),
        ((9, 9), 6, (3, 3), 1),
    ],
)
@pytest.mark.grid
def test_they_are_exact(size: Pair, cin: int, kernel: Pair, stride: int, padding: int, rows: str) -> None:
    check(conv(size, cin, kernel, stride, padding, rows), stride, padding)


@needs_vnni
def test_ragged_tiles_and_several_images_are_exact() -> None:
    check(conv((15, 37), 3, (7, 7), 2, 0, cout=20, batch=3), 2, 0)
    check(conv((15, 37), 1, (3, 3), 2, 1, cout=20, batch=2), 2, 1)


@pytest.mark.parametrize("rows", ["uint8", "int8"])
@pytest.mark.parametrize("name", HERE)
def test_they_are_exact_by_other_instructions(name: str, rows: str) -> None:
    device, workload = CPU(name, threads=2), conv((11, 17), 3, (7, 7), 2, 0, rows)
    arrays = given(workload)
    candidate = of_words(workload, device)[0]
    assert candidate["by_row"]
    got = here(workload, candidate, device)(arrays)
    np.testing.assert_array_equal(got, expected(*arrays[:-1], stride=2), str(candidate))


@needs_vnni
def test_a_convolution_of_one_dim_is_exact() -> None:
    layouts = {"data_layout": "NWC", "kernel_layout": "OWI", "out_layout": "NWC"}

    def body(emit: Any, x: Any, w: Any, b: Any, f: Any) -> Any:
        return requantised(emit, emit(op.nn.conv1d(x, w, strides=2, out_dtype="int32", **layouts)), b, f)

    vectors = [((1, 1, 32), dtype) for dtype in ("int32", "float32")]
    workload = build(body, [((2, 41, 3), "uint8")], [((32, 5, 3), "int8"), *vectors])
    arrays = given(workload)
    x, w, b, f, zero = arrays[:-1]
    wanted = expected(x[:, None], w[:, None], b, f, zero, stride=2)[:, 0]
    candidate = of_words(workload)[0]
    assert candidate["by_row"]
    np.testing.assert_array_equal(run(workload, scheduled(workload, candidate, ICELAKE), ICELAKE, arrays), wanted)


@pytest.mark.parametrize(
    ("cin", "width", "words"),
    [(3, 7, 6), (3, 5, 4), (3, 3, 3), (2, 3, 2), (1, 7, 2), (1, 5, 2), (1, 3, 1), (4, 7, 7), (6, 3, 5), (3, 1, 1)],
)
def test_a_row_has_as_many_words_as_its_bytes_fill(cin: int, width: int, words: int) -> None:
    workload = conv((12, 13), cin, (3, width))
    assert words_of_a_row(workload, of_words(workload)[0]) == words


@pytest.mark.parametrize(
    ("cin", "width", "padding", "kinds"),
    [
        (3, 7, 0, {True}),
        (3, 3, 0, {True}),  # as many words, and no copy
        (3, 3, 1, {None}),  # a copy in any case
        (3, 7, 1, {True, None}),
        (1, 3, 0, {True, None}),  # shorter than a word, and so copied
        (3, 1, 0, {None}),
        (4, 3, 0, {None}),
    ],
)
def test_measuring_decides_where_both_copy(cin: int, width: int, padding: int, kinds: set[bool | None]) -> None:
    assert {c.get("by_row") for c in of_words(conv((12, 13), cin, (3, width), padding=padding))} == kinds


def test_data_are_read_where_they_lie(tmp_path: Path) -> None:
    """No copy with a fourth channel: a kernel's own buffers are accumulators alone."""
    workload = conv((18, 20), 3, (7, 7), 2)
    kernel = scheduled(workload, of_words(workload)[0], ICELAKE)
    assert [str(buffer.scope()) for buffer in kernel.func.body.block.alloc_buffers] == ["local"]
    module(kernel, ICELAKE).mod.write_to_file(str(tmp_path / "kernel.s"), "s")
    assert "vpdpbusd" in (tmp_path / "kernel.s").read_text()


@pytest.mark.parametrize(("length", "last"), [((7, 3), [0, 0, 0, 21]), ((3, 1), [1, 2, 3, 0]), ((4, 2), [5, 6, 7, 8])])
def test_the_last_word_ends_with_the_row(length: Pair, last: list[int]) -> None:
    pixels, channels = length
    array = np.arange(1, 1 + pixels * channels, dtype=np.int8).reshape(1, 1, pixels, channels)
    words = -(-pixels * channels // 4)
    packing = RowPacking(4, Packing(((1,), (1,), (1,), (words,)), (1, 2, 3, 0)))
    packed = packing(array)
    assert packed.shape == packing.shape
    np.testing.assert_array_equal(packed.view(np.int8).reshape(words, 4)[-1], last)
    np.testing.assert_array_equal(packed.view(np.int8).reshape(words, 4)[:-1].reshape(-1), np.arange(1, 4 * words - 3))


def test_other_windows_have_words_of_pixels() -> None:
    """Pixels that lie apart, and channels of groups."""
    workload = conv((12, 13), 3, (3, 5), dilation=2)
    (kind,) = {c.get("by_row") for c in of_words(workload)}
    assert kind is None
    of_groups = conv_of_int8(9, 48, 96, 3, groups=3)
    asked = Candidate.make("contraction_int8", by_row=True, mr=4, nr=16, mt=1, order="m")
    for given_one, reason in ((workload, "side by side"), (of_groups, "of all channels")):
        refused = backends.schedule(given_one, asked, ICELAKE)
        assert isinstance(refused, NotApplicable)
        assert reason in refused.reason


def test_zeros_of_floats_are_not_multiplied() -> None:
    """A zero times an infinity of the same window would be no number."""
    zen4 = CPU("znver4", threads=2)
    workload = conv_of_halves(20, 3, 32, 7, 2)
    found = [c for c in backends.candidates(workload, zen4, topk=20) if c.family == "contraction_bf16"]
    assert found
    assert not any(c.get("by_row") for c in found)
    asked = Candidate.make("contraction_bf16", by_row=True, mr=5, nr=32, mt=1, order="m")
    refused = backends.schedule(workload, asked, zen4)
    assert isinstance(refused, NotApplicable)
    assert "no bytes" in refused.reason


@pytest.mark.parametrize("name", ["neoverse-n1", "neoverse-v1"])
def test_arm_reads_whole_pixels(name: str) -> None:
    found = backends.candidates(conv((12, 13), 3, (7, 7)), CPU(name, threads=2), topk=40)
    mine = [c for c in found if c.family == "contraction_int8"]
    assert mine
    assert not any(c.get("by_row") for c in mine)

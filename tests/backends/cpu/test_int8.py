"""Products of bytes in words of 32 bits on AVX512-VNNI: exact, requantised where they are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from subtune import backends
from subtune.backends.cpu.device import CPU
from subtune.backends.cpu.math.words import WordPacking
from subtune.core.candidate import Candidate
from subtune.core.kernel import Packing
from subtune.core.workload import Workload
from tests.backends.cpu.test_bf16 import NHWC, conv_of, module, of_groups, run, scheduled, workload_of

HOST = CPU("auto", threads=2)
IS_X86 = HOST.triple.startswith("x86_64")
pytestmark = pytest.mark.skipif(not IS_X86, reason="LLVM here builds for another architecture")
needs_vnni = pytest.mark.skipif("avx512vnni" not in HOST.features, reason="the processor has no AVX512-VNNI")
ICELAKE = CPU("icelake-server", threads=2)
Shape = tuple[tuple[int, ...], str]


def build(body: Callable[..., Any], inputs: Sequence[Shape], constants: Sequence[Shape] = ()) -> Workload:
    """The one workload of `body(emit, inputs..., constants...)`."""
    rng = np.random.default_rng(0)
    return workload_of(body, inputs, [relax.const(numbers(shape, dtype, rng), dtype) for shape, dtype in constants])


def numbers(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> np.ndarray:
    """All of a byte's, the extremes among them: VNNI does not saturate between products, as AVX2's pairs do."""
    if dtype == "float32":
        return (0.001 + 0.001 * rng.random(shape)).astype(dtype)
    low, high = (-500, 500) if dtype == "int32" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return rng.integers(low, high + 1, shape).astype(dtype)


def requantised(emit: Any, acc: Any, bias: Any, factor: Any) -> Any:
    real = emit(op.multiply(emit(op.astype(emit(op.add(acc, bias)), "float32")), factor))
    return op.quantize(real, relax.const(1.0, "float32"), relax.const(5, "uint8"), axis=0, out_dtype="uint8")


def dense(m: int, n: int, k: int, rows: str = "uint8") -> Workload:
    def body(emit: Any, x: Any, w: Any, b: Any, f: Any) -> Any:
        return requantised(emit, emit(op.matmul(x, w, "int32")), b, f)

    return build(body, [((m, k), rows)], [((k, n), "int8"), ((n,), "int32"), ((n,), "float32")])


def conv(size: int, cin: int, cout: int, kernel: int, stride: int = 1, groups: int = 1) -> Workload:
    def body(emit: Any, x: Any, w: Any, b: Any, f: Any) -> Any:
        attrs = {**NHWC, "out_dtype": "int32", "groups": groups}
        return requantised(emit, emit(op.nn.conv2d(x, w, strides=stride, padding=kernel // 2, **attrs)), b, f)

    weights: list[Shape] = [((cout, kernel, kernel, cin // groups), "int8")]
    vectors: list[Shape] = [((1, 1, 1, cout), dtype) for dtype in ("int32", "float32")]
    return build(body, [((1, size, size, cin), "uint8")], weights + vectors)


def product_of_two(batch: int, m: int, n: int, k: int) -> Workload:
    """B is no constant, and packed in the kernel."""

    def body(emit: Any, a: Any, b: Any) -> Any:
        return op.matmul(a, b, "int32")

    return build(body, [((batch, m, k), "uint8"), ((batch, k, n), "int8")])


def stored(acc: np.ndarray, b: np.ndarray, f: np.ndarray, zero: np.ndarray) -> np.ndarray:
    real = (acc + b).astype(np.float32) * f.astype(np.float32)
    return np.clip(np.rint(real) + zero, 0, 255)


CASES: dict[str, tuple[Workload, Callable[..., np.ndarray]]] = {
    "dense": (dense(16, 64, 64), lambda x, w, *rest: stored(x @ w, *rest)),
    "dense, ragged": (dense(7, 50, 33), lambda x, w, *rest: stored(x @ w, *rest)),
    "dense, one row": (dense(1, 48, 40), lambda x, w, *rest: stored(x @ w, *rest)),
    "conv3x3": (conv(10, 32, 48, 3), lambda x, w, *rest: stored(conv_of(x, w), *rest)),
    "conv of 3 channels": (conv(12, 3, 20, 3, stride=2), lambda x, w, *rest: stored(conv_of(x, w, 2), *rest)),
    "conv1x1": (conv(9, 16, 32, 1), lambda x, w, *rest: stored(conv_of(x, w), *rest)),
    "groups": (conv(9, 48, 96, 3, groups=3), lambda x, w, *rest: stored(of_groups(x, w, 3), *rest)),
    "groups of few channels": (
        conv(8, 16, 64, 3, stride=2, groups=4),
        lambda x, w, *rest: stored(of_groups(x, w, 4, 2), *rest),
    ),
    "groups, 1x1": (conv(5, 40, 32, 1, groups=2), lambda x, w, *rest: stored(of_groups(x, w, 2), *rest)),
    "product of two": (product_of_two(2, 12, 20, 24), np.matmul),
}


def given(workload: Workload) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [numbers(arg.shape, arg.dtype, rng) for arg in workload.args]


@needs_vnni
@pytest.mark.parametrize("case", CASES)
@pytest.mark.grid
def test_candidates_are_exact(case: str) -> None:
    workload, reference = CASES[case]
    proposed = [c for c in backends.candidates(workload, ICELAKE, topk=60) if c.family == "contraction_int8"]
    assert proposed
    exact = [array.astype(np.int64) if array.dtype.kind in "iu" else array for array in given(workload)[:-1]]
    expected = reference(*exact)
    for candidate in {proposed[0], proposed[-1], *proposed[1 : -1 : max(1, len(proposed) // 4)]}:
        np.testing.assert_array_equal(
            run(workload, scheduled(workload, candidate, ICELAKE), ICELAKE, given(workload)), expected
        )


@pytest.mark.parametrize(("cin", "cout"), [(24, 24), (18, 96)])
def test_other_groups_are_left_to_other_families(cin: int, cout: int) -> None:
    """8 columns to a group are no vector, 6 channels no whole words."""
    found = backends.candidates(conv(9, cin, cout, 3, groups=3), ICELAKE, topk=20)
    assert found
    assert not any(c.family == "contraction_int8" for c in found)


def test_four_products_are_one_instruction(tmp_path: Path) -> None:
    workload = conv(14, 32, 64, 3)
    kernel = scheduled(workload, Candidate.make("contraction_int8", mr=7, nr=64, mt=2, order="m"), ICELAKE)
    module(kernel, ICELAKE).mod.write_to_file(str(tmp_path / "kernel.s"), "s")
    code = (tmp_path / "kernel.s").read_text()
    assert "vpdpbusd" in code
    assert "vpmulld" not in code


@pytest.mark.parametrize("k", [7, 8])
def test_constants_are_packed_in_words(k: int) -> None:
    array, words = np.arange(4 * k, dtype=np.int8).reshape(4, k), -(-k // 4)
    packing = WordPacking(1, 4, Packing(((2, 2), (words,)), (0, 2, 1)))
    packed = packing(array)
    assert packed.shape == packing.shape == (2, words, 2)
    padded = np.zeros((4, words * 4), np.int8)
    padded[:, :k] = array
    np.testing.assert_array_equal(packed.view(np.int8).reshape(2, words, 2, 4)[1, 0, 1], padded[3, :4])
    np.testing.assert_array_equal(packed.view(np.int8).reshape(2, words, 2, 4)[0, -1, 0], padded[0, -4:])

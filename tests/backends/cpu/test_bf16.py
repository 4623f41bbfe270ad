"""Kernels of bfloat16: the products through vdpbf16ps, the rest in float32, against float64 of the same inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import op
from tvm.s_tir import SBlock

from subtune import backends
from subtune.backends.cpu.device import CPU, CPUModel
from subtune.backends.cpu.lowering.pipeline import PIPELINE
from subtune.backends.cpu.math.words import WordPacking
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.kernel import Kernel, NotApplicable, Packing
from subtune.core.workload import Workload
from subtune.passes.extract import extract
from subtune.passes.outline import outline
from subtune.passes.partition import partition

BF16 = ml_dtypes.bfloat16
ZEN4 = CPU("znver4", threads=2)
NHWC = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC", "out_dtype": "float32"}

needs_bf16 = pytest.mark.skipif(
    "avx512bf16" not in CPU("auto").features, reason="this processor has no AVX512-BF16 to run the kernel on"
)


def workload_of(
    body: Callable[..., Any], inputs: Sequence[tuple[tuple[int, ...], str]], weights: Sequence[Any]
) -> Workload:
    """The one workload of `body(emit, inputs..., weights...)`: inputs are shapes and types, weights constants."""
    bb = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(*given)) for i, given in enumerate(inputs)]
    with bb.function("main", params):
        with bb.dataflow():
            result = bb.emit_output(body(bb.emit, *params, *weights))
        bb.emit_func_output(result)
    mod = bb.get()
    (subgraph,) = extract(outline(mod, partition(mod)))
    return subgraph.workload


def build(
    body: Callable[..., Any], inputs: Sequence[tuple[Any, ...]], constants: Sequence[tuple[Any, ...]] = ()
) -> Workload:
    """The one workload of `body(emit, inputs..., constants...)`; a shape that ends in "f" is float32, else bfloat16."""
    rng = np.random.default_rng(0)

    def split(shape: tuple[Any, ...]) -> tuple[tuple[int, ...], str]:
        return (shape[:-1], "float32") if shape[-1] == "f" else (shape, "bfloat16")

    def weight(shape: tuple[int, ...], dtype: str) -> Any:
        return relax.const(rng.standard_normal(shape).astype(BF16 if dtype == "bfloat16" else dtype), dtype)

    return workload_of(body, [*map(split, inputs)], [weight(*split(shape)) for shape in constants])


def dense(m: int, n: int, k: int, out: str = "bfloat16") -> Workload:
    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        y = emit(op.nn.relu(emit(op.add(emit(op.matmul(x, w, "float32")), b))))
        return y if out == "float32" else op.astype(y, out)

    return build(body, [(m, k)], [(k, n), (n, "f")])


def conv(size: int, cin: int, cout: int, kernel: int, stride: int = 1, batch: int = 1) -> Workload:
    """Convolution + bias + residual + relu, the residual in bfloat16."""
    pad = kernel // 2
    out = (size + 2 * pad - kernel) // stride + 1

    def body(emit: Any, x: Any, r: Any, w: Any, b: Any) -> Any:
        y = emit(op.nn.conv2d(x, w, strides=stride, padding=pad, **NHWC))
        y = emit(op.add(emit(op.add(y, b)), emit(op.astype(r, "float32"))))
        return op.astype(emit(op.nn.relu(y)), "bfloat16")

    shapes = [(batch, size, size, cin), (batch, out, out, cout)]
    return build(body, shapes, [(cout, kernel, kernel, cin), (1, 1, 1, cout, "f")])


def conv_of_groups(size: int, cin: int, cout: int, groups: int) -> Workload:
    def body(_emit: Any, x: Any, w: Any) -> Any:
        return op.nn.conv2d(x, w, padding=1, groups=groups, **NHWC)

    return build(body, [(1, size, size, cin)], [(cout, 3, 3, cin // groups)])


def conv_of_float32(size: int, cin: int, cout: int, kernel: int) -> Workload:
    """The first convolution of a model, whose input is float32."""

    def body(emit: Any, x: Any, w: Any) -> Any:
        return op.nn.conv2d(emit(op.astype(x, "bfloat16")), w, padding=kernel // 2, **NHWC)

    return build(body, [(1, size, size, cin, "f")], [(cout, kernel, kernel, cin)])


def batch_matmul(batch: int, m: int, n: int, k: int, transposed: bool = False) -> Workload:
    def body(emit: Any, a: Any, b: Any) -> Any:
        b = emit(op.permute_dims(b, [0, 2, 1])) if transposed else b
        return op.astype(emit(op.matmul(a, b, "float32")), "bfloat16")

    return build(body, [(batch, m, k), (batch, n, k) if transposed else (batch, k, n)])


def in_float32(function: Callable[..., Any], inputs: Sequence[Any], constants: Sequence[Any] = ()) -> Workload:
    """`function` in float32 between casts from and to bfloat16."""

    def body(emit: Any, *args: Any) -> Any:
        wide = [emit(op.astype(x, "float32")) if str(x.ty.dtype) == "bfloat16" else x for x in args]
        return op.astype(emit(function(emit, *wide)), "bfloat16")

    return build(body, inputs, constants)


def max_pool(emit: Any, x: Any) -> Any:
    return op.nn.max_pool2d(x, (3, 3), strides=(2, 2), padding=(1, 1, 1, 1), layout="NHWC", out_layout="NHWC")


def depthwise(emit: Any, x: Any, w: Any) -> Any:
    return op.nn.conv2d(x, w, padding=1, groups=24, **NHWC)


# what the workloads above compute, in float64


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0)


def conv_of(x: np.ndarray, w: np.ndarray, stride: int = 1) -> np.ndarray:
    """NHWC x OHWI, padded by half of the window."""
    size, pad = w.shape[1], w.shape[1] // 2
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))[:, ::stride, ::stride]
    return np.einsum("nhwcij,oijc->nhwo", windows, w)


def of_groups(x: np.ndarray, w: np.ndarray, groups: int, stride: int = 1) -> np.ndarray:
    pairs = zip(np.split(x, groups, axis=-1), np.split(w, groups), strict=True)
    return np.concatenate([conv_of(part, weights, stride) for part, weights in pairs], axis=-1)


def dense_of(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    return relu(x @ w + b)


def residual_conv_of(stride: int) -> Callable[..., np.ndarray]:
    return lambda x, w, r, b: relu(conv_of(x, w, stride) + b + r)


def rounded_conv_of(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return conv_of(x.astype(BF16).astype(np.float64), w)


CONTRACTIONS = {
    "dense": (dense(32, 64, 40), dense_of),
    "dense, odd k, prime rows, odd columns, float32 result": (dense(37, 50, 31, "float32"), dense_of),
    "gemv": (dense(1, 100, 64), dense_of),
    "conv3x3": (conv(14, 16, 32, 3), residual_conv_of(1)),
    "conv1x1 stride 2": (conv(14, 16, 32, 1, stride=2), residual_conv_of(2)),
    "conv, odd channels": (conv(9, 5, 21, 3, batch=2), residual_conv_of(1)),
    "groups": (conv_of_groups(7, 12, 48, 3), lambda x, w: of_groups(x, w, 3)),
    "stem": (conv(20, 3, 16, 7, stride=2), residual_conv_of(2)),
    "stem of float32": (conv_of_float32(12, 3, 16, 3), rounded_conv_of),
    "1x1 of float32": (conv_of_float32(6, 4, 16, 1), rounded_conv_of),
    "batch matmul": (batch_matmul(3, 16, 32, 20), np.matmul),
    "batch matmul, odd": (batch_matmul(2, 7, 19, 9), np.matmul),
    # B comes first: the group's prologue reads it first
    "attention scores": (batch_matmul(3, 17, 19, 20, transposed=True), lambda b, a: a @ b.transpose(0, 2, 1)),
    "attention scores, odd k": (batch_matmul(1, 16, 32, 7, transposed=True), lambda b, a: a @ b.transpose(0, 2, 1)),
}


def max_pool_of(x: np.ndarray) -> np.ndarray:
    x = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    return np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))[:, ::2, ::2].max(axis=(-1, -2))


def depthwise_of(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    x = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return np.einsum("nhwcij,cij->nhwc", np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2)), w[..., 0])


def softmax_of(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def layer_norm_of(x: np.ndarray, g: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * g + b


OTHERS = {
    "elementwise": (
        in_float32(lambda e, x, y: op.nn.silu(e(op.add(x, y))), [(6, 5, 24), (6, 5, 24)]),
        lambda x, y: (x + y) / (1 + np.exp(-x - y)),
    ),
    "elementwise, odd": (in_float32(lambda e, x: op.nn.relu(x), [(7, 13)]), relu),
    "max pool": (in_float32(max_pool, [(1, 13, 13, 32)]), max_pool_of),
    "global pool": (
        in_float32(lambda e, x: op.mean(x, axis=[1, 2], keepdims=True), [(1, 7, 7, 40)]),
        lambda x: x.mean(axis=(1, 2), keepdims=True),
    ),
    "depthwise": (in_float32(depthwise, [(1, 14, 14, 24)], [(24, 3, 3, 1, "f")]), depthwise_of),
    "softmax": (in_float32(lambda e, x: op.nn.softmax(x), [(12, 64)]), softmax_of),
    "layer norm": (
        in_float32(lambda e, x, g, b: op.nn.layer_norm(x, g, b, axes=[-1]), [(8, 96)], [(96, "f"), (96, "f")]),
        layer_norm_of,
    ),
    "concat": (
        build(lambda e, x, y: op.concat([x, y], axis=-1), [(5, 12), (5, 20)]),
        lambda x, y: np.concatenate([x, y], axis=-1),
    ),
    "transpose": (
        build(lambda e, x: op.permute_dims(x, [0, 2, 3, 1]), [(1, 3, 12, 14)]),
        lambda x: x.transpose(0, 2, 3, 1),
    ),
    "arithmetic in bfloat16": (
        build(lambda e, x, y: op.maximum(e(op.multiply(x, y)), y), [(6, 32), (6, 32)]),
        lambda x, y: np.maximum(x * y, y),
    ),
}
CASES = {**CONTRACTIONS, **OTHERS}


def arguments(workload: Workload) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [
        rng.standard_normal(arg.shape).astype(BF16 if arg.dtype == "bfloat16" else arg.dtype) for arg in workload.args
    ]


def module(kernel: Kernel, device: CPUModel) -> Any:
    return tvm.compile(kernel.func.with_attr("global_symbol", "main"), device.target(), tir_pipeline=PIPELINE)


def run(workload: Workload, kernel: Kernel, device: CPUModel, given: Sequence[np.ndarray] | None = None) -> np.ndarray:
    """The result of the kernel of `given` arrays, of which the last is the result's."""
    arrays = list(arguments(workload) if given is None else given)
    for index, packing in kernel.packings:
        arrays[index] = packing(arrays[index])
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    module(kernel, device)["main"](*tensors)
    result: np.ndarray = tensors[-1].numpy()
    return result


def scheduled(workload: Workload, candidate: Candidate, device: CPUModel = ZEN4) -> Kernel:
    kernel = backends.schedule(workload, candidate, device)
    assert isinstance(kernel, Kernel), kernel.reason
    return kernel


def assert_right(result: np.ndarray, workload: Workload, reference: Callable[..., np.ndarray]) -> None:
    """One rounding to bfloat16 of the exact result, and the rounding of float32 sums."""
    given = [array.astype(np.float64) for array in arguments(workload)[:-1]]
    expected = reference(*given)
    ulp = 2.0**-8 if result.dtype == BF16 else 0.0
    scale = np.sqrt(np.mean(expected**2))
    assert np.all(np.abs(result.astype(np.float64) - expected) <= 1.01 * ulp * np.abs(expected) + 5e-5 * scale)


@needs_bf16
@pytest.mark.parametrize("case", CASES)
@pytest.mark.grid
def test_candidates_are_right(case: str) -> None:
    workload, reference = CASES[case]
    proposed = backends.candidates(workload, ZEN4, topk=40)
    picked = {proposed[0], proposed[-1], *[c for c in proposed if not c.is_serial][:1]}
    picked |= set([candidate for candidate in proposed if candidate.family == "winograd"][:1])
    assert (case == "conv3x3") == any(c.family == "winograd" for c in proposed)  # in float32, of bfloat16
    assert (case in CONTRACTIONS) == any(c.family == "contraction_bf16" for c in proposed)
    for candidate in [DEFAULT, *sorted(picked, key=str)]:
        kernel = backends.schedule(workload, candidate, ZEN4)
        if not isinstance(kernel, NotApplicable):
            assert_right(run(workload, kernel, ZEN4), workload, reference)


@pytest.mark.parametrize("case", CASES)
def test_every_processor_gets_a_default_that_is_right(case: str) -> None:
    """Without AVX512-BF16 bfloat16 is rounded by integer arithmetic."""
    host = CPU("auto", threads=2)
    device = dataclasses.replace(host, features=tuple(f for f in host.features if f != "avx512bf16"))
    workload, reference = CASES[case]
    kernel = scheduled(workload, DEFAULT, device)
    assert "subtune_bf16" not in str(kernel.func)
    assert_right(run(workload, kernel, device), workload, reference)
    assert not any(c.family == "contraction_bf16" for c in backends.candidates(workload, device))


@pytest.mark.skipif(not CPU("auto").triple.startswith("x86_64"), reason="LLVM here builds for another architecture")
@pytest.mark.parametrize(
    ("workload", "knobs"),
    [(dense(64, 64, 64), {"mr": 8, "nr": 32, "mt": 2}), (conv(14, 16, 32, 3), {"mr": 14, "nr": 32, "mt": 2})],
)
def test_the_inner_loop_is_dot_products_in_registers(workload: Workload, knobs: dict[str, int], tmp_path: Path) -> None:
    """Built for Zen 4 on any machine: products and roundings by instruction, nothing is widened but the residual."""
    kernel = scheduled(workload, Candidate.make("contraction_bf16", order="m", **knobs))
    module(kernel, ZEN4).mod.write_to_file(str(tmp_path / "kernel.s"), "s")
    code = (tmp_path / "kernel.s").read_text()
    dots = [line for line in code.splitlines() if "vdpbf16ps" in line]
    assert len(dots) % (knobs["mr"] * knobs["nr"] // 16) == 0
    assert dots
    assert code.count("vcvtneps2bf16") >= knobs["mr"] * knobs["nr"] // 16
    inner = code[code.index("vdpbf16ps") : code.rindex("vdpbf16ps")]
    assert "vpslld" not in inner
    assert "vcvtneps2bf16" not in inner


@needs_bf16
@pytest.mark.parametrize("order", ["m", "n", "mn"])
@pytest.mark.parametrize("case", ["dense", "conv3x3", "stem"])
def test_prefetching_changes_nothing(case: str, order: str) -> None:
    workload, reference = CONTRACTIONS[case]
    candidate = Candidate.make("contraction_bf16", mr=5, nr=32, mt=1, order=order, prefetch=True)
    kernel = scheduled(workload, candidate)
    assert "prefetch" in str(kernel.func)
    assert_right(run(workload, kernel, ZEN4), workload, reference)


RAGGED = {
    "dense": (dense(13, 100, 31), dense_of),
    "dense, float32 result": (dense(13, 50, 32, "float32"), dense_of),
    "conv": (conv(9, 5, 53, 3, batch=2), residual_conv_of(1)),
    "attention scores": (batch_matmul(3, 17, 50, 20, transposed=True), lambda b, a: a @ b.transpose(0, 2, 1)),
}


@needs_bf16
@pytest.mark.parametrize("order", ["m", "n", "mn", "nm"])
@pytest.mark.parametrize("case", RAGGED)
@pytest.mark.grid
def test_a_last_tile_computes_no_vector_of_padding(case: str, order: str) -> None:
    workload, reference = RAGGED[case]
    for knobs in ({}, {"prefetch": True}):
        kernel = scheduled(workload, Candidate.make("contraction_bf16", mr=3, nr=48, mt=1, order=order, **knobs))
        assert "is_whole" in kernel.func.script()
        assert_right(run(workload, kernel, ZEN4), workload, reference)


@pytest.mark.skipif(not CPU("auto").triple.startswith("x86_64"), reason="LLVM here builds for another architecture")
def test_ragged_results_are_rounded_in_vectors(tmp_path: Path) -> None:
    """Of 50 columns three vectors are whole, and one has two elements."""
    kernel = scheduled(dense(8, 50, 32), Candidate.make("contraction_bf16", mr=4, nr=16, mt=1, order="n"))
    module(kernel, ZEN4).mod.write_to_file(str(tmp_path / "kernel.s"), "s")
    rounded = [line for line in (tmp_path / "kernel.s").read_text().splitlines() if "vcvtneps2bf16" in line]
    assert any("%zmm" in line for line in rounded)
    assert len(rounded) <= 4 * 4  # for each of four rows: whole vectors, and what is left


def test_no_bf16_instructions_no_bf16_template() -> None:
    device = CPU("skylake-avx512") if CPU("auto").triple.startswith("x86_64") else CPU("auto")
    refused = backends.schedule(
        dense(8, 16, 8), Candidate.make("contraction_bf16", mr=4, nr=16, mt=1, order="m"), device
    )
    assert isinstance(refused, NotApplicable)
    assert "AVX512-BF16" in refused.reason


@pytest.mark.parametrize("k", [6, 7])
def test_constants_are_packed_in_pairs(k: int) -> None:
    """[n, k] -> [n / 2][k / 2][2 columns] of pairs along k, an odd k ending in a zero."""
    array = np.arange(4 * k).reshape(4, k).astype(BF16)
    half = -(-k // 2)
    packed = WordPacking(1, 2, Packing(((2, 2), (half,)), (0, 2, 1)))(array)
    assert packed.shape == WordPacking(1, 2, Packing(((2, 2), (half,)), (0, 2, 1))).shape == (2, half, 2)
    assert packed.dtype == np.int32
    pairs = packed.view(BF16).reshape(2, half, 2, 2)
    padded = np.pad(array.astype(np.float32), ((0, 0), (0, k % 2)))
    for n in range(4):
        np.testing.assert_array_equal(pairs[n // 2, :, n % 2].reshape(-1).astype(np.float32), padded[n])


@pytest.mark.parametrize("has_instruction", [pytest.param(True, marks=needs_bf16), False])
def test_sums_in_bfloat16_are_rounded_at_every_step(has_instruction: bool) -> None:
    """A model that is bfloat16 itself; its zero is stored as a vector, which TVM cannot do with bfloat16."""
    device = ZEN4 if has_instruction else CPU("auto", threads=2)
    if not has_instruction:
        device = dataclasses.replace(device, features=tuple(f for f in device.features if f != "avx512bf16"))
    workload = build(lambda e, x, y: op.einsum([x, y], "bij,bjk->bik"), [(5, 2, 3), (5, 3, 4)])
    a, b, _ = (array.astype(np.float32) for array in arguments(workload))
    expected = np.zeros((5, 2, 4), np.float32)
    for k in range(3):
        expected = (expected + a[:, :, k, None] * b[:, None, k]).astype(BF16).astype(np.float32)
    result = run(workload, scheduled(workload, DEFAULT, device), device).astype(np.float32)
    np.testing.assert_allclose(result, expected, rtol=2.0**-7)  # a fused multiply-add may round once instead of twice


@needs_bf16
def test_rounding_is_to_nearest_even_and_keeps_what_is_not_finite() -> None:
    workload = build(lambda emit, x: op.astype(x, "bfloat16"), [(64, "f")])
    values = np.zeros(64, np.float32)
    special = [1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, 1.0 + 2.0**-8 + 2.0**-20, -1e-3, np.inf, -np.inf, np.nan, 3.4e38]
    values[: len(special)] = special
    for device in (ZEN4, CPU("skylake-avx512")):
        out = tvm.runtime.tensor(np.zeros(64, BF16))
        module(scheduled(workload, DEFAULT, device), device)["main"](tvm.runtime.tensor(values), out)
        np.testing.assert_array_equal(out.numpy().astype(np.float32), values.astype(BF16).astype(np.float32))


def test_buffers_inside_a_kernel_stay_two_bytes_wide() -> None:
    """TVM alone would make the padding of a convolution float32."""
    kernel = scheduled(conv(14, 16, 32, 3), Candidate.make("contraction_bf16", mr=14, nr=32, mt=2, order="m"))
    found: list[str] = []
    tvm_ffi.structural_walk(kernel.func.body, (SBlock, lambda b: found.extend(str(a.dtype) for a in b.alloc_buffers)))
    assert "uint16" in found
    assert "bfloat16" not in found

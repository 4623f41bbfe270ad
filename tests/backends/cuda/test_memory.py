"""What memory bounds on a GPU: every template builds for three architectures, every candidate is legal, without a GPU.

Where there is a GPU, the kernels' results are compared with the unscheduled function's on the processor.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi

from subtune.backends import candidates, schedule
from subtune.backends.cuda.building.compiler import compile_source, compiler
from subtune.backends.cuda.building.cubin import resources
from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.driver import driver_device
from subtune.backends.cuda.lowering.default_schedule import pipeline
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload

ARCHS = ("sm_80", "sm_89", "sm_90a")
PER_KIND = 2
needs_compiler = pytest.mark.skipif(not compiler(), reason="neither NVRTC nor nvcc is installed")
HERE = driver_device()


def tensor(*shape: int, dtype: str = "float16", name: str = "x") -> Any:
    return te.placeholder(shape, dtype, name)


def workload(*tensors: Any, outputs: int = 1, constants: tuple[int, ...] = ()) -> Workload:
    func = te.create_prim_func(list(tensors)).with_attr("layout_free_buffers", list(constants))
    return Workload.of(func, outputs)


def summed(x: Any, length: int, value: Any, shape: tuple[int, ...]) -> Any:
    k = te.reduce_axis((0, length), "k")
    return te.compute(shape, lambda *i: te.sum(value(*i, k).astype("float32"), axis=k), "total")


def concatenated(left: int = 56, right: int = 64, planes: int = 6) -> Workload:
    x, y = tensor(planes, 9, left), tensor(planes, 9, right, name="y")
    return workload(x, y, te.compute((planes, 9, left + right), lambda i, j, k: tirx.if_then_else(
        k < left, x[i, j, k], y[i, j, k - left]).astype("float32") * 2.0))  # fmt: skip


def two_outputs() -> Workload:
    x = tensor(64, 96, dtype="float32")
    left = te.compute((64, 48), lambda i, j: tirx.exp(x[i, j]), "left")
    return workload(x, left, te.compute((64, 48), lambda i, j: x[i, j + 48] * 2.0, "right"), outputs=2)


def chained() -> Workload:
    """Every output reads the one before, of which one has another shape."""
    x = tensor(6, 8, dtype="float32")
    y = te.compute((6, 8), lambda i, j: tirx.max(x[i, j], 0.0), "first")
    z = te.compute((8, 6), lambda i, j: tirx.tanh(y[j, i]), "turned")
    return workload(x, y, z, te.compute((6, 8), lambda i, j: z[j, i] * 2.0 + y[i, j], "last"), outputs=3)


def odd() -> Workload:
    x, y = tensor(7, 13, 3, dtype="float32"), tensor(3, dtype="float32", name="y")
    return workload(x, y, te.compute((7, 13, 3), lambda i, j, k: tirx.tanh(x[i, j, k]) + y[k]))


def rounded_sum(rows: int, length: int) -> Workload:
    x = tensor(rows, length)
    total = summed(x, length, lambda i, k: x[i, k], (rows,))
    return workload(x, te.compute((rows,), lambda i: total[i].astype("float16")))


def layer_norm(rows: int, length: int) -> Workload:
    x, gamma = tensor(rows, length), tensor(length, name="gamma")
    total = summed(x, length, lambda i, k: x[i, k], (rows,))
    mean = te.compute((rows,), lambda i: total[i] / float(length), "mean")
    k = te.reduce_axis((0, length), "k2")
    square = lambda i, k: (x[i, k].astype("float32") - mean[i]) * (x[i, k].astype("float32") - mean[i])  # noqa: E731
    variance = te.compute((rows,), lambda i: te.sum(square(i, k), axis=k), "variance")
    scale = lambda i: tirx.rsqrt(variance[i] / float(length) + 1e-5)  # noqa: E731
    return workload(x, gamma, te.compute((rows, length), lambda i, j: (
        (x[i, j].astype("float32") - mean[i]) * scale(i) * gamma[j].astype("float32")).astype("float16")))  # fmt: skip


def softmax(*shape: int, axis: int = -1, dtype: str = "float16") -> Workload:
    x = tensor(*shape, dtype=dtype)
    return workload(x, topi.nn.softmax(x, axis=axis))


def column_sum(rows: int, columns: int) -> Workload:
    x = tensor(rows, columns)
    return workload(x, summed(x, rows, lambda j, k: x[k, j], (columns,)))


def product(m: int, n: int, k: int, is_nt: bool = True) -> Workload:
    a, b = tensor(m, k), tensor(*((n, k) if is_nt else (k, n)), name="w")
    r = te.reduce_axis((0, k), "r")
    c = te.compute((m, n), lambda i, j: te.sum(
        a[i, r].astype("float32") * (b[j, r] if is_nt else b[r, j]).astype("float32"), axis=r), "c")  # fmt: skip
    return workload(a, b, te.compute((m, n), lambda i, j: c[i, j].astype("float16")))


def int4_product(n: int, k: int) -> Workload:
    a, packed = tensor(1, k), tensor(n, k // 2, dtype="int8", name="w")
    nibble = lambda j, i: (packed[j, i // 2] >> ((i % 2) * 4).astype("int8")) & tirx.const(15, "int8")  # noqa: E731
    w = te.compute((n, k), lambda j, i: nibble(j, i).astype("float16"), "unpacked")
    r = te.reduce_axis((0, k), "r")
    return workload(a, packed, te.compute((1, n), lambda i, j: te.sum(
        a[i, r].astype("float32") * w[j, r].astype("float32"), axis=r)))  # fmt: skip


def pooled(kind: str = "max") -> Workload:
    x = tensor(2, 15, 15, 24)
    return workload(x, topi.nn.pool2d(x, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), kind, layout="NHWC"))


def depthwise(size: int = 14, channels: int = 24, kernel: int = 3, stride: int = 1) -> Workload:
    x, w = tensor(2, size, size, channels), tensor(channels, kernel, kernel, 1, name="w")
    pad, out = kernel // 2, (size - 1) // stride + 1
    padded = topi.nn.pad(x, (0, pad, pad, 0))
    ry, rx, rc = (te.reduce_axis((0, n), name) for n, name in ((kernel, "ry"), (kernel, "rx"), (1, "rc")))
    y = te.compute((2, out, out, channels), lambda n, i, j, c: te.sum(
        padded[n, i * stride + ry, j * stride + rx, c + rc].astype("float32") * w[c, ry, rx, rc].astype("float32"),
        axis=[ry, rx, rc]), "y")  # fmt: skip
    relu = te.compute(y.shape, lambda *i: tirx.max(y(*i), tirx.const(0.0, "float32")).astype("float16"))
    return workload(x, w, relu, constants=(1,))


def turned() -> Workload:
    x, y = tensor(3, 40, 14, 14), tensor(3, 14, 14, 40, name="y")
    return workload(x, y, te.compute((3, 14, 14, 40), lambda n, i, j, c: x[n, c, i, j] + y[n, i, j, c]))


def global_pool() -> Workload:
    x = tensor(4, 7, 7, 64)
    i, j = te.reduce_axis((0, 7), "i"), te.reduce_axis((0, 7), "j")
    return workload(x, te.compute((4, 64), lambda n, c: te.sum(x[n, i, j, c].astype("float32"), axis=[i, j])))


KINDS = {
    "concatenation": concatenated,
    "two outputs": two_outputs,
    "chained outputs": chained,
    "nothing is even": odd,
    "row sums": lambda: rounded_sum(300, 1024),
    "few long rows": lambda: rounded_sum(3, 1 << 16),
    "softmax": lambda: softmax(100, 384),
    "softmax of three axes": lambda: softmax(3, 9, 11, 48),
    "odd softmax": lambda: softmax(37, 97, dtype="float32"),
    "long softmax": lambda: softmax(2, 70000, dtype="float32"),
    "softmax of channels": lambda: softmax(3, 40, 14, 14, axis=1),
    "layer norm": lambda: layer_norm(100, 768),
    "column sums": lambda: column_sum(4096, 72),
    "global pooling": global_pool,
    "max pooling": pooled,
    "average pooling": lambda: pooled("avg"),
    "depthwise": depthwise,
    "strided depthwise": lambda: depthwise(13, 40, 5, 2),
    "transpose and add": turned,
    "gemv": lambda: product(1, 200, 512),
    "gemv [k, n]": lambda: product(2, 72, 512, False),
    "five vectors": lambda: product(5, 100, 96),
    "one column": lambda: product(100, 1, 96),
    "int4": lambda: int4_product(96, 256),
}


@cache
def made(kind: str) -> Workload:
    return KINDS[kind]()


PRODUCTS = ("cuda.mma", "cuda.simt", "cuda.fma", "cuda.winograd", "cuda.wgmma", "cuda.stem")


def chosen(kind: str, arch: str) -> list[Candidate]:
    """The best few candidates of every template that memory bounds; the products' have tests of their own."""
    found: dict[str, list[Candidate]] = {}
    for candidate in candidates(made(kind), CUDA(arch), 60):
        if candidate.family in PRODUCTS:
            continue
        found.setdefault(candidate.family, []).append(candidate)
    return [candidate for ranked in found.values() for candidate in ranked[:PER_KIND]]


def source(kernel: Kernel, arch: str) -> str:
    library = tvm.compile(kernel.func.with_attr("global_symbol", "main"), CUDA(arch).target(), tir_pipeline=pipeline())
    return str(library.mod.imports[0].inspect_source())


def kernel_of(kind: str, candidate: Candidate, arch: str = "sm_90a") -> Kernel:
    kernel = schedule(made(kind), candidate, CUDA(arch))
    assert isinstance(kernel, Kernel), f"{candidate}: {kernel}"
    return kernel


@pytest.mark.parametrize(("left", "right", "is_aligned"), [(736, 64, True), (23, 220, False)])
def test_a_run_lies_in_one_section_or_is_one_element(left: int, right: int, is_aligned: bool) -> None:
    best = candidates(concatenated(left, right, 4096), CUDA("sm_90a"), 1)[0]
    assert best.family == "cuda.elementwise"
    assert (dict(best.knobs)["lanes"] > 1) == is_aligned


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.grid
def test_every_template_of_every_kind_becomes_cuda(kind):
    taken = chosen(kind, "sm_90a")
    assert taken, "no candidates"
    for candidate in taken:
        text = source(kernel_of(kind, candidate), "sm_90a")
        bounds = [int(n) for n in re.findall(r"__launch_bounds__\((\d+)\)", text)]
        assert bounds
        assert all(32 <= n <= 1024 for n in bounds), f"{candidate}: {bounds}"


@needs_compiler
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("kind", ["softmax", "column sums", "depthwise", "transpose and add", "int4", "gemv [k, n]"])
@pytest.mark.grid
def test_machine_code_of_three_architectures_spills_nothing(kind, arch):
    device = CUDA(arch)
    candidate = chosen(kind, arch)[0]
    code = compile_source(source(kernel_of(kind, candidate, arch), arch), device.target())
    for used in resources(code):
        assert used.stack_bytes == 0, f"{candidate}: {used.kernel} keeps {used.stack_bytes} bytes per thread in memory"
        assert used.registers <= device.max_registers_per_thread
        assert used.shared_bytes <= device.shared_per_block_bytes


@pytest.mark.parametrize("arch", ["T4", *ARCHS])
@pytest.mark.parametrize("kind", KINDS)
def test_candidates_are_legal_ordered_and_the_same_again(kind, arch):
    device = CUDA(arch)
    found = candidates(made(kind), device, 30)
    assert found == candidates(made(kind), device, 30)
    assert [c.predicted_s for c in found] == sorted(c.predicted_s for c in found)
    floor = made(kind).nbytes / device.dram_bytes_per_s
    for candidate in found:
        if candidate.family in PRODUCTS:
            continue
        knobs = dict(candidate.knobs)
        threads = int(knobs["threads"]) * int(knobs.get("rows", 1) if candidate.family == "cuda.rowwise" else 1)
        threads *= int(knobs.get("chunks", 1)) * int(knobs.get("groups", 1))
        assert threads <= device.max_threads_per_block, candidate
        assert threads % 32 == 0, f"{candidate}: a warp would not be whole"
        assert floor < candidate.predicted_s < 1.0, f"{candidate}: {candidate.predicted_s}"


def test_a_row_is_read_once_in_16_bytes():
    kind = "softmax"
    candidate = Candidate.make("cuda.rowwise", threads=16, rows=8, lanes=8, keep=True)
    text = source(kernel_of(kind, candidate), "sm_90a")
    assert len(re.findall(r"= \*\(uint4\*\)\(x_ptr", text)) == 384 // (16 * 8), "each run once, for all three stages"
    assert len(re.findall(r"\*\(uint4\*\)\(\w+_ptr \+ [^;]*\) = ", text)) >= 384 // (16 * 8)


def test_what_windows_share_is_read_once():
    def reads(cols):
        candidate = Candidate.make("cuda.window", threads=128, lanes=8, rows=1, cols=cols)
        return source(kernel_of("max pooling", candidate), "sm_80").count("*(uint4*)(x_ptr")

    assert reads(1) == 9
    assert reads(2) == 15, "3 rows of 5 pixels, not of 6"


def test_depthwise_weights_are_packed_by_channel():
    kernel = kernel_of("depthwise", Candidate.make("cuda.window", threads=128, lanes=8, rows=1, cols=2))
    ((param, packing),) = kernel.packings
    weights = np.arange(24 * 9, dtype="float16").reshape(24, 3, 3, 1)
    assert param == 1
    np.testing.assert_array_equal(packing(weights), weights.transpose(1, 2, 3, 0))
    assert tuple(int(d) for d in kernel.func.params[1].shape) == (3, 3, 1, 24)


def test_few_long_rows_are_shared_by_blocks():
    best = candidates(made("few long rows"), CUDA("H200"), 1)[0]
    assert int(best.get("split") or 1) > 1
    assert source(kernel_of("few long rows", best), "sm_90a").count("__launch_bounds__") == 4  # two kernels, declared


@pytest.mark.parametrize(
    ("kind", "candidate", "reason"),
    [
        ("softmax", Candidate.make("cuda.elementwise", threads=128, lanes=8, unroll=1), "not an elementwise workload"),
        ("gemv", Candidate.make("cuda.window", threads=128, lanes=8, rows=1, cols=1), ""),
        ("softmax", Candidate.make("cuda.columns", threads=4, chunks=8, lanes=8), "innermost axis"),
        ("softmax", Candidate.make("cuda.rowwise", threads=32, rows=4, lanes=5, keep=True), "does not divide"),
        ("softmax", Candidate.make("cuda.gemv", threads=32, groups=4, lanes=8), "a product has one"),
        ("two outputs", Candidate.make("cuda.transpose", threads=128, side=32), "one output"),
    ],
)
def test_what_does_not_apply_says_why(kind, candidate, reason):
    found = schedule(made(kind), candidate, CUDA("H200"))
    assert isinstance(found, NotApplicable)
    assert reason in found.reason


@pytest.mark.gpu
@pytest.mark.skipif(isinstance(HERE, str), reason=f"no GPU: {HERE}")
@pytest.mark.parametrize("kind", KINDS)
def test_results_are_those_of_the_unscheduled_function(kind):
    given, device = made(kind), tvm.cuda(0)
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(-100, 100, arg.shape).astype(arg.dtype)
        if arg.dtype.startswith("int")
        else rng.standard_normal(arg.shape).astype(arg.dtype)
        for arg in given.args
    ]
    expected = [tvm.runtime.tensor(array) for array in arrays]
    tvm.compile(given.func.with_attr("global_symbol", "main"), "llvm")["main"](*expected)
    for candidate in chosen(kind, "sm_90a"):
        kernel = schedule(given, candidate, CUDA("auto"))
        assert isinstance(kernel, Kernel)
        func = kernel.func.with_attr("global_symbol", "main")
        run = tvm.compile(func, CUDA("auto").target(), tir_pipeline=pipeline())
        packed = dict(kernel.packings)
        inputs = [tvm.runtime.tensor(packed[i](a) if i in packed else a, device) for i, a in enumerate(arrays)]
        run["main"](*inputs)
        for got, want in list(zip(inputs, expected, strict=True))[-given.num_outputs :]:
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=2e-2, atol=2e-2, err_msg=str(candidate))

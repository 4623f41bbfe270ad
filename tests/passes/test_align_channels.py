"""Rows of halves and of float32 that are no whole 16 bytes, copied into rows that are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from subtune import backends
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cuda.device import CUDA
from subtune.core.forms import Forms
from subtune.core.kernel import Kernel
from subtune.passes.align_channels import align_channels
from subtune.passes.exprs import make_const, op_name, shape_of
from subtune.patterns.elementwise import Elementwise
from subtune.patterns.recognise import recognise
from tests.backends import workloads
from tests.backends.cuda import cuda_on_cpu
from tests.backends.cuda.test_values import check

GPU = Forms(half_row=8)


def module(body: Any, *inputs: Any) -> Any:
    builder = relax.BlockBuilder()
    with builder.function("main", list(inputs)):
        with builder.dataflow():
            out = builder.emit_output(body(builder.emit))
        builder.emit_func_output(out)
    return builder.get()


def half(name: str, *shape: int) -> Any:
    return relax.Var(name, relax.TensorType(shape, "float16"))


def weight(*shape: int) -> Any:
    return make_const(np.random.default_rng(0).standard_normal(shape).astype("float16"))


def convolution(channels: int, results: int, size: int = 48, kernel: int = 3, turned: bool = False) -> Any:
    x = half("x", 1, channels, size, size) if turned else half("x", 1, size, size, channels)

    def body(emit: Any) -> Any:
        data = emit(op.permute_dims(x, [0, 2, 3, 1])) if turned else x
        return op.nn.conv2d(data, weight(results, kernel, kernel, channels), padding=kernel // 2, data_layout="NHWC",
                            kernel_layout="OHWI", out_dtype="float32")  # fmt: skip

    return module(body, x)


def grouped(channels: int, results: int, groups: int, size: int = 48, turned: bool = False) -> Any:
    whole = channels * groups
    x = half("x", 1, whole, size, size) if turned else half("x", 1, size, size, whole)

    def body(emit: Any) -> Any:
        data = emit(op.permute_dims(x, [0, 2, 3, 1])) if turned else x
        return op.nn.conv2d(data, weight(results, 5, 5, channels), padding=2, groups=groups, data_layout="NHWC",
                            kernel_layout="OHWI", out_dtype="float32")  # fmt: skip

    return module(body, x)


def solid(channels: int, results: int, size: int = 40) -> Any:
    x, w = half("x", 2, size, size, size, channels), weight(results, 3, 3, 3, channels)
    return module(lambda emit: op.nn.conv3d(x, w, padding=1, data_layout="NDHWC", kernel_layout="ODHWI",
                                            out_dtype="float32"), x)  # fmt: skip


def product(m: int, k: int, n: int, dynamic: bool = False) -> Any:
    x, w = half("x", m, k), half("w", n, k)
    if not dynamic:
        return module(lambda emit: op.matmul(x, weight(k, n), out_dtype="float32"), x)
    return module(lambda emit: op.matmul(x, emit(op.permute_dims(w, [1, 0])), out_dtype="float32"), x, w)


def batched(batch: int, m: int, k: int, n: int) -> Any:
    x, w = half("x", batch, m, k), half("w", batch, k, n)
    return module(lambda emit: op.matmul(x, w, out_dtype="float32"), x, w)


def attention(batch: int, m: int, k: int, n: int) -> Any:
    x, v = half("x", batch, m, k), half("v", batch, k, n)

    def body(emit: Any) -> Any:
        weights = emit(op.nn.softmax(emit(op.astype(x, "float32"))))
        return op.matmul(emit(op.astype(weights, "float16")), v, out_dtype="float32")

    return module(body, x, v)


def calls(mod: Any) -> list[Any]:
    return [binding.value for block in mod["main"].body.blocks for binding in block.bindings]


def depths(mod: Any) -> list[int]:
    """The last dim of what every convolution and product reads first."""
    wanted = [call for call in calls(mod) if op_name(call) in ("relax.nn.conv2d", "relax.nn.conv3d", "relax.matmul")]
    return [shape_of(call.args[0])[-1] for call in wanted]


CASES = {
    "channels": (convolution(394, 78), 400),
    "turned anyway": (convolution(50, 8, 8, 1, turned=True), 56),
    "channels of groups": (grouped(41, 96, 4), 4 * 48),
    "channels of groups, turned anyway": (grouped(23, 128, 4, turned=True), 4 * 24),
    "few channels of groups": (grouped(6, 64, 4), 24),
    "few channels in three dims": (solid(3, 16), 8),
    "rows": (product(3072, 2497, 1049), 2504),
    "rows of two results": (product(2331, 4594, 632, dynamic=True), 4600),
    "batches of two results": (batched(64, 223, 419, 199), 424),
    "whole already": (convolution(64, 64), 64),
    "a first layer": (convolution(3, 64), 3),
    "a first layer, turned anyway": (convolution(3, 64, turned=True), 4),
    "too little to do": (convolution(50, 8, 8, 1), 50),
    "few results of much data": (convolution(394, 3, 48, 1), 394),
    "weights of an attention": (attention(24, 512, 1193, 64), 1193),
    "many heads of an attention": (batched(64, 512, 126, 512), 126),
    "heads of an attention": (product(2048, 126, 2048, dynamic=True), 126),
}


@pytest.mark.parametrize("name", CASES)
def test_where_it_pays(name: str) -> None:
    mod, depth = CASES[name]
    assert depths(align_channels(mod, GPU)) == [depth]
    assert align_channels(mod, Forms()).same_as(mod)


VALUES = [
    convolution(50, 96), grouped(41, 96, 4), grouped(23, 128, 4, turned=True), product(512, 300, 1001),
    product(512, 300, 1001, dynamic=True), batched(8, 223, 419, 199), batched(8, 256, 419, 192),
]  # fmt: skip


@pytest.mark.parametrize("mod", VALUES)
def test_values(mod: Any, device: CPUModel) -> None:
    import tvm

    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(shape_of(param)).astype("float16") for param in mod["main"].params]

    def run(what: Any) -> np.ndarray:
        vm = relax.VirtualMachine(relax.build(what, device.target()), tvm.cpu())
        return vm["main"](*(tvm.runtime.tensor(array) for array in arrays)).numpy()

    np.testing.assert_allclose(run(align_channels(mod, GPU)), run(mod), rtol=2e-3, atol=2e-3)


def test_what_is_read_beside_the_padding_is_no_padded_copy() -> None:
    """Its last channels are read where the other's are zeros."""

    def body(emit: Any, x: Any, y: Any) -> Any:
        padded = emit(op.nn.pad(emit(op.permute_dims(x, [0, 2, 3, 1])), [0, 0, 0, 0, 0, 0, 0, 6]))
        return op.add(padded, emit(op.permute_dims(y, [0, 2, 3, 1])))

    workload = workloads.build(body, [(2, 42, 5, 9), (2, 48, 5, 9)], dtype="float16")
    pattern = recognise(workload)
    assert isinstance(pattern, Elementwise)
    assert pattern.padded is None


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
def test_the_copy_that_turns_data_pads_it(tmp_path: Path) -> None:
    def body(emit: Any, x: Any) -> Any:
        return op.nn.pad(emit(op.permute_dims(x, [0, 2, 3, 1])), [0, 0, 0, 0, 0, 0, 0, 6])

    workload = workloads.build(body, [(2, 42, 5, 9)], dtype="float16")
    found = backends.candidates(workload, CUDA("H200"), 20)
    assert found[0].family == "cuda.transpose"
    kernel = backends.schedule(workload, found[0], CUDA("H200"))
    assert isinstance(kernel, Kernel), kernel
    check(workload, kernel, CUDA("H200"), tmp_path)


def floats(name: str, *shape: int) -> Any:
    return relax.Var(name, relax.TensorType(shape, "float32"))


@pytest.mark.parametrize(("channels", "read"), [(27, 28), (3, 4), (32, 32), (1, 1)])
def test_float32_has_rows_of_four(channels: int, read: int) -> None:
    x, w = floats("x", 8, 128, 128, channels), make_const(np.ones((64, 3, 3, channels), "float32"))
    before = module(lambda emit: op.nn.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="OHWI"), x)
    after = align_channels(before, Forms(half_row=8, float_row=4))
    (product,) = [b.value for b in after["main"].body.blocks[0].bindings if op_name(b.value) == "relax.nn.conv2d"]
    assert shape_of(product.args[0])[-1] == shape_of(product.args[1])[-1] == read
    assert align_channels(before, GPU) is before, "halves alone"


def test_products_of_two_results_in_float32_stay() -> None:
    x, y = floats("x", 8, 300, 567), floats("y", 8, 567, 300)
    before = module(lambda emit: op.matmul(x, y), x, y)
    assert align_channels(before, Forms(half_row=8, float_row=4)) is before

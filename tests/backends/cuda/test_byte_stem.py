"""A quantised first convolution on Hopper: multiplied as bytes, pooled in the same kernel, exact to the bit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from subtune import backends
from subtune.backends import device_of
from subtune.backends.cuda.device import CUDA
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel
from subtune.core.numerics import Numerics
from subtune.core.workload import Workload
from subtune.measure.guarded import numpy_dtype
from subtune.pipeline import Prepared, prepare
from tests.backends.cuda import cuda_on_cpu, hopper_on_cpu

H200 = device_of("h200", None, None, Numerics(), is_measured=False)
needs_toolkit = pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")


def model(size: tuple[int, int], channels: int, zero: int, columns: int = 64) -> onnx.ModelProto:
    """QuantizeLinear, a convolution of 7x7 with stride 2, ReLU, max pooling of 3x3: quantised as ONNX Runtime does."""
    rng = np.random.default_rng(channels)
    constants = {
        "sx": np.float32(0.02), "zx": np.uint8(zero), "w": rng.integers(-127, 128, (columns, channels, 7, 7), "int8"),
        "sw": rng.uniform(0.001, 0.003, columns).astype("float32"), "zw": np.zeros(columns, "int8"),
        "b": rng.integers(-3000, 3000, columns, "int32"), "sb": np.zeros(columns, "float32"),
        "zb": np.zeros(columns, "int32"), "sy": np.float32(0.03), "zy": np.uint8(0),
    }  # fmt: skip
    constants["sb"] = constants["sx"] * constants["sw"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sx", "zx"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "sx", "zx"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["wd"], axis=0),
        helper.make_node("DequantizeLinear", ["b", "sb", "zb"], ["bd"], axis=0),
        helper.make_node("Conv", ["xd", "wd", "bd"], ["c"], strides=[2, 2], pads=[3] * 4),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "sy", "zy"], ["rq"]),
        helper.make_node("DequantizeLinear", ["rq", "sy", "zy"], ["rd"]),
        helper.make_node("MaxPool", ["rd"], ["p"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
        helper.make_node("QuantizeLinear", ["p", "sy", "zy"], ["pq"]),
        helper.make_node("DequantizeLinear", ["pq", "sy", "zy"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, channels, *size))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "stem", [x], [y], [numpy_helper.from_array(v, k) for k, v in constants.items()])
    return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))


def prepared(size: tuple[int, int], channels: int = 3, zero: int = 0, columns: int = 64) -> Prepared:
    return prepare(model(size, channels, zero, columns), None, forms=H200.backend.forms(H200.model))


def stem_of(found: Prepared) -> Workload:
    (workload,) = (one.workload for one in found.subgraphs if "nn.conv2d" in one.ops)
    return workload


def pooled_of(found: Prepared) -> Workload:
    both = [one for one in found.alternatives().subgraphs if {"nn.conv2d", "nn.max_pool2d"} <= set(one.ops)]
    (workload,) = (one.workload for one in both)
    return workload


def values(workload: Workload, size: tuple[int, int]) -> list[np.ndarray]:
    """The model's constants with an image that has all bytes; its channel of zeros stays one."""
    rng = np.random.default_rng(7)
    made: dict[str, Any] = {
        "int8": lambda shape: rng.integers(-127, 128, shape), "int32": lambda shape: rng.integers(-3000, 3000, shape),
        "float32": lambda shape: rng.uniform(2e-4, 6e-4, shape), "uint8": lambda shape: rng.integers(0, 256, shape),
    }  # fmt: skip
    return [made[arg.dtype](arg.shape).astype(arg.dtype) for arg in workload.args[:-1]]


def wanted_of(inputs: list[np.ndarray], out: tuple[int, ...], pools: bool) -> np.ndarray:
    x, w, b, s = inputs
    pads = [(0, 0), (3, 3), (3, 3), (0, 0)] if x.shape[1] % 2 == 0 and x.shape[1] // 2 in (out[1], 2 * out[1]) else 0
    padded = np.pad(x.astype("int64"), pads) if pads else x.astype("int64")
    seen = np.lib.stride_tricks.sliding_window_view(padded, (7, 7), axis=(1, 2))[:, ::2, ::2]
    sums = np.einsum("nhwckl,oklc->nhwo", seen, w.astype("int64"), optimize=True) + b.reshape(-1)
    real = np.clip((sums.astype("float32") * s.reshape(-1)).astype("float32"), 0, 255)
    rounded = np.rint(real).astype("uint8")
    if not pools:
        return rounded
    around = np.pad(rounded, [(0, 0), (1, 1), (1, 1), (0, 0)])
    return np.lib.stride_tricks.sliding_window_view(around, (3, 3), axis=(1, 2))[:, ::2, ::2].max((-1, -2))


def computed(workload: Workload, candidate: Candidate, inputs: list[np.ndarray], folder: Path) -> np.ndarray:
    kernel = backends.schedule(workload, candidate, H200)
    assert isinstance(kernel, Kernel), kernel
    names = [str(param.name) for param in kernel.func.params]
    out = np.full([int(d) for d in workload.args[-1].shape], 77, numpy_dtype(workload.args[-1].dtype))
    arrays = dict(zip(names, [*inputs, out], strict=True))
    for i, packing in kernel.packings:
        arrays[names[i]] = np.ascontiguousarray(packing(inputs[i]))
    text = kernel.func.script()
    maps = {}
    encoded = re.findall(r'EncodeTiled", (map_\w), "(\w+)", \d, (\w+)\.data, ([\d, ]+)\)', text)
    for name, dtype, buffer, arguments in encoded:
        numbers = [int(number) for number in arguments.split(",")]
        maps[name] = hopper_on_cpu.tensor_map(arrays[buffer].reshape(-1).view(dtype), numbers)
    (blocks,) = re.findall(r"cta_id\(\[(\d+)\]\)", text)
    code = cuda_on_cpu.source(kernel.func, CUDA("H200"))
    threads = 128 * int(candidate["groups"])
    signature = re.findall(r"\w+(?=_ptr[,)])|map_\w(?=[,)])", next(re.finditer(r"main_kernel\([^;]*;", code))[0])
    given = {name: (maps | arrays)[name] for name in signature}
    cuda_on_cpu.launch(code, "main_kernel", given, int(blocks), threads, folder)
    return out


@pytest.mark.parametrize(("zero", "channels"), [(0, 3), (114, 3), (0, 4)])
def test_its_pixels_are_words_of_bytes(zero: int, channels: int) -> None:
    found = prepared((32, 32), channels, zero)
    image, weights, *_ = stem_of(found).args
    assert (image.dtype, image.shape[-1], weights.dtype, weights.shape[-1]) == ("uint8", 4, "int8", 4)
    copy = found.subgraphs[0]
    assert "permute_dims" in copy.ops
    assert copy.workload.args[-1].shape == image.shape


@pytest.mark.parametrize("channels", [2, 5])
def test_others_are_computed_in_halves(channels: int) -> None:
    assert stem_of(prepared((32, 32), channels)).args[0].dtype == "float16"


@needs_toolkit
@pytest.mark.parametrize(("zero", "columns"), [(0, 64), (114, 64), (114, 16)])
def test_a_stem_of_bytes(zero: int, columns: int, tmp_path: Path) -> None:
    """Rows of 38 words, zero points and all, begin where no copy of the hardware's may."""
    workload = stem_of(prepared((32, 32), zero=zero, columns=columns))
    inputs = values(workload, (32, 32))
    candidate = Candidate.make("cuda.stem", rows=8, groups=1, blocks_per_sm=1)
    got = computed(workload, candidate, inputs, tmp_path)
    np.testing.assert_array_equal(got, wanted_of(inputs, got.shape, pools=False))


@needs_toolkit
def test_a_pooled_stem_of_bytes(tmp_path: Path) -> None:
    workload = pooled_of(prepared((32, 32)))
    inputs = values(workload, (32, 32))
    candidate = Candidate.make("cuda.pooled_stem", rows=3, groups=2, blocks_per_sm=1)
    got = computed(workload, candidate, inputs, tmp_path)
    np.testing.assert_array_equal(got, wanted_of(inputs, got.shape, pools=True))


def test_candidates_build_for_hopper() -> None:
    found = prepared((224, 224), zero=114)
    for workload, family in ((stem_of(found), "cuda.stem"), (pooled_of(found), "cuda.pooled_stem")):
        (best, *_) = (c for c in backends.candidates(workload, H200, 20) if c.family == family)
        kernel = backends.schedule(workload, best, H200)
        assert isinstance(kernel, Kernel), kernel
        text = cuda_on_cpu.source(kernel.func, CUDA("H200"))
        assert "m64n64k32.s32.u8.s8" in text
        if family == "cuda.stem":
            assert re.search(r"\*\(uint4\*\)\(\w*quantize\w*_ptr \+ [^;]*\) = ", text)

"""A max pooling of a convolution is recognised, and what it pools is a workload of its own that computes the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper, numpy_helper

from subtune import backends
from subtune.backends import device_of
from subtune.backends.cuda.families import pooled_stem
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.numerics import Numerics
from subtune.core.workload import Workload
from subtune.patterns.contraction import Contraction
from subtune.patterns.pooled import Pooled, pooled
from subtune.patterns.recognise import recognise
from subtune.pipeline import Prepared, prepare
from tests.plain_tvm import compiled

H200 = device_of("h200", None, None, Numerics(), is_measured=False)


def prepared(
    size: int = 64, pool: int = 3, stride: int = 2, padding: int = 1, dtype: str = "float16", images: int = 2,
    channels: int = 3, on_gpu: bool = True,
) -> Prepared:  # fmt: skip
    """A network's beginning: a convolution of 7x7 with stride 2, ReLU, max pooling."""
    rng = np.random.default_rng(0)
    weights = {"w": (64, channels, 7, 7), "b": (64,)}
    constants = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(dtype) / 8, n) for n, shape in weights.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], strides=[2, 2], pads=[3] * 4),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["y"], kernel_shape=[pool] * 2, strides=[stride] * 2, pads=[padding] * 4),
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x = helper.make_tensor_value_info("x", kind, (images, channels, size, size))
    graph = helper.make_graph(nodes, "stem", [x], [helper.make_tensor_value_info("y", kind, None)], constants)
    model = onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
    forms = [H200.backend.forms(H200.model)] if on_gpu else []
    return prepare(model, None, Numerics(), None, None, *forms)


def stem(is_planar: bool = False, **options: object) -> Workload:
    """Convolution and pooling in one; of an image as the model gets it, or of one that was turned before."""
    found = prepared(**options).alternatives().subgraphs  # type: ignore[arg-type]
    both = [one for one in found if {"nn.conv2d", "nn.max_pool2d"} <= set(one.ops)]
    (whole,) = (one.workload for one in both if ("permute_dims" in one.ops) == is_planar)
    return whole


def test_it_is_an_alternative_where_something_can_make_it() -> None:
    assert stem().args[-1].shape == (2, 16, 16, 64)
    assert stem(is_planar=True).args[0].shape == (2, 3, 64, 64)
    names = [one.alternative.name for region in prepared().alternatives().regions for one in region.alternatives]
    assert names == ["as partitioned", "no copy", "one kernel", "one kernel, inputs moved"]
    others = prepared(on_gpu=False).alternatives().subgraphs
    assert not [one for one in others if {"nn.conv2d", "nn.max_pool2d"} <= set(one.ops)]


def test_sizes() -> None:
    found = recognise(stem())
    assert isinstance(found, Pooled)
    assert (found.size, found.out_size) == ((32, 32), (16, 16))
    assert (found.kernel, found.stride, found.before) == ((3, 3), (2, 2), (1, 1))
    assert isinstance(recognise(found.front), Contraction)
    assert found.front.args[-1].shape == (2, 32, 32, 64)
    plain = recognise(stem(pool=2, padding=0))
    assert isinstance(plain, Pooled)
    assert (plain.kernel, plain.before) == ((2, 2), (0, 0))


@pytest.mark.parametrize("is_planar", [False, True])
def test_what_is_pooled_is_the_front(is_planar: bool) -> None:
    workload = stem(is_planar, size=16, images=1)
    pattern = pooled(workload.func, 1)
    assert isinstance(pattern, Pooled)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(arg.shape).astype(arg.dtype) for arg in workload.args[:-1]]

    def run(one: Workload) -> np.ndarray:
        built = compiled(one.func)
        out = tvm.runtime.tensor(np.zeros(one.args[-1].shape, one.args[-1].dtype))
        built["main"](*map(tvm.runtime.tensor, arrays), out)
        return np.asarray(out.numpy())

    pixels, wanted = run(pattern.front), run(workload)
    padded = np.pad(pixels, [(0, 0), (1, 1), (1, 1), (0, 0)], constant_values=-np.inf)
    height, width = pattern.out_size
    found = np.max(
        [padded[:, y : y + 2 * height : 2, x : x + 2 * width : 2] for y in range(3) for x in range(3)], axis=0
    )
    np.testing.assert_array_equal(found[:, :height, :width], wanted)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"pool": 2, "stride": 3, "padding": 0}, "gaps"), ({"dtype": "float32"}, "not rounded")],
)
def test_others_are_refused(options: dict[str, object], reason: str) -> None:
    found = pooled(stem(**options).func, 1)
    assert isinstance(found, NotApplicable)
    assert reason in found.reason


@pytest.mark.parametrize("is_planar", [False, True])
def test_candidates_build_for_hopper(is_planar: bool) -> None:
    workload = stem(is_planar, size=224)
    found = [c for c in backends.candidates(workload, H200, 20) if c.family == pooled_stem.FAMILY.name]
    assert found
    kernel = backends.schedule(workload, found[0], H200)
    assert isinstance(kernel, Kernel), kernel
    source = str(H200.backend.lower(kernel.func.with_attr("global_symbol", "main"), H200).imports[0].inspect_source())
    assert "max_NaN_f16x2" in source
    assert "stmatrix" in source
    assert isinstance(backends.schedule(workload, DEFAULT, H200), Kernel)
    too_large = Candidate.make("cuda.pooled_stem", rows=8, groups=4, blocks_per_sm=1)
    assert too_large not in found


def test_planes_that_the_hardware_does_not_copy_are_turned_before() -> None:
    """Rows of 120 bytes."""
    found = [c.family for c in backends.candidates(stem(is_planar=True, size=60), H200, 20)]
    assert pooled_stem.FAMILY.name not in found
    assert pooled_stem.FAMILY.name in [c.family for c in backends.candidates(stem(size=60), H200, 20)]

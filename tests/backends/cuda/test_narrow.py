"""Bytes of inputs and outputs of 4 and 8 bits on a GPU: every number, in an emulation of the default schedule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from subtune import backends
from subtune.backends import as_device
from subtune.backends.cuda.device import CUDA
from subtune.core.candidate import DEFAULT
from subtune.core.kernel import Kernel
from subtune.pipeline import prepare
from tests.backends.cuda import cuda_on_cpu
from tests.frontends.onnx.test_boundary import bits, canonical, elem, graph_of, hard, info, of, same_numbers, specials

F = np.float32
H100 = CUDA("H100")
needs_emulation = pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")


def run(op: str, x: np.ndarray, given: int, made: int, folder: Path, **attrs: int) -> np.ndarray:
    """The one kernel of a model of one operator, at a scale of 2."""
    node = helper.make_node(op, ["x", "s"], ["y"], **attrs)
    model = graph_of([node], [info("x", given, x.size), info("s", 1)], [info("y", made, x.size)])
    (subgraph,) = prepare(model, forms=as_device(H100).backend.forms(H100)).subgraphs
    kernel = backends.schedule(subgraph.workload, DEFAULT, H100)
    assert isinstance(kernel, Kernel), kernel
    (found,) = cuda_on_cpu.run(kernel, [x, np.array(2, F)], subgraph.workload, H100, folder)
    return np.asarray(found)


@needs_emulation
@pytest.mark.parametrize("name", ["int4", "float8_e5m2"])
def test_bits_are_read(name: str, tmp_path: Path) -> None:
    found = run("DequantizeLinear", bits(), elem(name), TensorProto.FLOAT, tmp_path)
    np.testing.assert_array_equal(found, 2 * canonical(name).astype(F))


@needs_emulation
def test_numbers_are_rounded_and_their_bits_written(tmp_path: Path) -> None:
    name, x = "float8_e5m2", np.append(hard("float8_e5m2"), specials())
    found = run("QuantizeLinear", x, TensorProto.FLOAT, elem(name), tmp_path, output_dtype=elem(name), saturate=0)
    same_numbers(found.view(of(name)), (x / F(2)).astype(of(name)))

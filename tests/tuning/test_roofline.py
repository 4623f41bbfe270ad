"""Positions under the roofline: bytes and operations of known shapes, and what they take at least."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from subtune.backends import as_device
from subtune.backends.cpu.device import CPU
from subtune.backends.cuda.device import CUDA
from subtune.core.workload import Workload
from subtune.tuning.op_level import anchor_alone
from subtune.tuning.order import bound_s
from subtune.tuning.roofline import Placed, Position, narrowest_input, position
from tests.backends.cpu.test_bf16 import workload_of
from tests.backends.cpu.test_int8 import conv

VNNI = replace(CPU("icelake-server", threads=2), cycles_per_s=1e9, fma_per_cycle=2, dram_bytes_per_s=10e9)
SIZE, CIN, COUT = 12, 16, 32


def op_and_subgraph() -> tuple[Workload, Workload]:
    """A 3 x 3 convolution of bytes without padding's trouble: the op alone stores int32, the subgraph uint8."""
    subgraph = conv(SIZE, CIN, COUT, 1)
    op = anchor_alone(subgraph)
    assert isinstance(op, Workload)
    return op, subgraph


def test_the_cast_quarters_what_is_stored() -> None:
    op, subgraph = (position(unit, as_device(VNNI)) for unit in op_and_subgraph())
    pixels = SIZE * SIZE
    read = pixels * CIN + COUT * CIN
    assert op.nbytes == read + 4 * pixels * COUT
    of_channels, zero_point = 2 * 4 * COUT, 1  # a bias and a factor
    assert subgraph.nbytes == read + pixels * COUT + of_channels + zero_point
    assert op.flops_per_s == subgraph.flops_per_s == VNNI.peak_flops("uint8")
    assert op.bytes_per_s == VNNI.dram_bytes_per_s
    products = 2 * pixels * COUT * CIN
    assert op.flops == products
    assert products < subgraph.flops <= products + 10 * pixels * COUT, "the epilogue computes, too"
    assert op.intensity == pytest.approx(products / op.nbytes)
    assert subgraph.intensity > 2 * op.intensity


def test_the_cast_may_make_memory_bound_compute_bound() -> None:
    op, subgraph = (position(unit, as_device(VNNI)) for unit in op_and_subgraph())
    middle = op.flops_per_s / ((op.intensity * subgraph.intensity) ** 0.5)
    op, subgraph = (replace(one, bytes_per_s=middle) for one in (op, subgraph))
    assert (op.limit, subgraph.limit) == ("memory", "compute")
    assert op.bound_s == pytest.approx(op.nbytes / middle)
    assert subgraph.bound_s == pytest.approx(subgraph.flops / subgraph.flops_per_s)


def test_arithmetic_of_a_known_kernel() -> None:
    at = Position(flops=8_000, nbytes=1_000, flops_per_s=4e9, bytes_per_s=1e9)
    assert at.intensity == 8.0
    assert at.limit == "compute"
    assert at.bound_s == pytest.approx(2e-6)
    placed = Placed(at, 5e-6)
    assert placed.reached == pytest.approx(0.4)
    assert placed.flops_per_s == pytest.approx(1.6e9)
    assert Placed(at, 0.0).reached == 0.0


def test_bytes_are_multiplied_four_times_as_fast_where_an_instruction_does() -> None:
    lanes = VNNI.lanes()
    assert VNNI.peak_flops("float32") == 2 * lanes * 2 * 1e9 * 2
    assert VNNI.peak_flops("uint8") == VNNI.peak_flops("int8") == 4 * VNNI.peak_flops("float32")
    without = replace(VNNI, features=("avx2",))
    assert without.peak_flops("uint8") == without.peak_flops("float32")
    assert CPU("cortex-a76").peak_flops("int8") == 4 * CPU("cortex-a76").peak_flops()
    assert CUDA("H100").peak_flops("uint8") == CUDA("H100").peak_flops("int8") > CUDA("H100").peak_flops("float16")


def test_a_search_does_not_take_bytes_for_floats() -> None:
    """Of the two, no kernel would be left to hope for that multiplies bytes faster than floats."""
    _, subgraph = op_and_subgraph()
    fast, slow = (as_device(replace(VNNI, dram_bytes_per_s=1e15, features=of)) for of in (VNNI.features, ("avx2",)))
    assert bound_s(subgraph, slow) == pytest.approx(4 * bound_s(subgraph, fast))


def test_a_zero_point_says_nothing_of_what_is_multiplied() -> None:
    def body(_emit: Any, x: Any, w: Any) -> Any:
        scale, zero = relax.const(np.float32(0.1)), relax.const(3, "uint8")
        return op.quantize(op.matmul(x, w), scale, zero, axis=0, out_dtype="uint8")

    workload = workload_of(body, [((8, 16), "float32")], [relax.const(np.ones((16, 32), "float32"))])
    assert "uint8" in {arg.dtype for arg in workload.args if not arg.is_output}
    assert narrowest_input(workload) == "float32"

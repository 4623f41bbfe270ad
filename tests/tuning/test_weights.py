"""The bound on what packed weights add to a whole model."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
from onnx import helper, numpy_helper

from subtune.backends import as_device
from subtune.backends.cpu.device import CPU
from subtune.core.candidate import Candidate
from subtune.core.graph import Subgraph
from subtune.core.kernel import Kernel, Packing
from subtune.core.workload import Workload
from subtune.pipeline import Prepared, prepare
from subtune.tuning import weights
from subtune.tuning.winners import Winners, schedule_kernels

DEVICE = as_device(CPU("haswell", threads=2))


def large(times: int) -> Candidate:
    """Packs weights into so many times their bytes."""
    return Candidate.make("packs", times=times)


def packed(workload: Workload, candidate: Candidate) -> Kernel:
    packings = []
    for index, arg in enumerate(workload.args):
        if arg.is_constant and len(arg.shape) == 2:
            rows, columns = arg.shape
            packings.append((index, Packing(((rows * int(candidate["times"]),), (columns,)), (0, 1))))
    return Kernel(workload.func, tuple(packings))


@pytest.fixture
def prepared() -> Prepared:
    """Two products: the second has a quarter of the weights."""
    rng = np.random.default_rng(0)
    arrays = {"a": rng.standard_normal((64, 64)), "b": rng.standard_normal((64, 16))}
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Softmax", ["h"], ["s"]),
        helper.make_node("MatMul", ["s", "b"], ["y"]),
    ]
    info = [helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", [8, 64]), ("y", [8, 16]))]
    constants = [numpy_helper.from_array(array.astype("float32"), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], constants)
    return prepare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def bounded(prepared: Prepared, limit: float, lost: dict[int, float]) -> weights.Weights:
    """Winners want four times their weights; twice costs what `lost` says by columns, once a second."""
    products = [s for s in prepared.subgraphs if any(arg.is_constant for arg in s.workload.args)]
    assert len(products) == 2

    def slower(subgraph: Subgraph) -> list[tuple[Candidate, float, Kernel]]:
        seconds = {2: lost[subgraph.workload.args[-1].shape[-1]], 3: 0.5, 1: 1.0}
        return [(large(times), one, packed(subgraph.workload, large(times))) for times, one in seconds.items()]

    kernels = schedule_kernels(prepared.subgraphs, {}, DEVICE)
    kernels |= {s.name: packed(s.workload, large(4)) for s in products}
    winners = Winners({}, {s.workload.key: large(4) for s in products})
    chosen, changed, found = weights.within(prepared.mod, prepared.subgraphs, kernels, winners, slower, limit)
    for product in products:
        assert chosen[product.name] == packed(product.workload, changed.candidate(product.workload.key))
    assert found.packed_bytes == sum(
        4 * 64 * s.workload.args[-1].shape[-1] * int(changed.candidate(s.workload.key)["times"]) for s in products
    )
    return found


def test_within_the_limit_nothing_changes(prepared):
    found = bounded(prepared, 4.0, {64: 0.1, 16: 0.1})
    assert found.own_bytes == 4 * 64 * 80
    assert found.packed_bytes == found.wanted_bytes == 4 * found.own_bytes
    assert found.given_up == ()


def test_no_limit_is_none_as_json_has_no_infinity(prepared):
    found = bounded(prepared, float("inf"), {64: 0.1, 16: 0.1})
    assert (found.packed_bytes, found.limit_bytes, found.given_up) == (found.wanted_bytes, None, ())
    assert json.loads(json.dumps(asdict(found), allow_nan=False))["limit_bytes"] is None


def test_what_loses_least_for_a_byte_gives_way_first(prepared):
    found = bounded(prepared, 3.7, {64: 0.1, 16: 0.001})
    assert [(one.taken, one.lost_s) for one in found.given_up] == [(str(large(2)), pytest.approx(0.001))]
    found = bounded(prepared, 3.7, {64: 0.001, 16: 0.1})
    assert [(one.saved_bytes, one.lost_s) for one in found.given_up] == [(2 * 4 * 64 * 64, pytest.approx(0.001))]
    assert "1 subgraphs take others, for 1000 us" in str(found)


def test_below_what_any_kernel_wants_the_smallest_ship(prepared):
    found = bounded(prepared, 0.5, {64: 0.1, 16: 0.1})
    assert found.packed_bytes == found.own_bytes
    assert {one.taken for one in found.given_up} == {str(large(1))}
    assert all(one.lost_s == pytest.approx(1.0) for one in found.given_up)

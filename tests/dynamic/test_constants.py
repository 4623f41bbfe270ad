"""Constants that are larger for larger instances: read in their place where they lie together, copied where not."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from subtune import frontends
from subtune.backends import as_device
from subtune.backends.cpu.device import CPU
from subtune.core.dims import Dim, parse
from subtune.core.domain import Domain, Symbol
from subtune.core.errors import ModelError
from subtune.core.kernel import Kernel
from subtune.core.numerics import PLAIN
from subtune.dynamic.constants import PREFIX, corner, lies_together, with_corners
from subtune.dynamic.model import _made, corner_workloads, dynamic_model
from subtune.dynamic.windows import Windows
from subtune.dynamic.workload import DynamicWorkload, dynamic_workload
from subtune.passes.exprs import array_of
from subtune.passes.extract import extract
from subtune.passes.outline import outline
from subtune.passes.partition import partition
from subtune.pipeline import prepare_imported
from tests.dynamic import models
from tests.dynamic.flat_kernels import FlatKernel

DEVICE = as_device(CPU(threads=1))
BIAS = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)
"""No mask of a causal attention, which is computed instead."""
TABLE = np.arange(128, dtype=np.float32).reshape(32, 4)


@pytest.mark.parametrize(
    ("whole", "dims", "is_together"),
    [
        ((20, 32), ("seq", "32"), True),
        ((1, 20, 32), ("1", "seq", "32"), True),
        ((1, 1, 20), ("1", "1", "seq"), True),
        ((20,), ("seq",), True),
        ((20, 32), ("seq + 1", "32"), True),
        ((20, 20), ("seq", "seq"), False),
        ((1, 1, 20, 20), ("1", "1", "seq", "seq"), False),
        ((32, 20), ("32", "seq"), False),
        ((20, 20, 32), ("batch", "seq", "32"), False),
        ((1, 1), ("1", "1"), True),
        ((), (), True),
    ],
)
def test_a_prefix_lies_together(whole, dims, is_together):
    assert lies_together(whole, [parse(dim) for dim in dims]) == is_together


@pytest.mark.parametrize("extents", [(1, 1), (2, 7), (5, 3), (5, 7)])
def test_a_corner_is_copied(extents):
    workload = corner((5, 7), extents, "float32")
    flat = DEVICE.backend.comparable(workload.func, DEVICE)
    whole = np.arange(35, dtype=np.float32).reshape(5, 7)
    got = FlatKernel(Kernel(flat), DEVICE)([], [whole], extents)
    np.testing.assert_array_equal(got, whole[: extents[0], : extents[1]])


def outlined(seq: int) -> tvm.IRModule:
    """softmax of x[2, seq, seq] plus a bias, times a table of seq rows: an importer's constants at one length."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, seq, seq), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            masked = bb.emit(op.add(x, relax.const(BIAS[:seq, :seq])))
            product = bb.emit(op.matmul(bb.emit(op.nn.softmax(masked)), relax.const(TABLE[:seq])))
            result = bb.emit_output(product)
        bb.emit_func_output(result)
    mod = bb.get()
    return outline(mod, partition(mod))


def dims_of_all(lengths: tuple[int, ...] = (9, 11, 13, 17)) -> dict[str, tuple[tuple[Dim, ...], ...]]:
    """Of the arguments of the module's PrimFuncs, by their names."""
    points = [{"seq": seq} for seq in lengths]
    of_points = [{one.name: one.workload for one in extract(outlined(seq))} for seq in lengths]
    found = {name: dynamic_workload([one[name] for one in of_points], points) for name in of_points[0]}
    return {name: one.shapes for name, one in found.items() if isinstance(one, DynamicWorkload)}


def test_a_bias_is_copied_and_a_table_is_not():
    mod, before = outlined(9), outlined(9)
    made, corners, computed = with_corners(mod, dims_of_all(), {})
    assert not computed
    ((name, (whole, dims, dtype)),) = corners.items()
    assert name.startswith(PREFIX)
    assert ([str(dim) for dim in whole], [str(dim) for dim in dims], dtype) == (["9", "9"], ["seq", "seq"], "float32")
    tvm.ir.assert_structural_equal(mod, before)
    values = [binding.value for block in made["main"].body.blocks for binding in block.bindings]
    calls = [value for value in values if isinstance(value, tvm.ir.Call) and value.op.name == "relax.call_tir"]
    assert calls[0].args[0].name_hint == name, "the copy comes first"
    arguments = [arg for call in calls[1:] for arg in call.args[1].fields]
    constants = [array_of(arg) for arg in arguments if not isinstance(arg, relax.Var)]
    assert [array.shape for array in constants if array is not None] == [(9, 4)], "the table is read where it is"
    (workload,) = corner_workloads(corners, Domain((Symbol.uniform("seq", tuple(range(1, 10))),))).values()
    assert [str(dim) for dim in workload.extents] == ["seq"]
    assert [arg.shape for arg in workload.at((4,)).args] == [(9, 9), (4, 4)]


def test_a_copied_corner_is_no_constant_of_its_product():
    """Nobody may pack it, nor copy it before the kernel in front has ended: rows lie together, columns are copied."""
    inputs = frontends.symbolic_inputs(models.beginnings(), None, None)

    def prepare(point, lengths):
        imported = frontends.load(models.beginnings(), frontends.instance(inputs, point, None), None)
        return prepare_imported(imported, PLAIN, None, DEVICE.backend.forms(DEVICE.model), lengths)

    found = dynamic_model(Domain((Symbol.uniform("n", tuple(range(1, 20))),)), prepare)
    constants = {arg.shape for one in found.workloads.values() for arg in one.at((7,)).args if arg.is_constant}
    assert constants == {(7, 40)}


def test_without_such_constants_nothing_changes():
    mod = outlined(9)
    made, corners, _ = with_corners(mod, {}, {})
    assert made is mod
    assert not corners


def test_a_constant_of_another_rank_is_refused_in_a_sentence():
    """A mask of ones that is spread over the rows of scores at some shapes, and not at others."""
    whole, others = np.ones((1, 4, 1), np.float32), [np.ones((3, 1), np.float32), np.ones((2, 1), np.float32)]
    points = [{"n": 3}, {"n": 2}]
    domain = Domain((Symbol.uniform("n", (1, 2, 3, 4)),))
    windows = Windows(lambda point: [], points, domain, (), {})
    with pytest.raises(ModelError, match=r"of shape \[1, 4, 1\] has other values at n=3"):
        _made([whole], [[one] for one in others], points, domain, (), {}, windows)

"""Masks that repeat along axes, as exporters write them: computed once, read in place, whatever their size."""

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from subtune.passes.repeated_constants import repeated_constants

SMALL, LARGE = (2, 3, 7, 7), (16, 3, 65, 65)
"""Below and above what constant folding writes out."""


def chosen(x, is_shown):
    """`x` plus zeros, where `is_shown(places)` says so of each row, and the lowest number elsewhere."""
    rows = x.ty.shape[2]
    places = op.reshape(op.arange(0, int(rows), 1, "int64"), (1, 1, int(rows), 1))
    mask = op.broadcast_to(is_shown(places), [int(dim) for dim in x.ty.shape])
    return op.add(x, op.where(mask, relax.const(0.0), relax.const(-1e9)))


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=["small", "large"])
def test_a_mask_that_hides_nothing_is_gone(shape, module, ops, run):
    """As the exporter writes it where a model is given no mask: places that are no less than none."""
    mod = module(
        [(shape, "float32")],
        lambda x: op.nn.softmax(chosen(x, lambda places: op.greater_equal(places, relax.const(0, "int64")))),
    )
    found = repeated_constants(mod)
    assert ops(found) == {"nn.softmax": 1}
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x[0, 0, 0] = -0.0
    np.testing.assert_array_equal(run(found, [x]), run(mod, [x]))


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=["small", "large"])
def test_a_mask_of_rows_is_one_number_a_row(shape, module, ops, run):
    mod = module(
        [(shape, "float32")],
        lambda x: op.nn.softmax(chosen(x, lambda places: op.less(places, relax.const(5, "int64"))), 2),
    )
    found = repeated_constants(mod)
    assert ops(found) == {"add": 1, "nn.softmax": 1}
    added = found["main"].body.blocks[0].bindings[0].value.args[1]
    assert tuple(added.ty.shape) == (1, 1, shape[2], 1)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    np.testing.assert_array_equal(run(found, [x]), run(mod, [x]))


def test_ones_less_a_mask_of_ones(module, ops, run):
    """As exporters write it that make the mask itself: `(1 - ones) * lowest`."""
    shape = (16, 1, 65, 65)

    def masked(x):
        ones = op.full(shape, relax.const(1.0), "float32")
        return op.nn.softmax(op.add(op.multiply(op.subtract(relax.const(1.0), ones), relax.const(-3e38)), x))

    mod = module([(shape, "float32")], masked)
    assert ops(repeated_constants(mod)) == {"nn.softmax": 1}
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    np.testing.assert_array_equal(run(repeated_constants(mod), [x]), run(mod, [x]))


def test_what_gives_the_shape_stays(module, ops):
    """A sum with a constant of more rows than `x` has, and a broadcast that is itself the result."""
    wide = relax.const(np.arange(4, dtype=np.float32))
    mod = module(
        [((1, 4), "float32")],
        lambda x: (op.add(x, op.broadcast_to(wide, (5, 4))), op.broadcast_to(wide, (7, 4))),
    )
    assert ops(repeated_constants(mod)) == {"broadcast_to": 2, "add": 1}


def test_zeros_are_added_elsewhere(module, ops):
    """-0 + 0 is 0, of which the sign can be seen."""
    mod = module([((3, 4), "float32")], lambda x: op.divide(relax.const(1.0), op.add(x, relax.const(0.0))))
    assert ops(repeated_constants(mod)) == {"divide": 1, "add": 1}


def test_a_condition_that_varies_chooses(module, ops):
    condition = relax.const(np.array([True, False, True]))
    mod = module([((2, 3), "float32")], lambda x: op.where(condition, x, relax.const(0.0)))
    assert ops(repeated_constants(mod)) == {"where": 1}

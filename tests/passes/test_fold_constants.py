import itertools

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from subtune.passes.exprs import array_of, make_const, transposed
from subtune.passes.fold_constants import MAX_GROWTH_BYTES, fold_constants
from subtune.passes.fold_table import TABLE

F = ((3, 4), "float32")
I = ((3, 4), "int32")  # noqa: E741

EXACT = {
    "movement": (
        [F],
        lambda x: (
            op.reshape(x, (2, 6)),
            op.permute_dims(x),
            op.permute_dims(op.reshape(x, (3, 2, 2)), [1, 0, 2]),
            op.expand_dims(x, [0, 2]),
            op.squeeze(op.reshape(x, (3, 1, 4, 1)), [1]),
            op.broadcast_to(x, (2, 3, 4)),
            op.concat([x, x], 1),
            op.stack([x, x], 1),
            op.split(x, 2, 1)[1],
            op.split(x, [1, 2], 0)[1],
            op.strided_slice(x, [1, 0], [1, 0], [4, 3], [2, 1]),
            op.strided_slice(x, [1], [-3], [-1]),
            op.take(x, relax.const([2, 0], "int64"), 1),
            op.take(x, relax.const(1, "int64"), 0),
            op.tile(x, [2, 1]),
            op.flatten(x),
        ),
    ),
    "arithmetic": (
        [F, F],
        lambda x, y: (
            op.add(x, y),
            op.subtract(x, y),
            op.multiply(x, y),
            op.divide(x, y),
            op.maximum(x, y),
            op.minimum(x, y),
            op.where(op.less(x, y), x, y),
            op.astype(x, "float64"),
            op.astype(x, "int32"),
            op.astype(op.greater(x, y), "int64"),
            op.astype(op.equal(x, x), "float32"),
            op.abs(x),
            op.negative(x),
            op.square(x),
            op.floor(x),
            op.ceil(x),
            op.round(op.multiply(x, relax.const(0.5))),
            op.sqrt(op.abs(x)),
            op.clip(x, -1, 1),
            op.nn.relu(x),
            op.max(x, [0]),
            op.min(x, [1], keepdims=True),
            op.zeros_like(x),
            op.full((2,), relax.const(3.5), "float32"),
        ),
    ),
    "integers": (
        [I],
        lambda x: (
            op.divide(op.subtract(x, relax.const(5, "int32")), relax.const(2, "int32")),
            op.floor_divide(op.subtract(x, relax.const(5, "int32")), relax.const(2, "int32")),
            op.floor_mod(op.subtract(x, relax.const(5, "int32")), relax.const(3, "int32")),
            op.mod(op.subtract(x, relax.const(5, "int32")), relax.const(3, "int32")),
            op.sum(x, [1]),
            op.prod(x, [0]),
            op.astype(x, "float32"),
            op.astype(x, "bool"),
            op.logical_not(op.astype(x, "bool")),
            op.shape_to_tensor(op.shape_of(x)),
        ),
    ),
}
CLOSE = (
    [F, F],
    lambda x, y: (
        op.exp(x),
        op.log(op.abs(x)),
        op.tanh(x),
        op.sigmoid(x),
        op.erf(x),
        op.rsqrt(op.abs(x)),
        op.sin(x),
        op.cos(x),
        op.power(op.abs(x), y),
        op.mean(x, [0]),
        op.sum(x, [1]),
        op.matmul(x, op.permute_dims(y)),
    ),
)


def bound(mod, arrays):
    return relax.transform.BindParams("main", {f"x{i}": tvm.runtime.tensor(a) for i, a in enumerate(arrays)})(mod)


def folded_values(mod, arrays):
    folded = fold_constants(bound(mod, arrays))
    relax.analysis.well_formed(folded)
    bindings = folded["main"].body.blocks[0].bindings
    assert len(bindings) == 1, "something was not folded"
    return [array_of(part) for part in bindings[0].value.fields]


def inputs_for(specs):
    rng = np.random.default_rng(3)
    return [
        rng.integers(0, 9, shape).astype(dtype) if "int" in dtype else rng.standard_normal(shape).astype(dtype)
        for shape, dtype in specs
    ]


@pytest.mark.parametrize("name", EXACT)
def test_folds_bit_for_bit_as_compiled(name, module, run):
    specs, body = EXACT[name]
    mod, arrays = module(specs, body), inputs_for(specs)
    for want, got in zip(run(mod, arrays), folded_values(mod, arrays), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def test_folds_transcendental_functions_and_sums_to_rounding(module, run):
    mod, arrays = module(*CLOSE), inputs_for(CLOSE[0])
    for want, got in zip(run(mod, arrays), folded_values(mod, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_leaves_what_numpy_and_relax_might_disagree_on(module, ops):
    mod = module(
        [F],
        lambda x: (
            op.astype(relax.const(np.array([np.inf, 1e20], "float32")), "int32"),
            op.divide(relax.const(1, "int32"), relax.const(0, "int32")),
            op.take(relax.const(np.ones(3, "float32")), relax.const([7], "int64"), 0),
            op.sum(relax.const(np.ones(3, "float16"), "float16")),
        ),
    )
    assert ops(fold_constants(mod)) == {"astype": 1, "divide": 1, "take": 1, "sum": 1}


def test_does_not_touch_what_varies_or_is_unknown(module):
    mod = module([F], lambda x: op.add(x, op.cumsum(relax.const(np.ones((3, 4), "float32")), 0)))
    assert fold_constants(mod).same_as(mod)


def test_does_not_make_the_module_much_larger(module, ops):
    wide = MAX_GROWTH_BYTES // 4 + 2
    grows = module([F], lambda x: op.broadcast_to(relax.const(1.0), (wide,)))
    assert ops(fold_constants(grows)) == {"broadcast_to": 1}
    fits = module([F], lambda x: op.broadcast_to(relax.const(1.0), (wide - 2,)))
    assert ops(fold_constants(fits)) == {}


def test_masks_of_ranges_are_computed(module, ops):
    """Of a whole tensor of one number, too, which is not made for that."""

    def mask(x):
        rows, columns = op.arange(0, 300, 1, "int64"), op.reshape(op.arange(0, 300, 1, "int64"), (300, 1))
        hidden = op.full((300, 300), relax.const(-1e9), "float32")
        return op.add(x, op.where(op.less_equal(rows, columns), relax.const(0.0), hidden))

    folded = fold_constants(module([((300, 300), "float32")], mask))
    assert ops(folded) == {"add": 1}
    (call,) = (binding.value for binding in folded["main"].body.blocks[0].bindings)
    np.testing.assert_array_equal(array_of(call.args[1]), np.triu(np.full((300, 300), -1e9, "float32"), 1))


def test_keeps_the_argument_and_the_width_of_constants(module):
    mod = module([F], lambda x: op.add(make_const(np.array([2**40], "int64")), make_const(np.array([1], "int64"))))
    (value,) = (b.value for b in fold_constants(mod)["main"].body.blocks[0].bindings)
    assert array_of(value).tolist() == [2**40 + 1]
    assert len(mod["main"].body.blocks[0].bindings) == 1


def test_every_table_entry_names_an_operator():
    for name in TABLE:
        assert tvm.ir.Op.get(name).name == name


@pytest.mark.parametrize("shape", [(3, 130), (2, 3, 4, 5), (1, 7), (4, 0, 3)])
def test_transposed_is_numpy_s(shape):
    array = np.arange(np.prod(shape)).reshape(shape)
    for axes in itertools.permutations(range(len(shape))):
        result = transposed(array, axes)
        np.testing.assert_array_equal(result, array.transpose(axes))
        assert result.flags.c_contiguous

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from subtune.passes.exprs import array_of
from subtune.passes.fold_norms import fold_norms
from subtune.passes.outline import outline
from subtune.passes.partition import partition


def layer_norm(x, const, k, trivial=False):
    scale, shift = (relax.const(np.full(k, v, "float32")) for v in (1, 0)) if trivial else (const(k), const(k))
    return op.nn.layer_norm(x, scale, shift, axes=[-1], epsilon=1e-3)


def norm_constants(mod):
    """Constants of the module's norms."""
    values = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    norms = [v for v in values if getattr(v, "op", None) is not None and "norm" in str(getattr(v.op, "name", ""))]
    return [array_of(arg) for norm in norms for arg in norm.args[1:]]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("viewed", [False, True])
def test_layer_norm_goes_into_the_product_behind_it(biased, viewed, module, ops, agree, const):
    def body(x):
        y = layer_norm(x, const, 8)
        y = op.reshape(y, (6, 8)) if viewed else y
        y = op.matmul(y, const(8, 5))
        return op.add(y, const(5)) if biased else y

    before = module([((2, 3, 8), "float32")], body)
    after = fold_norms(before)
    scale, shift = norm_constants(after)
    assert (scale == 1).all()
    assert (shift == 0).all()
    assert ops(after)["add"] == 1  # a bias and the folded shift are one
    agree(before, after, 1e-5)
    assert fold_norms(after) is after


def test_rms_norm_goes_into_the_product_behind_it(module, ops, agree, const):
    before = module([((6, 8), "float32")], lambda x: op.matmul(op.nn.rms_norm(x, const(8), axes=[-1]), const(8, 5)))
    after = fold_norms(before)
    (scale,) = norm_constants(after)
    assert (scale == 1).all()
    assert ops(after) == {"nn.rms_norm": 1, "matmul": 1}
    agree(before, after, 1e-5)


def read_twice(x, const):
    y = layer_norm(x, const, 8)
    return op.add(op.matmul(y, const(8, 8)), y)


def over_the_first_axis(x, const):
    y = op.nn.layer_norm(x, const(6), const(6), axes=[0])
    return op.matmul(y, const(8, 5))


def split_by_a_view(x, const):
    y = op.reshape(layer_norm(x, const, 8), (12, 4))
    return op.matmul(y, const(4, 5))


def batched_weights(x, const):
    return op.matmul(layer_norm(x, const, 8), const(2, 8, 5))


def on_the_right(x, const):
    return op.matmul(const(5, 6), layer_norm(x, const, 8))


@pytest.mark.parametrize("body", [read_twice, over_the_first_axis, split_by_a_view, batched_weights, on_the_right])
def test_other_norms_are_left_alone(body, module, const):
    before = module([((6, 8), "float32")], lambda x: body(x, const))
    assert fold_norms(before) is before


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("trivial", [False, True])
def test_equal_scales_and_shifts_are_no_parameters(rms, trivial, module, agree, const):
    """A norm with numbers in place of vectors reads its input only, and computes the same."""

    def body(x):
        if rms:
            return op.nn.rms_norm(x, relax.const(np.full(8, 1.5, "float32")) if trivial else const(8), axes=[-1])
        return layer_norm(x, const, 8, trivial)

    before = module([((2, 3, 8), "float32")], body)
    after = outline(before, partition(before))
    (func,) = [f for f in after.functions.values() if not isinstance(f, relax.Function)]
    assert len(func.params) == (2 if trivial else 3 if rms else 4)
    agree(before, after, 1e-5)


def test_a_norm_over_all_axes_has_numbers_too(module, agree):
    ones, zeros = (relax.const(np.full((3, 8), v, "float32")) for v in (2, 0.5))
    before = module([((3, 8), "float32")], lambda x: op.nn.layer_norm(x, ones, zeros, axes=[0, 1]))
    after = outline(before, partition(before))
    (func,) = [f for f in after.functions.values() if not isinstance(f, relax.Function)]
    assert len(func.params) == 2
    agree(before, after, 1e-5)

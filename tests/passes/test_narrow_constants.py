import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from subtune.passes.narrow_constants import narrow_constants


def halves(*shape, dtype="float16"):
    values = np.random.default_rng(0).standard_normal(shape)
    return relax.const(values.astype("float16" if dtype == "float16" else "float32").astype("float32"))


def layer_norm(x, scale, shift):
    return op.nn.layer_norm(x, scale, shift, axes=[-1])


@pytest.mark.parametrize("viewed", [False, True])
def test_scale_and_shift_that_were_halves_are_halves_again(viewed, module, ops, agree):
    def body(x):
        y = op.astype(x, "float32")
        y = op.reshape(y, (2, 3, 8)) if viewed else y
        return layer_norm(y, halves(8), halves(8))

    before = module([((6, 8), "float16")], body)
    after = narrow_constants(before)
    assert ops(after)["astype"] == 3
    agree(before, after, 0)


def test_one_that_a_half_cannot_hold_stays(module, ops, agree, const):
    before = module([((6, 8), "float16")], lambda x: layer_norm(op.astype(x, "float32"), const(8), halves(8)))
    after = narrow_constants(before)
    assert ops(after)["astype"] == 2
    agree(before, after, 0)


def test_rms_norm_has_a_scale_only(module, ops, agree):
    before = module([((6, 8), "float16")], lambda x: op.nn.rms_norm(op.astype(x, "float32"), halves(8), axes=[-1]))
    after = narrow_constants(before)
    assert ops(after)["astype"] == 2
    agree(before, after, 0)


def test_norms_of_float32_and_equal_numbers_are_left_alone(module):
    ones, zeros = (relax.const(np.full(8, value, "float32")) for value in (1, 0))
    for dtype, params in (("float32", (halves(8), halves(8))), ("float16", (ones, zeros))):
        before = module([((6, 8), dtype)], lambda x, p=params: layer_norm(op.astype(x, "float32"), *p))
        assert narrow_constants(before) is before

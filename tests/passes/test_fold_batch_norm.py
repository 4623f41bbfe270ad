import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from subtune.passes.fold_batch_norm import fold_scales

X = ((1, 4, 6, 6), "float32")


def batch_norm(x, const, channels, axis=1, training=False):
    params = [const(channels), const(channels), const(channels), const(channels, positive=True)]
    return op.nn.batch_norm(x, *params, axis=axis, epsilon=1e-3, training=training)[0]


def conv(x, w, **kwargs):
    return op.nn.conv2d(x, w, padding=1, **kwargs)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("shape", "groups"),
    [((6, 4, 3, 3), 1), ((8, 2, 3, 3), 2), ((4, 1, 3, 3), 4)],
    ids=["dense", "grouped", "depthwise"],
)
def test_batch_norm_goes_into_the_convolution(shape, groups, biased, module, ops, agree, const):
    def body(x):
        y = conv(x, const(*shape), groups=groups)
        y = op.add(y, const(1, shape[0], 1, 1)) if biased else y
        return op.nn.relu(batch_norm(y, const, shape[0]))

    before = module([X], body)
    after = fold_scales(before)
    assert ops(after) == {"nn.conv2d": 1, "add": 1, "nn.relu": 1}
    agree(before, after, 1e-5)


@pytest.mark.parametrize("groups", [1, 2])
def test_batch_norm_goes_into_the_transposed_convolution(groups, module, ops, agree, const):
    def body(x):
        y = op.nn.conv2d_transpose(x, const(4, 3, 2, 2), strides=2, groups=groups)
        return batch_norm(y, const, 3 * groups)

    before = module([X], body)
    after = fold_scales(before)
    assert ops(after) == {"nn.conv2d_transpose": 1, "add": 1}
    agree(before, after, 1e-5)


def test_batch_norm_goes_into_the_dense_layer(module, ops, agree, const):
    before = module(
        [((3, 5), "float32")],
        lambda x: batch_norm(op.add(op.matmul(x, const(5, 7)), const(7)), const, 7),
    )
    after = fold_scales(before)
    assert ops(after) == {"matmul": 1, "add": 1}
    agree(before, after, 1e-5)


def test_batch_norm_elsewhere_is_one_multiply_and_add(module, ops, agree, const):
    before = module([X], lambda x: batch_norm(op.nn.relu(x), const, 4))
    after = fold_scales(before)
    assert ops(after) == {"nn.relu": 1, "multiply": 1, "add": 1}
    agree(before, after, 1e-5)


def test_a_convolution_read_twice_keeps_its_weights(ops, agree, const):
    x, bb = relax.Var("x", relax.TensorType(*X)), relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit(conv(x, const(4, 4, 3, 3)))
            out = bb.emit_output(op.add(batch_norm(y, const, 4), op.exp(y)))
        bb.emit_func_output(out)
    before = bb.finalize()
    after = fold_scales(before)
    assert ops(after) == {"nn.conv2d": 1, "multiply": 1, "add": 2, "exp": 1}
    agree(before, after, 1e-5)


def test_training_batch_norm_stays(module, const):
    before = module([X], lambda x: batch_norm(x, const, 4, training=True))
    assert fold_scales(before).same_as(before)


def test_varying_weights_stay(module, ops, agree, const):
    before = module([X, ((4, 4, 3, 3), "float32")], lambda x, w: batch_norm(conv(x, w), const, 4))
    after = fold_scales(before)
    assert ops(after) == {"nn.conv2d": 1, "multiply": 1, "add": 1}
    agree(before, after, 1e-5)


def test_scales_and_shifts_after_a_convolution_merge(module, ops, agree, const):
    def body(x):
        y = op.multiply(conv(x, const(6, 4, 3, 3)), const(6, 1, 1))
        y = op.add(op.add(y, const(1, 6, 1, 1)), const(6, 1, 1))
        return op.divide(y, relax.const(4.0))

    before = module([X], body)
    after = fold_scales(before)
    assert ops(after) == {"nn.conv2d": 1, "add": 1}
    agree(before, after, 1e-5)


def test_a_scale_per_pixel_stays(module, ops, const):
    before = module([X], lambda x: op.multiply(conv(x, const(6, 4, 3, 3)), const(1, 1, 6, 6)))
    assert fold_scales(before).same_as(before)


def test_the_scale_is_rounded_once(module, const):
    weight = np.full((1, 4, 1, 1), 1.0 + 2.0**-23, "float32")
    gamma = np.array([1.0 + 2.0**-23], "float32")
    zero, one = np.zeros(1, "float32"), np.ones(1, "float32")
    consts = [relax.const(a) for a in (gamma, zero, zero, one)]
    before = module(
        [X],
        lambda x: op.nn.batch_norm(op.nn.conv2d(x, relax.const(weight)), *consts, axis=1, epsilon=0.0, training=False)[
            0
        ],
    )
    folded = fold_scales(before)["main"].body.blocks[0].bindings[0].value.args[1].value.numpy()
    np.testing.assert_array_equal(folded, (weight.astype("float64") * gamma.astype("float64")).astype("float32"))

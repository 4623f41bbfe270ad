import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from subtune.passes.normalize_cleanup import clean_up, holds_every
from subtune.passes.rewriter import rewrite

X = ((2, 3, 4), "float32")

GONE = {
    "dropout": lambda x: op.nn.relu(op.nn.dropout(x, 0.5)[0]),
    "cast to its type": lambda x: op.nn.relu(op.astype(x, "float32")),
    "cast there and back": lambda x: op.nn.relu(op.astype(op.astype(x, "float64"), "float32")),
    "reshape to its shape": lambda x: op.nn.relu(op.reshape(x, (2, 3, 4))),
    "reshapes there and back": lambda x: op.nn.relu(op.reshape(op.reshape(x, (6, 4)), (2, 3, 4))),
    "expand and squeeze": lambda x: op.nn.relu(op.squeeze(op.expand_dims(x, [1]), [1])),
    "identity permutation": lambda x: op.nn.relu(op.permute_dims(x, [0, 1, 2])),
    "permutations that cancel": lambda x: op.nn.relu(op.permute_dims(op.permute_dims(x, [2, 0, 1]), [1, 2, 0])),
    "broadcast to its shape": lambda x: op.nn.relu(op.broadcast_to(x, (2, 3, 4))),
    "concat of one": lambda x: op.nn.relu(op.concat([x], 0)),
    "times one": lambda x: op.nn.relu(op.multiply(relax.const(1.0), x)),
    "pad by nothing": lambda x: op.nn.relu(op.nn.pad(x, (0, 0, 0, 0, 0, 0), pad_value=1.0)),
    "minus zero": lambda x: op.nn.relu(op.subtract(x, relax.const(0.0))),
    "maximum of single elements": lambda x: op.nn.relu(op.nn.max_pool1d(x, (1,))),
    "mean of single elements": lambda x: op.nn.relu(op.nn.avg_pool1d(x, (1,))),
    "as many means as elements": lambda x: op.nn.relu(op.nn.adaptive_avg_pool1d(x, (4,))),
    "tuple projection": lambda x: op.nn.relu(relax.TupleGetItem(relax.Tuple([x, x]), 1)),
}
STAYS = {
    "cast that rounds": lambda x: op.astype(op.astype(x, "float16"), "float32"),
    "one that widens": lambda x: op.multiply(x, relax.const(np.ones((1, 1, 1, 1), "float32"))),
    "one minus": lambda x: op.subtract(relax.const(0.0), x),
    "one over": lambda x: op.divide(relax.const(1.0), x),
    "plus zero": lambda x: op.add(x, relax.const(0.0)),
    "maximum of three elements": lambda x: op.nn.max_pool1d(x, (3,), padding=(1, 1)),
    "mean of three elements": lambda x: op.nn.avg_pool1d(x, (3,), padding=(1, 1)),
    "real permutation": lambda x: op.permute_dims(x, [0, 2, 1]),
}


@pytest.mark.parametrize("name", GONE)
def test_removes_what_does_nothing(name, module, ops, agree):
    before = module([X], GONE[name])
    after = clean_up(before)
    assert ops(after) == {"nn.relu": 1}
    if name != "dropout":  # TVM does not legalise it
        agree(before, after, 0.0)


@pytest.mark.parametrize("name", STAYS)
def test_keeps_what_does_something(name, module):
    before = module([X], STAYS[name])
    assert clean_up(before).same_as(before)


def test_merges_reshapes_and_permutations(module, ops, agree):
    before = module(
        [X],
        lambda x: (
            op.expand_dims(op.reshape(x, (6, 4)), [0]),
            op.permute_dims(op.permute_dims(x, [1, 0, 2]), [0, 2, 1]),
        ),
    )
    after = clean_up(before)
    assert ops(after) == {"reshape": 1, "permute_dims": 1}
    agree(before, after, 0.0)


def test_an_output_that_is_an_input_stays_an_output(module, agree):
    before = module([X], lambda x: op.reshape(x, (2, 3, 4)))
    after = clean_up(before)
    agree(before, after, 0.0)


def test_equal_calls_are_computed_once(module, ops, agree):
    before = module([X], lambda x: op.add(op.exp(op.reshape(x, (24,))), op.exp(op.reshape(x, (24,)))))
    after = rewrite(before, {})
    assert ops(after) == {"reshape": 1, "exp": 1, "add": 1}
    agree(before, after, 0.0)


def test_dead_code_goes_and_the_argument_stays():
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2,), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            bb.emit(op.exp(x))
            out = bb.emit_output(op.nn.relu(x))
        bb.emit_func_output(out)
    before = bb.finalize()
    assert len(clean_up(before)["main"].body.blocks[0].bindings) == 1
    assert len(before["main"].body.blocks[0].bindings) == 2


@pytest.mark.parametrize(
    ("wide", "narrow", "holds"),
    [
        ("float32", "float16", True),
        ("float32", "bfloat16", True),
        ("bfloat16", "float16", False),
        ("float16", "bfloat16", False),
        ("float32", "int16", True),
        ("float32", "int32", False),
        ("float64", "int32", True),
        ("float16", "int8", False),
        ("int32", "uint16", True),
        ("int32", "uint32", False),
        ("uint64", "int8", False),
        ("int64", "int32", True),
        ("int8", "float32", False),
        ("float32", "bool", True),
        ("bool", "int8", False),
    ],
)
def test_which_types_hold_which(wide, narrow, holds):
    assert holds_every(wide, narrow) is holds


def test_take_of_known_neighbours_is_a_slice(module, ops, agree):
    def body(x):
        one = op.take(x, relax.const(np.int64(2)), axis=1)
        return one, op.take(x, relax.const(np.array([1, 2], "int64")), axis=2)

    before = module([((2, 4, 3), "float32")], body)
    after = clean_up(before)
    assert ops(after) == {"strided_slice": 2, "reshape": 1}
    agree(before, after, 0.0)


def test_take_of_others_stays(module, ops):
    def body(x):
        return op.take(x, relax.const(np.array([2, 1], "int64")), axis=1), op.take(
            x, relax.const(np.array([[1]], "int64")), axis=1
        )

    assert ops(clean_up(module([((2, 4, 3), "float32")], body))) == {"take": 2}


def test_a_broadcast_axis_joined_to_the_one_before_is_a_repeat(module, ops, agree):
    def shared(x, at):
        wide = [2, 3, 4]
        wide.insert(at, 5)
        joined = [2, 3, 4]
        joined[at - 1] *= 5
        return op.nn.relu(op.reshape(op.broadcast_to(op.expand_dims(x, [at]), wide), joined))

    for at in (1, 2, 3):
        before = module([X], lambda x, at=at: shared(x, at))
        after = clean_up(before)
        assert ops(after) == {"repeat": 1, "nn.relu": 1}
        agree(before, after, 0.0)


def test_a_broadcast_axis_joined_to_the_one_after_it_stays(module, ops):
    before = module([X], lambda x: op.reshape(op.broadcast_to(op.expand_dims(x, [1]), (2, 5, 3, 4)), (2, 15, 4)))
    assert ops(clean_up(before)) == {"reshape": 2, "broadcast_to": 1}


def padded(x, widths, **kwargs):
    return op.nn.conv2d(op.nn.pad(x, widths, **kwargs), relax.const(np.ones((4, 3, 3, 3), "float32")), padding=[0, 1])


IMAGE = ((1, 3, 8, 9), "float32")


def test_a_convolution_pads_by_itself(module, ops, agree):
    before = module([IMAGE], lambda x: padded(x, (0, 0, 0, 0, 0, 1, 2, 1)))
    after = clean_up(before)
    assert ops(after) == {"nn.conv2d": 1}
    agree(before, after)


def test_whatever_its_layout(module, ops, agree):
    def body(x):
        weight = relax.const(np.ones((4, 3, 3, 3), "float32"))
        image = op.nn.pad(x, (0, 0, 0, 1, 2, 1, 0, 0))
        return op.nn.conv2d(image, weight, data_layout="NHWC", kernel_layout="OHWI", out_layout="NHWC")

    before = module([((1, 8, 9, 3), "float32")], body)
    after = clean_up(before)
    assert ops(after) == {"nn.conv2d": 1}
    agree(before, after)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(lambda x: padded(x, (0, 0, 0, 0, 1, 1, 1, 1), pad_value=1.0), id="of ones"),
        pytest.param(lambda x: padded(x, (0, 0, 0, 0, 1, 1, 1, 1), pad_mode="reflect"), id="reflected"),
        pytest.param(lambda x: padded(op.strided_slice(x, [1], [0], [1]), (0, 0, 1, 1, 0, 0, 0, 0)), id="of channels"),
    ],
)
def test_other_paddings_stay(body, module, ops):
    assert ops(clean_up(module([IMAGE], body)))["nn.pad"] == 1

import pytest
from tvm import tirx
from tvm.relax import op

from subtune.passes.normalize_siblings import join_siblings

X = ((10, 16), "float32")
HEADS = (2, 5, 4, 4)


def heads(x, weight, bias=None):
    """A projection as attention takes it: [batch, head, row, d]."""
    y = op.matmul(x, weight) if bias is None else op.add(op.matmul(x, weight), bias)
    return op.permute_dims(op.reshape(y, HEADS), [0, 2, 1, 3])


@pytest.mark.parametrize("has_bias", [True, False])
def test_projections_of_attention_become_one_and_slices_of_heads(has_bias, module, ops, agree, const):
    def body(x):
        q, k, v = (heads(x, const(16, 16), const(16) if has_bias else None) for _ in range(3))
        return op.matmul(op.matmul(q, op.permute_dims(k, [0, 1, 3, 2])), v)

    before = module([X], body)
    after = join_siblings(before)
    permutes = ops(before)["permute_dims"]
    expected = {"matmul": 3, "reshape": 1, "strided_slice": 3, "permute_dims": permutes}
    assert ops(after) == expected | ({"add": 1} if has_bias else {})
    agree(before, after)


def test_views_that_cut_a_head_keep_the_slice_of_columns(module, ops, agree, const):
    def body(x):
        a, b = op.matmul(x, const(16, 6)), op.matmul(x, const(16, 10))
        return op.reshape(a, (10, 2, 3)), op.reshape(b, (10, 2, 5))

    before = module([X], body)
    after = join_siblings(before)
    assert ops(after) == {"matmul": 1, "strided_slice": 2, "reshape": 2}
    agree(before, after)


def test_what_is_computed_with_stays_an_epilogue(module, const):
    def body(x):
        return op.multiply(op.nn.silu(op.matmul(x, const(16, 8))), op.matmul(x, const(16, 8)))

    before = module([X], body)
    assert join_siblings(before).same_as(before)


def test_other_activations_and_results_of_the_model_stay(module, const):
    def body(x, y):
        return op.reshape(op.matmul(x, const(16, 8)), (80,)), op.reshape(op.matmul(y, const(16, 8)), (80,))

    before = module([X, X], body)
    assert join_siblings(before).same_as(before)
    before = module([X], lambda x: (op.matmul(x, const(16, 8)), op.matmul(x, const(16, 8))))
    assert join_siblings(before).same_as(before)


def test_a_bias_for_some_is_zeros_for_the_others(module, ops, agree, const):
    """Whisper's keys have none."""

    def body(x):
        biased = [heads(x, const(16, 16), const(16)) for _ in range(2)]
        return op.add(op.add(*biased), heads(x, const(16, 16)))

    before = module([X], body)
    after = join_siblings(before)
    assert ops(after)["matmul"] == 1
    agree(before, after)


def test_one_constant_for_two_activations(module, ops, agree, const):
    """Layers that share their weights, as ALBERT's."""

    def body(x):
        weights = [const(16, 16) for _ in range(2)]
        first = op.add(*(heads(x, w) for w in weights))
        y = op.nn.relu(op.reshape(op.permute_dims(first, [0, 2, 1, 3]), (10, 16)))
        return op.add(*(heads(y, w) for w in weights))

    before = module([X], body)
    after = join_siblings(before)
    assert ops(after)["matmul"] == 2
    agree(before, after)


def test_a_slice_of_a_view_is_of_its_columns(module, agree, const):
    """Not only what this pass cut: any slice of the last axis, where a view of it takes whole heads."""

    def body(x):
        cut = op.strided_slice(op.nn.relu(x), [1], [4], [12])
        joined = [op.reshape(op.matmul(x, const(16, 8)), (10, 2, 4)) for _ in range(2)]
        return op.reshape(cut, (10, 2, 4)), op.add(op.permute_dims(joined[0]), op.permute_dims(joined[1]))

    before = module([X], body)
    agree(before, join_siblings(before))


def test_a_slice_of_unknown_bounds_stays(module, ops, const):
    """Where a slice begins may be known when the model runs only."""
    n = tirx.Var("n", "int64")

    def body(x, _):
        cut = op.strided_slice(op.nn.relu(x), [1], [n], [n + 8])
        joined = [op.reshape(op.matmul(x, const(16, 8)), (10, 2, 4)) for _ in range(2)]
        return op.reshape(cut, (10, 2, 4)), op.add(*joined)

    after = join_siblings(module([X, ((n,), "float32")], body))
    assert ops(after)["strided_slice"] == 3

"""Results that are only moved are copied from where they lie."""

from tvm.relax import op

from subtune.passes.results import copies_for_results

X = ((2, 6, 8), "float32")


def keys(x):
    return op.permute_dims(op.reshape(op.strided_slice(x, [2], [4], [8]), (2, 6, 2, 2)), [0, 2, 1, 3])


def test_what_a_kernel_reads_too_is_moved_once_more(module, ops, agree):
    def body(x):
        moved = keys(op.nn.relu(x))
        return op.sigmoid(moved), moved

    before = module([X], body)
    after = copies_for_results(before)
    assert ops(before) == {"nn.relu": 1, "strided_slice": 1, "reshape": 1, "permute_dims": 1, "sigmoid": 1}
    assert ops(after) == {"nn.relu": 1, "strided_slice": 2, "reshape": 2, "permute_dims": 2, "sigmoid": 1}
    agree(before, after, 0.0)


def test_a_view_of_what_is_copied_stays_the_one_that_others_read(module, ops, agree):
    def body(x):
        moved = keys(op.reshape(op.nn.relu(x), X[0]))
        return op.sigmoid(moved), moved

    before = module([((12, 8), "float32")], body)
    after = copies_for_results(before)
    assert ops(after) == {"nn.relu": 1, "strided_slice": 2, "reshape": 3, "permute_dims": 2, "sigmoid": 1}
    agree(before, after, 0.0)


def test_what_nobody_else_reads_stays(module):
    for body in (lambda x: (keys(op.nn.relu(x)), op.sigmoid(x)), lambda x: (op.nn.relu(x), op.sigmoid(op.nn.relu(x)))):
        before = module([X], body)
        assert copies_for_results(before).same_as(before)


def test_a_view_alone_costs_nothing(module):
    def body(x):
        flat = op.reshape(op.nn.relu(x), (12, 8))
        return op.sigmoid(flat), flat

    before = module([X], body)
    assert copies_for_results(before).same_as(before)


def test_a_cast_of_what_is_moved_belongs_to_the_copy(module, ops, agree):
    def body(x):
        moved = keys(op.astype(op.nn.relu(x), "float16"))
        return op.sigmoid(moved), op.astype(moved, "float32")

    before = module([X], body)
    after = copies_for_results(before)
    assert ops(before)["strided_slice"] == 1
    assert ops(after)["strided_slice"] == 2
    assert ops(after)["astype"] == 2
    agree(before, after, 0.0)


def test_a_cast_in_front_of_what_is_moved_is_done_once(module, ops):
    def body(x):
        moved = keys(op.astype(x, "float16"))
        return op.sigmoid(moved), moved

    after = copies_for_results(module([X], body))
    assert ops(after)["strided_slice"] == 2
    assert ops(after)["astype"] == 1

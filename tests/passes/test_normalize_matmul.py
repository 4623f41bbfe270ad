import pytest
from tvm import relax
from tvm.relax import op

from subtune.passes.normalize_matmul import flatten_matmuls

X = ((2, 5, 8), "float32")


def test_a_transformer_block_stays_two_dimensional(ops, agree, const):
    x, bb = relax.Var("x", relax.TensorType(*X)), relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit(op.add(op.matmul(x, const(8, 16)), const(16)))
            y = bb.emit(op.matmul(op.nn.gelu(y), const(16, 8)))
            y = bb.emit(op.add(op.add(y, const(1, 1, 8)), x))
            y = bb.emit(op.nn.layer_norm(y, const(8), const(8), [-1]))
            out = bb.emit_output(op.nn.softmax(op.matmul(y, const(8, 3)), -1))
        bb.emit_func_output(out)
    before = bb.finalize()
    after = flatten_matmuls(before)
    assert ops(after) == {"reshape": 2, "matmul": 3, "add": 3, "nn.gelu": 1, "nn.layer_norm": 1, "nn.softmax": 1}
    ranks = {len(b.var.ty.shape) for b in after["main"].body.blocks[0].bindings[:-1]}
    assert ranks == {2}
    agree(before, after, 1e-5)


def test_batched_matmuls_stay(module):
    before = module([X, ((2, 8, 3), "float32")], lambda a, b: op.add(op.matmul(a, b), relax.const(1.0)))
    assert flatten_matmuls(before).same_as(before)


def test_what_crosses_rows_stops_the_reshape(module, ops, agree, const):
    before = module([X], lambda x: op.add(op.nn.softmax(op.matmul(x, const(8, 4)), 1), const(5, 1)))
    after = flatten_matmuls(before)
    assert ops(after) == {"reshape": 2, "matmul": 1, "nn.softmax": 1, "add": 1}
    agree(before, after, 1e-5)


@pytest.mark.parametrize("transposed", [False, True])
def test_gemm_becomes_a_matmul_with_a_k_by_n_constant(transposed, module, ops, agree, const):
    def body(x):
        weight = op.permute_dims(const(6, 8)) if transposed else const(8, 6)
        return op.add(op.matmul(op.multiply(x, relax.const(0.5)), weight), const(6))

    before = module([((3, 8), "float32")], body)
    after = flatten_matmuls(before)
    assert ops(after) == {"matmul": 1, "add": 1}
    agree(before, after, 1e-5)


def test_a_factor_per_column_stays(module, const):
    before = module([((3, 8), "float32")], lambda x: op.matmul(op.multiply(x, const(8)), const(8, 6)))
    assert flatten_matmuls(before).same_as(before)


def test_factors_of_operands_move_behind_the_product(module, ops, agree):
    def body(q, k):
        q, k = op.multiply(q, relax.const(0.5)), op.multiply(k, relax.const(0.25))
        return op.matmul(q, op.permute_dims(k, [0, 2, 1]))

    shapes = [((2, 6, 8), "float32"), ((2, 4, 8), "float32")]
    before = module(shapes, body)
    after = flatten_matmuls(before)
    assert [b.value.op.name for b in after["main"].body.blocks[0].bindings[:3]] == [
        "relax.permute_dims",
        "relax.matmul",
        "relax.multiply",
    ]
    assert ops(after) == {"permute_dims": 1, "matmul": 1, "multiply": 1}
    agree(before, after, 1e-5)


def test_factors_stay_in_float16_and_where_the_scaled_tensor_is_needed(module):
    def halves(x, y):
        return op.matmul(op.multiply(x, relax.const(0.5, "float16")), y)

    before = module([((6, 8), "float16"), ((8, 4), "float16")], halves)
    assert flatten_matmuls(before).same_as(before)

    def shared(x, y):
        scaled = op.multiply(x, relax.const(0.5))
        return op.matmul(scaled, y), op.nn.relu(scaled)

    before = module([((6, 8), "float32"), ((8, 4), "float32")], shared)
    assert (
        sum(b.value.op.name == "relax.multiply" for b in flatten_matmuls(before)["main"].body.blocks[0].bindings[:-1])
        == 1
    )

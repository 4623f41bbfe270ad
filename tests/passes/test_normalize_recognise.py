import math

import pytest
from tvm import relax
from tvm.relax import op

from subtune.passes.normalize_activations import recognise_activations
from subtune.passes.normalize_nary import unstack_nary
from subtune.passes.normalize_norms import recognise_norms

X = ((2, 5, 8), "float32")
I4 = ((2, 3, 4, 5), "float32")


def c(value):
    return relax.const(float(value))


def erf_gate(x):
    return op.add(op.erf(op.divide(x, c(math.sqrt(2)))), c(1))


def tanh_gate(x, cube):
    inner = op.multiply(c(math.sqrt(2 / math.pi)), op.add(x, op.multiply(c(0.044715), cube)))
    return op.add(c(1), op.tanh(inner))


GATED = {
    "erf, half last": (lambda x: op.multiply(op.multiply(x, erf_gate(x)), c(0.5)), "nn.gelu"),
    "erf, half on x": (lambda x: op.multiply(op.multiply(x, c(0.5)), erf_gate(x)), "nn.gelu"),
    "erf, half on the gate": (lambda x: op.multiply(x, op.multiply(c(0.5), erf_gate(x))), "nn.gelu"),
    "erf, halved": (lambda x: op.divide(op.multiply(x, erf_gate(x)), c(2)), "nn.gelu"),
    "erf, times": (
        lambda x: op.multiply(
            op.multiply(x, op.add(c(1), op.erf(op.multiply(x, c(math.sqrt(0.5)))))),
            c(0.5),
        ),
        "nn.gelu",
    ),
    "tanh, power": (
        lambda x: op.multiply(op.multiply(c(0.5), x), tanh_gate(x, op.power(x, c(3)))),
        "nn.gelu_tanh",
    ),
    "tanh, products": (
        lambda x: op.multiply(op.multiply(x, tanh_gate(x, op.multiply(x, op.multiply(x, x)))), c(0.5)),
        "nn.gelu_tanh",
    ),
    "swish": (lambda x: op.multiply(x, op.sigmoid(x)), "nn.silu"),
    "swish, other order": (lambda x: op.multiply(op.sigmoid(x), x), "nn.silu"),
}
NOT_GATED = {
    "wrong constant": lambda x: op.multiply(op.multiply(x, op.add(op.erf(op.divide(x, c(1.5))), c(1))), c(0.5)),
    "no half": lambda x: op.multiply(x, erf_gate(x)),
    "another tensor": lambda x: op.multiply(op.multiply(op.exp(x), erf_gate(x)), c(0.5)),
    "two minus": lambda x: op.multiply(op.multiply(x, op.add(op.erf(op.divide(x, c(math.sqrt(2)))), c(2))), c(0.5)),
    "scaled swish": lambda x: op.multiply(x, op.sigmoid(op.multiply(x, c(1.7)))),
    "tanh of x": lambda x: op.multiply(op.multiply(c(0.5), x), op.add(c(1), op.tanh(x))),
}


@pytest.mark.parametrize("name", GATED)
def test_recognises_activations(name, module, ops, agree):
    body, wanted = GATED[name]
    before = module([X], body)
    after = recognise_activations(before)
    assert ops(after) == {wanted: 1}
    agree(before, after, 2e-6)


@pytest.mark.parametrize("name", NOT_GATED)
def test_leaves_other_products(name, module, ops):
    after = recognise_activations(module([X], NOT_GATED[name]))
    assert not {"nn.gelu", "nn.gelu_tanh", "nn.silu"} & set(ops(after))


def softmax(x, axis, sum_axis):
    e = op.exp(op.subtract(x, op.max(x, [axis], keepdims=True)))
    return op.divide(e, op.sum(e, [sum_axis], keepdims=True))


def test_recognises_softmax(ops, agree):
    x = relax.Var("x", relax.TensorType((2, 5, 8), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            peak = bb.emit(op.max(x, [1], keepdims=True))
            e = bb.emit(op.exp(op.subtract(x, peak)))
            out = bb.emit_output(op.divide(e, op.sum(e, [1], keepdims=True)))
        bb.emit_func_output(out)
    before = bb.finalize()
    after = recognise_activations(before)
    assert ops(after) == {"nn.softmax": 1}
    agree(before, after, 1e-6)


def test_leaves_a_softmax_over_two_different_axes(module, ops):
    assert "nn.softmax" not in ops(recognise_activations(module([X], lambda x: softmax(x, 1, 2))))


def layer_norm(x, axis, square, rsqrt=False, eps=1e-5):
    d = op.subtract(x, op.mean(x, [axis], keepdims=True))
    power = op.add(op.mean(square(d), [axis], keepdims=True), c(eps))
    if rsqrt:
        return op.multiply(d, op.rsqrt(power))
    return op.divide(d, op.sqrt(power))


SQUARES = {
    "power": lambda d: op.power(d, c(2)),
    "product": lambda d: op.multiply(d, d),
    "square": op.square,
}


@pytest.mark.parametrize("square", SQUARES)
@pytest.mark.parametrize("rsqrt", [False, True])
def test_recognises_layer_norm_with_scale_and_shift(square, rsqrt, module, ops, agree, const):
    gamma, beta = const(8), const(8)
    before = module([X], lambda x: op.add(op.multiply(layer_norm(x, -1, SQUARES[square], rsqrt), gamma), beta))
    after = recognise_norms(before)
    assert ops(after) == {"nn.layer_norm": 1}
    agree(before, after, 1e-5)


def test_recognises_layer_norm_over_channels(module, ops, agree, const):
    gamma = const(3, 1, 1)
    before = module([I4], lambda x: op.multiply(layer_norm(x, 1, op.square), gamma))
    after = recognise_norms(before)
    assert ops(after) == {"nn.layer_norm": 1}
    agree(before, after, 1e-5)


def test_recognises_instance_norm(module, ops, agree, const):
    gamma, beta = const(3, 1, 1), const(1, 3, 1, 1)

    def body(x):
        mean, var = op.mean(x, [2, 3], keepdims=True), op.variance(x, [2, 3], keepdims=True)
        return op.add(op.multiply(op.divide(op.subtract(x, mean), op.sqrt(op.add(var, c(1e-5)))), gamma), beta)

    before = module([I4], body)
    after = recognise_norms(before)
    assert ops(after) == {"nn.instance_norm": 1}
    agree(before, after, 1e-5)


def test_recognises_rms_norm(module, ops, agree, const):
    gamma = const(8)

    def body(x):
        power = op.add(op.mean(op.multiply(x, x), [-1], keepdims=True), c(1e-6))
        return op.multiply(gamma, op.multiply(x, op.divide(c(1), op.sqrt(power))))

    before = module([X], body)
    after = recognise_norms(before)
    assert ops(after) == {"nn.rms_norm": 1}
    agree(before, after, 1e-5)


NOT_NORMS = {
    "means over different axes": lambda x: op.divide(
        op.subtract(x, op.mean(x, [2], keepdims=True)),
        op.sqrt(
            op.add(op.mean(op.square(op.subtract(x, op.mean(x, [2], keepdims=True))), [1], keepdims=True), c(1e-5))
        ),
    ),
    "third power": lambda x: layer_norm(x, -1, lambda d: op.power(d, c(3))),
    "no epsilon": lambda x: op.divide(
        op.subtract(x, op.mean(x, [2], keepdims=True)), op.sqrt(op.variance(x, [2], keepdims=True))
    ),
}


@pytest.mark.parametrize("name", NOT_NORMS)
def test_leaves_what_is_no_norm(name, module, ops):
    after = recognise_norms(module([X], NOT_NORMS[name]))
    assert not {"nn.layer_norm", "nn.rms_norm", "nn.instance_norm"} & set(ops(after))


def test_a_norm_read_twice_keeps_its_scale(ops, const):
    gamma = const(8)
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 5, 8), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            norm = bb.emit(op.nn.layer_norm(x, gamma, gamma, [-1]))
            out = bb.emit_output(op.add(op.multiply(norm, gamma), op.exp(norm)))
        bb.emit_func_output(out)
    before = bb.finalize()
    assert ops(recognise_norms(before))["nn.layer_norm"] == 1
    assert ops(recognise_norms(before))["multiply"] == 1


@pytest.mark.parametrize(
    ("reduction", "wanted"),
    [
        (op.sum, {"add": 2}),
        (op.mean, {"add": 2, "divide": 1}),
        (op.max, {"maximum": 2}),
        (op.min, {"minimum": 2}),
    ],
)
def test_unstacks_reductions(reduction, wanted, module, ops, agree):
    inputs = [((2, 3), "float32"), ((3,), "float32"), ((2, 1), "float32")]

    def body(*xs):
        return reduction(op.stack([op.broadcast_to(x, (2, 3)) for x in xs], 0), [0])

    before = module(inputs, body)
    after = unstack_nary(before)
    assert ops(after) == wanted
    agree(before, after, 1e-6)


def test_leaves_a_reduction_over_another_axis(module):
    before = module([((2, 3), "float32")] * 2, lambda a, b: op.sum(op.stack([a, b], 0), [1]))
    assert unstack_nary(before).same_as(before)


def test_keeps_a_broadcast_that_widens_the_result(module, agree):
    def body(a, b):
        return op.sum(op.stack([op.broadcast_to(a, (4, 3)), op.broadcast_to(b, (4, 3))], 0), [0])

    before = module([((3,), "float32"), ((1, 3), "float32")], body)
    agree(before, unstack_nary(before), 1e-6)


@pytest.mark.parametrize("inner", [(2, 3, -1), (2, 3, 2, 20)])
def test_group_norm_that_reshapes_round_an_instance_norm(inner, module, ops, agree, const):
    """PyTorch's export: groups made channels, then scale and shift for every channel."""
    axes = list(range(2, len(inner)))

    def body(x):
        groups = op.nn.instance_norm(op.reshape(x, inner), const(3), const(3), 1, axes)
        return op.add(op.multiply(op.reshape(groups, (2, 6, 4, 5)), const(6, 1, 1)), const(6, 1, 1))

    before = module([((2, 6, 4, 5), "float32")], body)
    after = recognise_norms(before)
    assert ops(after) == {"nn.group_norm": 1}
    agree(before, after, 1e-5)

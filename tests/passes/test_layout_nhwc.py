import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from subtune.passes.exprs import op_name
from subtune.passes.halves import with_half
from subtune.passes.layout_nhwc import channels_to_last, settle_permutes

X = ((1, 4, 6, 6), "float32")


def layout(mod):
    return settle_permutes(channels_to_last(mod))


def conv(x, w, **kwargs):
    return op.nn.conv2d(x, w, padding=1, **kwargs)


# What may stand between two convolutions without a transpose, on [1, 4, 6, 6].
BETWEEN = {
    "relu": lambda y, c: op.nn.relu(y),
    "leaky relu": lambda y, c: op.nn.leakyrelu(y, 0.1),
    "clip": lambda y, c: op.clip(y, 0, 6),
    "prelu": lambda y, c: op.nn.prelu(y, c(4), 1),
    "bias": lambda y, c: op.add(y, c(4, 1, 1)),
    "scalar": lambda y, c: op.multiply(relax.const(2.0), y),
    "per pixel": lambda y, c: op.add(y, c(6, 6)),
    "casts": lambda y, c: op.astype(op.astype(y, "float64"), "float32"),
    "where": lambda y, c: op.where(op.less(y, relax.const(0.0)), op.exp(y), y),
    "max pool": lambda y, c: op.nn.max_pool2d(y, (2, 2), (2, 2)),
    "avg pool": lambda y, c: op.nn.avg_pool2d(y, (3, 3), (1, 1), (1, 1), count_include_pad=True),
    "adaptive pool": lambda y, c: op.nn.adaptive_avg_pool2d(y, (3, 3)),
    "resize": lambda y, c: op.image.resize2d(
        y, (12, 12), layout="NCHW", method="nearest_neighbor", rounding_method="floor"
    ),
    "pad": lambda y, c: op.nn.pad(y, (0, 0, 0, 0, 1, 2, 3, 0)),
    "concat": lambda y, c: op.strided_slice(op.concat([y, op.exp(y), c(1, 4, 6, 6)], 1), [1], [3], [7]),
    "split": lambda y, c: op.concat([op.split(y, 2, 1)[1], op.split(y, 2, 1)[0]], 1),
    "slice": lambda y, c: op.strided_slice(y, [2, 3], [1, 0], [5, 6], [2, 1]),
    "softmax": lambda y, c: op.nn.softmax(y, 1),
    "batch of means": lambda y, c: op.multiply(y, op.sigmoid(op.mean(y, [2, 3], keepdims=True))),
    "channel maximum": lambda y, c: op.subtract(y, op.max(y, [1], keepdims=True)),
    "layer norm": lambda y, c: op.nn.layer_norm(y, c(4), c(4), [1]),
    "instance norm": lambda y, c: op.nn.instance_norm(y, c(4), c(4), channel_axis=1, axes=[2, 3]),
    "group norm": lambda y, c: op.nn.group_norm(y, c(4), c(4), num_groups=2, channel_axis=1, axes=[2, 3]),
    "broadcast": lambda y, c: op.broadcast_to(op.mean(y, [2, 3], keepdims=True), (1, 4, 5, 5)),
    "flat pixels": lambda y, c: op.reshape(op.exp(op.reshape(y, (1, 4, 36))), (1, 4, 6, 6)),
    "gather": lambda y, c: op.take(y, relax.const([3, 1, 0, 2], "int64"), 1),
    "repeat": lambda y, c: op.repeat(op.repeat(y, 2, 2), 3, -1),
    "last to first": lambda y, c: op.permute_dims(op.nn.gelu(op.permute_dims(y, [0, 2, 3, 1])), [0, 3, 1, 2]),
}


@pytest.mark.parametrize("name", BETWEEN)
@pytest.mark.grid
def test_no_transpose_between_convolutions(name, ops, agree, const):
    x, bb = relax.Var("x", relax.TensorType(*X)), relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit(conv(x, const(4, 4, 3, 3)))
            y = bb.emit(BETWEEN[name](y, const))
            out = bb.emit_output(conv(y, const(5, 4, 3, 3)))
        bb.emit_func_output(out)
    before = bb.finalize()
    after = layout(before)
    assert ops(after)["permute_dims"] == 2, "one at the input and one at the output"
    agree(before, after, 1e-5)


def test_channel_shuffle_keeps_one_permutation_of_channels(module, ops, agree, const):
    def body(x):
        y = op.reshape(conv(x, const(4, 4, 3, 3)), (1, 2, 2, 6, 6))
        y = op.reshape(op.permute_dims(y, [0, 2, 1, 3, 4]), (1, 4, 6, 6))
        return conv(y, const(4, 4, 3, 3))

    before = module([X], body)
    after = layout(before)
    assert ops(after)["permute_dims"] == 3
    agree(before, after, 1e-5)


@pytest.mark.parametrize(
    ("inputs", "weight", "build"),
    [
        (X, (8, 2, 3, 3), lambda x, w: op.nn.conv2d(x, w, strides=2, padding=(1, 0, 2, 1), groups=2)),
        (X, (4, 1, 3, 3), lambda x, w: op.nn.conv2d(x, w, dilation=2, groups=4)),
        (((1, 4, 9), "float32"), (6, 2, 3), lambda x, w: op.nn.conv1d(x, w, padding=1, groups=2)),
        (((1, 4, 4, 5, 6), "float32"), (6, 4, 3, 3, 3), lambda x, w: op.nn.conv3d(x, w, padding=1)),
    ],
    ids=["grouped", "depthwise", "1d", "3d"],
)
def test_convolutions_of_all_kinds(inputs, weight, build, module, ops, agree, const):
    before = module([inputs], lambda x: build(x, const(*weight)))
    after = layout(before)
    (conv_call,) = [b.value for b in after["main"].body.blocks[0].bindings if "conv" in op_name(b.value)]
    assert str(conv_call.attrs.data_layout).endswith("C")
    assert str(conv_call.attrs.kernel_layout).endswith("I")
    assert ops(after)["permute_dims"] == 2
    agree(before, after, 1e-5)


@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "out_pad", "convolutions"),
    [
        (2, 2, 0, 0, 1),
        (4, 2, 1, 0, 4),  # one for all phases gives 14 x 14 pixels, of which 12 x 12 are wanted
        (3, 2, 1, 1, 4),  # of 4 x 4 taps 7 are zeros
        (3, 1, 1, 0, 1),
        (3, 1, 0, 0, 1),
        (5, 3, 2, 0, 1),  # 16 pixels have no 3 equal parts
        (2, 3, 0, 0, 1),  # every third pixel has no tap
    ],
)
def test_transposed_convolution_is_convolutions(kernel, stride, pad, out_pad, convolutions, module, ops, agree, const):
    def body(x):
        return op.nn.conv2d_transpose(
            x, const(4, 3, kernel, kernel), strides=stride, padding=pad, output_padding=out_pad
        )

    before = module([X], body)
    after = layout(before)
    assert ops(after)["nn.conv2d"] == convolutions
    assert ops(after)["strided_slice"] == 0 or (convolutions == 1 and stride > 1)
    assert ops(after)["nn.conv2d_transpose"] == 0
    agree(before, after, 1e-5)


@pytest.mark.parametrize(
    ("groups", "kernel", "stride", "pad", "convolutions"), [(2, 4, 2, 1, 4), (4, 2, 2, 0, 1), (2, 3, 1, 1, 1)]
)
def test_grouped_transposed_convolution_is_grouped_convolutions(
    groups, kernel, stride, pad, convolutions, module, ops, agree, const
):
    def body(x):
        return op.nn.conv2d_transpose(x, const(4, 3, kernel, kernel), strides=stride, padding=pad, groups=groups)

    before = module([X], body)
    after = layout(before)
    assert ops(after)["nn.conv2d"] == convolutions
    assert ops(after)["nn.conv2d_transpose"] == 0
    agree(before, after, 1e-5)


def test_dilated_transposed_convolution_stays(module, const):
    before = module([X], lambda x: op.nn.conv2d_transpose(x, const(4, 3, 2, 2), dilation=2))
    assert layout(before).same_as(before)


def test_pooling_of_rows_between_transposes_is_pooling_with_channels_last(module, ops, agree):
    """ONNX pools rows with channels first: a model with them last turns them back and forth."""

    def body(x):
        rows = op.expand_dims(op.permute_dims(x, [0, 2, 1]), 2)
        pooled = op.nn.max_pool2d(rows, (1, 5))
        return op.permute_dims(op.squeeze(pooled, [2]), [0, 2, 1])

    before = module([((2, 40, 6), "float32")], body)
    after = layout(before)
    assert ops(after)["permute_dims"] == 0
    assert ops(after)["nn.max_pool2d"] == 1
    agree(before, after, 0)


def test_global_pooling_and_flatten_leave_only_a_reshape(module, ops, agree, const):
    def body(x):
        y = op.mean(conv(x, const(8, 4, 3, 3)), [2, 3], keepdims=True)
        return op.matmul(op.reshape(y, (1, 8)), const(8, 3))

    before = module([X], body)
    after = layout(before)
    assert ops(after) == {"permute_dims": 1, "nn.conv2d": 1, "mean": 1, "reshape": 1, "matmul": 1}
    agree(before, after, 1e-5)


def test_flatten_into_a_dense_layer_permutes_the_weights(module, ops, agree, const):
    def body(x):
        y = op.nn.relu(conv(x, const(8, 4, 3, 3)))
        return op.matmul(op.reshape(y, (2, 8 * 36)), const(8 * 36, 3))

    before = module([((2, 4, 6, 6), "float32")], body)
    after = layout(before)
    assert ops(after) == {"permute_dims": 1, "nn.conv2d": 1, "nn.relu": 1, "reshape": 1, "matmul": 1}
    agree(before, after, 1e-5)


def test_flatten_into_varying_weights_transposes_the_activation(module, ops, agree, const):
    def body(x, w):
        return op.matmul(op.reshape(conv(x, const(8, 4, 3, 3)), (2, 8 * 36)), w)

    before = module([((2, 4, 6, 6), "float32"), ((8 * 36, 3), "float32")], body)
    after = layout(before)
    assert ops(after)["permute_dims"] == 2
    agree(before, after, 1e-5)


def test_attention_keeps_its_permutations(module, ops, agree):
    def body(q, k, v):
        q, k, v = (op.permute_dims(op.reshape(t, (1, 5, 2, 4)), [0, 2, 1, 3]) for t in (q, k, v))
        scores = op.nn.softmax(op.divide(op.matmul(q, op.permute_dims(k, [0, 1, 3, 2])), relax.const(2.0)), -1)
        return op.reshape(op.permute_dims(op.matmul(scores, v), [0, 2, 1, 3]), (1, 5, 8))

    before = module([((1, 5, 8), "float32")] * 3, body)
    after = layout(before)
    assert ops(after)["permute_dims"] == 4
    agree(before, after, 1e-5)


def test_a_tensor_in_another_layout_stops_the_permutation(module, ops, agree, const):
    before = module([X, X], lambda x, r: op.add(conv(x, const(4, 4, 3, 3)), r))
    after = layout(before)
    assert ops(after)["permute_dims"] == 2
    agree(before, after, 1e-5)


def test_the_network_s_own_input_is_permuted_once(ops, agree, const, module):
    before = module([X], lambda x: conv(op.add(conv(x, const(4, 4, 3, 3)), x), const(4, 4, 3, 3)))
    after = layout(before)
    assert ops(after)["permute_dims"] == 2
    agree(before, after, 1e-5)


def test_vision_transformer_patches_need_no_transpose(module, ops, agree, const):
    def body(x):
        y = op.nn.conv2d(x, const(8, 4, 2, 2), strides=2)
        return op.permute_dims(op.reshape(y, (1, 8, 9)), [0, 2, 1])

    before = module([X], body)
    after = layout(before)
    assert ops(after) == {"permute_dims": 1, "nn.conv2d": 1, "reshape": 1}
    agree(before, after, 1e-5)


def test_without_convolutions_nothing_changes(module):
    before = module([X], lambda x: op.nn.max_pool2d(op.nn.relu(x), (2, 2)))
    assert layout(before).same_as(before)


def test_few_channels_of_the_input_are_a_product_that_reads_it_where_it_lies(module, ops, agree, const):
    def body(x, r):
        y = op.nn.silu(op.add(op.nn.conv2d(x, const(3, 16, 1, 1)), const(3, 1, 1)))
        return op.add(y, r)

    before = module([((2, 16, 5, 7), "float32"), ((2, 3, 5, 7), "float32")], body)
    after = channels_to_last(before, keeps_planes=True)
    assert {name: n for name, n in ops(after).items() if name != "reshape"} == {"matmul": 1, "add": 2, "nn.silu": 1}
    assert op_name(after["main"].body.blocks[-1].bindings[-1].value) == "relax.reshape", "the view comes last"
    agree(before, after, 1e-5)


@pytest.mark.parametrize("rank", [1, 3])
def test_so_are_those_of_rows_and_volumes(rank, module, ops, agree, const):
    image, conv_of = (12,) * rank, {1: op.nn.conv1d, 3: op.nn.conv3d}[rank]
    before = module([((2, 16, *image), "float32")], lambda x: op.nn.relu(conv_of(x, const(3, 16, *(1,) * rank))))
    after = channels_to_last(before, keeps_planes=True)
    assert ops(after)["matmul"] == 1
    assert ops(after)["permute_dims"] == 0
    agree(before, after, 1e-5)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(lambda x, c: op.nn.conv2d(x, c(64, 4, 1, 1)), id="many channels"),
        pytest.param(lambda x, c: op.nn.conv2d(x, c(3, 4, 1, 1), strides=2), id="strides"),
        pytest.param(lambda x, c: conv(x, c(3, 4, 3, 3)), id="windows"),
        pytest.param(lambda x, c: op.nn.conv2d(op.nn.relu(x), c(3, 4, 1, 1)), id="of what is computed"),
        pytest.param(lambda x, c: op.add(op.nn.conv2d(x, c(4, 4, 1, 1)), x), id="read by others"),
    ],
)
def test_other_convolutions_have_their_channels_last(body, module, ops, const):
    before = module([X], lambda x: body(x, const))
    assert ops(channels_to_last(before, keeps_planes=True))["nn.conv2d"] == 1


def test_one_channel_is_no_depthwise_convolution(module, ops, agree, const):
    before = module([((2, 1, 5, 7), "float32")], lambda x: op.nn.relu(op.nn.conv2d(x, const(3, 1, 1, 1))))
    after = channels_to_last(before, keeps_planes=True)
    assert ops(after)["matmul"] == 1
    agree(before, after, 1e-5)


def test_those_in_groups_are_a_product_of_each(module, ops, agree, const):
    def body(x, r):
        y = op.add(op.nn.conv2d(x, const(8, 6, 1, 1), groups=4), const(8, 1, 1))
        return op.nn.relu(op.add(y, r))

    before = module([((2, 24, 4, 5), "float32"), ((2, 8, 4, 5), "float32")], body)
    after = channels_to_last(before, keeps_planes=True)
    found = {name: n for name, n in ops(after).items() if name != "reshape"}
    assert found == {"matmul": 1, "add": 2, "nn.relu": 1}
    assert op_name(after["main"].body.blocks[-1].bindings[-1].value) == "relax.reshape", "the view comes last"
    agree(before, after, 1e-5)


@pytest.mark.parametrize(("channels", "columns", "left"), [(8, 200, 0), (256, 300, 2)])
def test_a_lone_pointwise_convolution_reads_planes(channels, columns, left, module, ops, agree, const):
    def body(x):
        return op.nn.relu(op.add(op.nn.conv2d(x, const(columns, channels, 1, 1)), const(1, columns, 1, 1)))

    before = module([((2, channels, 4, 5), "float32")], body)
    after = settle_permutes(channels_to_last(before, keeps_planes=True, reads_planes=True))
    assert ops(after)["permute_dims"] == left
    agree(before, after, 1e-4)


@pytest.mark.parametrize(("columns", "left"), [(5, 0), (17, 2)])
def test_a_lone_one_of_halves_reads_planes_for_few_channels(columns, left, module, ops, const):
    def body(x):
        return op.nn.conv2d(op.astype(x, "float32"), const(columns, 8, 1, 1))

    before = with_half(module([((2, 8, 4, 5), "float16")], body), "float16")
    after = settle_permutes(channels_to_last(before, keeps_planes=True, reads_planes=True))
    assert ops(after).get("permute_dims", 0) == left
    elsewhere = settle_permutes(channels_to_last(before, keeps_planes=True))
    assert ops(elsewhere)["permute_dims"] == 2


@pytest.mark.parametrize("each", [1, 2])
def test_depthwise_rows_that_stay_in_planes_are_images_of_one_row(each, module, ops, agree, const):
    def body(x, r):
        y = op.nn.conv1d(x, const(8 * each, 1, 3), strides=2, padding=(2, 1), dilation=2, groups=8)
        return op.add(op.nn.silu(op.add(y, const(1, 8 * each, 1))), r)

    before = module([((2, 8, 40), "float32"), ((2, 8 * each, 20), "float32")], body)
    after = channels_to_last(before, keeps_planes=True)
    assert {name: n for name, n in ops(after).items() if name not in ("reshape", "expand_dims")} == {
        "nn.conv2d": 1,
        "add": 2,
        "nn.silu": 1,
    }
    assert op_name(after["main"].body.blocks[-1].bindings[-1].value) == "relax.reshape", "the view comes last"
    agree(before, after, 1e-5)


def test_layers_that_mix_rows_and_columns_in_turns_come_to_an_end(module, agree):
    """As an MLP-Mixer does. The exchange of the last two axes is its own inverse: neither layout is the later one."""

    def mixed(x):
        for width in (8, 4):
            turned = op.permute_dims(x, [0, 2, 1])
            inner = op.nn.gelu(op.matmul(turned, relax.const(np.full((8, width), 0.1, "float32"))))
            back = op.permute_dims(op.matmul(inner, relax.const(np.full((width, 8), 0.2, "float32"))), [0, 2, 1])
            x = op.add(x, back)
            x = op.add(x, op.matmul(op.nn.gelu(x), relax.const(np.full((4, 4), 0.3, "float32"))))
        return x

    before = module([((1, 8, 4), "float32")], mixed)
    agree(before, layout(before), 1e-6)

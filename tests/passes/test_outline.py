"""Outlining: what the PrimFuncs are, that equal ones are one, and that the outlined module computes the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op
from tvm_ffi import structural_equal

from subtune.core.errors import SubtuneError
from subtune.passes.extract import tir_calls
from subtune.passes.outline import outline
from subtune.passes.partition import partition
from tests.plain_tvm import compiled

F32 = "float32"
Param = tuple[tuple[int, ...], str]


def module(body: Callable[..., Any], *params: Param) -> tvm.IRModule:
    """`main(x0, x1, …)` on tensors (shape, dtype); `body(emit, x0, …)` returns the result."""
    bb = relax.BlockBuilder()
    xs = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, (shape, dtype) in enumerate(params)]
    with bb.function("main", xs):
        with bb.dataflow():
            result = bb.emit_output(body(bb.emit, *xs))
        bb.emit_func_output(result)
    return bb.get()


def outlined(mod: tvm.IRModule) -> tvm.IRModule:
    return outline(mod, partition(mod))


def run(mod: tvm.IRModule, args: list[np.ndarray]) -> list[np.ndarray]:
    vm = relax.VirtualMachine(compiled(mod), tvm.cpu())
    result = vm["main"](*[tvm.runtime.tensor(arg) for arg in args])
    return [result.numpy()] if isinstance(result, tvm.runtime.Tensor) else [item.numpy() for item in result]


def random_args(mod: tvm.IRModule, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    params = [([int(d) for d in p.ty.shape.values], str(p.ty.dtype)) for p in mod["main"].params]
    return [rng.integers(0, 2, s).astype(d) if d == "bool" else rng.standard_normal(s).astype(d) for s, d in params]


def check_same(mod: tvm.IRModule, rtol: float = 1e-5, atol: float = 1e-5) -> tvm.IRModule:
    """Assert that the outlined module computes what TVM's own pipeline makes of `mod`; return it."""
    result, args = outlined(mod), random_args(mod)
    for got, expected in zip(run(result, args), run(mod, args), strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol, atol)
    return result


def const(*shape: int, seed: int = 0) -> Any:
    return relax.const(np.random.default_rng(seed).standard_normal(shape).astype(F32) * 0.25, F32)


def conv(x: Any, w: Any, **attrs: Any) -> Any:
    return op.nn.conv2d(x, w, **{"padding": 1, **attrs}, data_layout="NHWC", kernel_layout="OHWI")


def primfuncs(mod: tvm.IRModule) -> dict[str, Any]:
    return {gvar.name_hint: func for gvar, func in mod.functions_items() if gvar.name_hint != "main"}


def test_equal_groups_are_one_primfunc() -> None:
    def body(emit: Any, x: Any) -> Any:
        for seed in range(3):
            x = emit(op.nn.relu(emit(op.add(emit(conv(x, const(8, 3, 3, 8, seed=seed))), const(1, 1, 1, 8, seed=9)))))
        return x

    mod = check_same(module(body, ((1, 6, 6, 8), F32)))
    ((name, func),) = primfuncs(mod).items()
    assert name == "fused_conv2d_add_relu"
    assert len(list(tir_calls(mod))) == 3
    assert [int(i) for i in func.attrs["layout_free_buffers"]] == [1, 2]
    assert bool(func.attrs["tirx.noalias"])
    assert "T.sblock" in func.script()


def test_constant_and_variable_weights_are_two_workloads() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        return emit(op.matmul(emit(op.matmul(x, w)), const(8, 8)))

    mod = check_same(module(body, ((8, 8), F32), ((8, 8), F32)))
    constants = [[int(i) for i in func.attrs["layout_free_buffers"]] for func in primfuncs(mod).values()]
    assert sorted(constants) == [[], [1]]


def test_names_do_not_matter() -> None:
    def body(x: str) -> tvm.IRModule:
        bb = relax.BlockBuilder()
        var = relax.Var(x, relax.TensorType((4, 8), F32))
        with bb.function("main", [var]):
            with bb.dataflow():
                result = bb.emit_output(bb.emit(op.exp(var), name_hint=f"{x}_exp"))
            bb.emit_func_output(result)
        return bb.get()

    first, second = outlined(body("a")), outlined(body("b"))
    assert structural_equal(first["tir_exp"], second["tir_exp"])


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_scalar_constants_are_literals(shape: tuple[int, ...]) -> None:
    half = relax.const(np.full(shape, 0.5, F32), F32)
    mod = check_same(module(lambda emit, x: emit(op.multiply(x, half)), ((4, 8), F32)))
    assert len(mod["tir_multiply"].params) == 2
    assert "0.5" in mod["tir_multiply"].script()


def test_scalar_that_makes_the_shape_is_a_parameter() -> None:
    one = relax.const(np.ones((1, 1, 1), F32), F32)
    mod = check_same(module(lambda emit, x: emit(op.multiply(x, one)), ((4, 8), F32)))
    assert len(mod["tir_multiply"].params) == 3


def test_where_takes_literals() -> None:
    def body(emit: Any, c: Any, x: Any) -> Any:
        return emit(op.where(c, x, relax.const(-1e9, F32)))

    mod = check_same(module(body, ((4, 1, 8), "bool"), ((4, 5, 8), F32)))
    assert len(mod["tir_where"].params) == 3


def test_multi_output_group() -> None:
    def body(emit: Any, x: Any) -> Any:
        total = emit(op.add(emit(conv(x, const(8, 3, 3, 8))), x))
        return emit(op.add(emit(conv(emit(op.nn.relu(total)), const(8, 3, 3, 8, seed=1))), total))

    mod = check_same(module(body, ((1, 6, 6, 8), F32)))
    assert len(mod["fused_conv2d_add_relu"].params) == 2 + 2  # x, w; the sum, its relu


def test_views_are_single_reshapes() -> None:
    def body(emit: Any, x: Any) -> Any:
        y = emit(op.expand_dims(emit(op.reshape(emit(op.exp(x)), (2, 2, 8))), 0))
        return emit(op.nn.relu(emit(op.permute_dims(y, [1, 0, 2, 3]))))

    mod = check_same(module(body, ((4, 8), F32)))
    assert mod["main"].script().count("R.reshape") == 1


def test_results_may_be_inputs_views_and_constants() -> None:
    def body(emit: Any, x: Any) -> Any:
        return relax.Tuple([x, emit(op.reshape(x, (8, 4))), const(3), emit(op.nn.relu(x))])

    check_same(module(body, ((4, 8), F32)))


def test_opaque_ops_stay_and_work() -> None:
    def body(emit: Any, x: Any) -> Any:
        top = emit(op.topk(emit(op.nn.relu(x)), k=3, axis=-1, ret_type="both"))
        total = emit(op.cumsum(emit(op.add(emit(top[0]), relax.const(1.0, F32))), axis=1))
        return relax.Tuple([emit(op.nn.relu(total)), emit(top[1])])

    mod = check_same(module(body, ((4, 16), F32)))
    assert "R.topk" in mod["main"].script()


def test_ops_written_as_loops_are_outlined_too() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        return emit(op.sort(emit(op.nn.softmax(emit(op.tanh(emit(op.matmul(x, w))))))))

    mod = module(body, ((4, 8), F32), ((8, 8), F32))
    loops = relax.transform.LegalizeOps({"relax.matmul": lambda _, call: call})(mod)
    assert list(primfuncs(check_same(loops))) == ["fused_matmul_tir_tanh", "tir_softmax"]


def test_split_with_users_in_two_groups() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        parts = emit(op.split(x, 2, axis=-1))
        return emit(op.matmul(emit(parts[0]), emit(op.add(w, emit(parts[1])))))

    check_same(module(body, ((8, 16), F32), ((8, 8), F32)))


@pytest.mark.parametrize(
    "attrs",
    [
        {"strides": 2},
        {"padding": (2, 1, 0, 1), "dilation": 2},
        {"groups": 4},
        {"groups": 16, "strides": 2},
    ],
)
def test_convolutions(attrs: dict[str, Any]) -> None:
    weight = const(16, 3, 3, 16 // attrs.get("groups", 1))
    mod = check_same(module(lambda emit, x: emit(op.nn.relu(emit(conv(x, weight, **attrs)))), ((2, 9, 9, 16), F32)))
    assert list(primfuncs(mod)) == ["fused_conv2d_relu"]


@pytest.mark.parametrize(
    "attrs",
    [
        {"strides": 2, "padding": 1},
        {"strides": (2, 1), "padding": (1, 0, 2, 1), "dilation": (1, 2)},
        {"strides": 2, "output_padding": 1, "groups": 4},
        {"strides": 1, "padding": 3},
    ],
)
def test_transposed_convolution_in_both_layouts(attrs: dict[str, Any]) -> None:
    def nchw(emit: Any, x: Any, w: Any) -> Any:
        return emit(op.nn.conv2d_transpose(x, w, **attrs))

    def nhwc(emit: Any, x: Any, w: Any) -> Any:
        x, w = emit(op.permute_dims(x, [0, 2, 3, 1])), emit(op.permute_dims(w, [0, 2, 3, 1]))
        y = emit(op.nn.conv2d_transpose(x, w, **attrs, data_layout="NHWC", kernel_layout="IHWO"))
        return emit(op.permute_dims(y, [0, 3, 1, 2]))

    params = (((1, 16, 8, 8), F32), ((16, 8, 3, 3), F32))
    plain = module(nchw, *params)
    args = random_args(plain)
    (expected,) = run(plain, args)
    for mod in (plain, module(nhwc, *params)):
        (got,) = run(outlined(mod), args)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("groups", [2, 16])
def test_group_and_instance_norm(groups: int, dtype: str) -> None:
    def body(emit: Any, x: Any, g: Any, b: Any) -> Any:
        if groups == 16:
            return emit(op.nn.instance_norm(x, g, b, channel_axis=1, axes=[2, 3]))
        return emit(op.nn.group_norm(x, g, b, num_groups=groups, channel_axis=1, axes=[2, 3]))

    mod = module(body, ((2, 16, 5, 5), dtype), ((16,), dtype), ((16,), dtype))
    x, g, b = random_args(mod)
    x = (x + 100).astype(dtype)  # a large mean: E[x^2] - E[x]^2 would cancel
    (got,) = run(outlined(mod), [x, g, b])
    rows = x.astype("float64").reshape(2, groups, -1)
    normal = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-5)
    expected = normal.reshape(x.shape) * g.astype("float64")[:, None, None] + b.astype("float64")[:, None, None]
    np.testing.assert_allclose(got, expected, rtol=2e-3 if dtype == "float16" else 1e-3, atol=5e-3)


def attention(emit: Any, x: Any, mask: Any) -> Any:
    """One BERT-like block: 2 heads of 8, post-LN, GELU."""

    def dense(x: Any, rows: int, columns: int, seed: int) -> Any:
        return emit(op.add(emit(op.matmul(x, const(rows, columns, seed=seed))), const(columns, seed=seed + 1)))

    def heads(x: Any, axes: list[int]) -> Any:
        return emit(op.permute_dims(emit(op.reshape(x, (1, 6, 2, 8))), axes))

    q, k, v = (dense(x, 16, 16, seed) for seed in (1, 3, 5))
    scores = emit(op.matmul(heads(q, [0, 2, 1, 3]), heads(k, [0, 2, 3, 1])))
    scores = emit(op.add(emit(op.divide(scores, relax.const(2.8, F32))), mask))
    mixed = emit(op.matmul(emit(op.nn.softmax(scores, axis=-1)), heads(v, [0, 2, 1, 3])))
    mixed = emit(op.reshape(emit(op.permute_dims(mixed, [0, 2, 1, 3])), (1, 6, 16)))
    x = emit(op.nn.layer_norm(emit(op.add(dense(mixed, 16, 16, 7), x)), const(16), const(16, seed=2), axes=[-1]))
    y = dense(emit(op.nn.gelu(dense(x, 16, 32, 9))), 32, 16, 11)
    return emit(op.nn.layer_norm(emit(op.add(y, x)), const(16), const(16, seed=2), axes=[-1]))


def test_bert_block() -> None:
    mod = check_same(module(attention, ((1, 6, 16), F32), ((1, 1, 1, 6), F32)), rtol=1e-4, atol=1e-4)
    calls = [call.args[0].name_hint for call in tir_calls(mod)]
    assert sorted(calls) == [
        "fused_matmul_add",
        "fused_matmul_add",
        "fused_matmul_add",
        "fused_matmul_add_add",
        "fused_matmul_add_add_1",
        "fused_matmul_add_gelu",
        "fused_permute_dims_matmul",
        "fused_permute_dims_permute_dims_matmul_divide_add",
        "tir_layer_norm",
        "tir_layer_norm",
        "tir_permute_dims",
        "tir_softmax",
    ]


def test_resnet_block() -> None:
    def body(emit: Any, x: Any) -> Any:
        def unit(x: Any, seed: int, **attrs: Any) -> Any:
            size = 1 if attrs.get("padding") == 0 else 3
            return emit(
                op.add(emit(conv(x, const(8, size, size, 8, seed=seed), **attrs)), const(1, 1, 1, 8, seed=seed))
            )

        main = unit(emit(op.nn.relu(unit(x, 1, strides=2))), 2)
        x = emit(op.nn.relu(emit(op.add(main, unit(x, 3, strides=2, padding=0)))))
        x = emit(op.nn.relu(emit(op.add(unit(emit(op.nn.relu(unit(x, 4))), 5), x))))
        x = emit(op.reshape(emit(op.mean(x, axis=[1, 2], keepdims=True)), (1, 8)))
        return emit(op.matmul(x, const(8, 10)))

    mod = check_same(module(body, ((1, 8, 8, 8), F32)))
    # the residual convolutions of both blocks are one workload, because the add goes with the longer branch
    assert [call.args[0].name_hint for call in tir_calls(mod)].count("fused_conv2d_add_add_relu") == 2


def test_the_default_pipeline_fuses_nothing_further() -> None:
    mod = outlined(module(attention, ((1, 6, 16), F32), ((1, 1, 1, 6), F32)))
    with tvm.target.Target("llvm"):
        built = tvm.transform.Sequential(
            [
                relax.transform.LegalizeOps(),
                relax.transform.AnnotateTIROpPattern(),
                relax.transform.FoldConstant(),
                relax.transform.FuseOps(),
                relax.transform.FuseTIR(),
            ]
        )(mod)
    for name, func in primfuncs(mod).items():
        assert structural_equal(built[name], func), f"{name} is not what was tuned"


def test_op_without_legalisation_is_refused_by_name() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        return emit(op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="OHWI", out_layout="NCHW"))

    mod = module(body, ((1, 8, 8, 4), F32), ((4, 3, 3, 4), F32))
    with pytest.raises(SubtuneError, match=r"cannot lower relax\.nn\.conv2d in the subgraph conv2d"):
        outlined(mod)


def random_dag(seed: int) -> tvm.IRModule:
    """A random graph of convolutions, products, elementwise ops, reductions, views and movements."""
    rng = np.random.default_rng(seed)

    def body(emit: Any, x: Any, y: Any) -> Any:
        pool = [x, y]

        def pick() -> Any:  # mostly recent values, so that runs and branches appear
            return pool[max(0, len(pool) - 1 - int(rng.geometric(0.35)))] if rng.random() < 0.8 else pool[0]

        for step in range(int(rng.integers(8, 26))):
            a, b = pick(), pick()
            kind = rng.choice(
                ["conv", "matmul", "relu", "tanh", "add", "mul", "scale", "mean", "pool", "perm", "split", "view",
                 "softmax", "slice", "cast"],
                p=[0.12, 0.08, 0.1, 0.06, 0.2, 0.1, 0.08, 0.05, 0.03, 0.04, 0.03, 0.03, 0.03, 0.03, 0.02],
            )  # fmt: skip
            if kind == "conv":
                z = conv(a, const(4, 3, 3, 4, seed=step))
            elif kind == "matmul":
                z = op.matmul(a, emit(op.permute_dims(b, [0, 1, 3, 2]))) if rng.random() < 0.5 else op.matmul(a, b)
            elif kind in ("relu", "tanh"):
                z = op.nn.relu(a) if kind == "relu" else op.tanh(a)
            elif kind in ("add", "mul"):
                z = op.add(a, b) if kind == "add" else op.multiply(emit(op.tanh(a)), b)
            elif kind == "scale":
                z = op.add(emit(op.multiply(a, const(1, 1, 1, 4, seed=step))), relax.const(0.1, F32))
            elif kind == "mean":
                z = op.subtract(a, emit(op.mean(b, axis=[1, 2], keepdims=True)))
            elif kind == "pool":
                z = op.nn.max_pool2d(a, (3, 3), padding=(1, 1, 1, 1), layout="NHWC")
            elif kind == "perm":
                z = op.permute_dims(a, [0, 2, 1, 3])
            elif kind == "split":
                parts = emit(op.split(a, 2, axis=3))
                z = op.concat([emit(op.nn.relu(emit(parts[1]))), emit(parts[0])], axis=3)
            elif kind == "view":
                z = op.reshape(emit(op.nn.relu(emit(op.reshape(a, (16, 4))))), (1, 4, 4, 4))
            elif kind == "softmax":
                z = op.nn.softmax(a, axis=-1)
            elif kind == "slice":
                z = op.concat([emit(op.strided_slice(a, [1], [0], [2])), emit(op.strided_slice(b, [1], [2], [4]))], 1)
            else:
                z = op.astype(emit(op.astype(a, "float64")), F32)
            pool.append(emit(op.clip(emit(z), -4, 4)) if rng.random() < 0.3 else emit(z))
        results = [pool[-1], *(pool[int(i)] for i in rng.integers(2, len(pool), 2))]
        return relax.Tuple(results)

    return module(body, ((1, 4, 4, 4), F32), ((1, 4, 4, 4), F32))


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.grid
def test_random_dags_compute_the_same(seed: int) -> None:
    check_same(random_dag(seed), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("seed", range(100, 200))
def test_random_dags_partition_soundly(seed: int) -> None:
    graph = partition(random_dag(seed))  # asserts the invariants itself
    assert sum(len(group.ops) for group in graph.groups) + len(graph.left) == len(graph.dag)


@pytest.mark.parametrize("rows", ["scale", "shift", "both", "neither"])
def test_equal_numbers_of_a_norm_are_written_out_where_all_are_equal(rows: str) -> None:
    def numbers(is_equal: bool, value: float) -> Any:
        return relax.const(np.full(16, value, F32), F32) if is_equal else const(16)

    def body(_emit: Any, x: Any) -> Any:
        scale, shift = numbers(rows in ("scale", "both"), 2.0), numbers(rows in ("shift", "both"), 0.5)
        return op.nn.layer_norm(x, scale, shift, axes=[-1])

    (func,) = primfuncs(check_same(module(body, ((4, 16), F32)))).values()
    assert len(func.params) == (2 if rows == "both" else 4)

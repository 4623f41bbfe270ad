"""Quantised operators against ONNX Runtime, step by step: integers are the same, not close."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from subtune.core.errors import ModelError
from subtune.frontends.onnx.ops import import_onnx
from tests.frontends.onnx.one_node import BYTES, RNG, F, both, check, every, model_of, ours, point, some

SCALES = [(0.043, 0.0071, 0.0193), (0.5, 0.25, 0.75), (0.0009, 0.83, 0.011)]
"""Of two inputs and the result: one set of them gives halves often, one is lopsided."""


@pytest.mark.parametrize("scales", SCALES, ids=str)
@pytest.mark.parametrize("of", BYTES)
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_all_pairs(op: str, of: Any, scales: tuple[float, float, float]) -> None:
    a, b = np.repeat(every(of), 256), np.tile(every(of), 256)
    sa, sb, sc = (F(s) for s in scales)
    if op == "QLinearMul":
        sc = sc * sb * F(90)
    check(op, [a, sa, point(of), b, sb, point(of), sc, point(of)], (0, 3))


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("dims", [((256, 256), (256,)), ((256, 1), (1, 256)), ((4, 64, 256), (64, 1)), ((), (256,))])
def test_pairs_are_broadcast(op: str, dims: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (some(np.uint8, *d) for d in dims)
    parameters = [F(0.043), np.uint8(131), b, F(0.0071), np.uint8(7), F(0.0093), np.uint8(90)]
    check(op, [a, *parameters], (0, 3))


def test_missing_zero_points_are_zero() -> None:
    """ONNX Runtime documents that, and refuses it."""
    for of in BYTES:
        x, y, zero = every(of), some(of, 256), of(0)
        for op, inputs in (
            ("QLinearAdd", [x, F(0.3), zero, y, F(0.1), zero, F(0.35), zero]),
            ("QLinearMul", [x, F(0.3), zero, y, F(0.1), zero, F(3.5), zero]),
            ("QLinearSigmoid", [x, F(0.03), zero, F(0.01), zero]),
        ):
            model, feeds = model_of(op, [None if v is zero else v for v in inputs])
            got = ours(model, feeds)
            np.testing.assert_array_equal(got, ours(model_of(op, inputs)[0], feeds))


@pytest.mark.parametrize("of", BYTES)
@pytest.mark.parametrize(("scale", "into"), [(0.043, 1 / 256), (0.5, 0.5), (0.0009, 0.0003), (0.9, 0.004)])
def test_tables(of: Any, scale: float, into: float) -> None:
    parameters = [F(scale), point(of), F(into), point(of)]
    # MLAS approximates the exponential.
    check("QLinearSigmoid", [every(of), *parameters], off=1)
    check("QLinearLeakyRelu", [every(of), *parameters], alpha=0.07)
    check("QLinearConcat", [*parameters[2:], every(of), *parameters[:2]], (2,), axis=0)


@pytest.mark.parametrize("of", BYTES)
def test_parts_with_their_own_scales(of: Any) -> None:
    parts = [some(of, 2, 3, 5), F(0.02), of(5), some(of, 2, 4, 5), F(0.03), of(5), some(of, 2, 1, 5), F(0.02), of(9)]
    check("QLinearConcat", [F(0.02), of(5), *parts], (2, 5, 8), axis=-2)
    chosen = RNG.integers(0, 2, (3, 256)) > 0
    check(
        "QLinearWhere", [chosen, every(of), F(0.02), of(5), some(of, 3, 1), F(0.03), of(7), F(0.021), of(6)], (0, 1, 4)
    )


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("of", BYTES)
def test_pools(of: Any, last: int) -> None:
    x = some(of, 2, 12, 9, 11)
    parameters = [F(0.043), point(of), F(0.0171), point(of)]
    check("QLinearGlobalAveragePool", [x, *parameters], channels_last=last)
    whole = [12, 9] if last else [9, 11]
    check("QLinearAveragePool", [x, *parameters], channels_last=last, kernel_shape=whole)
    check("QLinearAveragePool", [x, *parameters], channels_last=last, kernel_shape=[3, 3], auto_pad="SAME_LOWER", off=1)
    for counted in (0, 1):
        for ceil in (0, 1):
            attrs = {"count_include_pad": counted, "ceil_mode": ceil, "channels_last": last, "strides": [2, 3]}
            check("QLinearAveragePool", [x, *parameters], kernel_shape=[3, 2], pads=[1, 0, 1, 1], off=1, **attrs)


def test_pools_of_rows_and_volumes() -> None:
    check(
        "QLinearAveragePool",
        [some(np.uint8, 2, 3, 16), F(0.3), np.uint8(4), F(0.17), np.uint8(1)],
        kernel_shape=[3],
        off=1,
    )
    volume = some(np.int8, 1, 3, 5, 6, 7)
    check("QLinearAveragePool", [volume, F(0.3), np.int8(4), F(0.17), np.int8(1)], kernel_shape=[3, 2, 2], off=1)
    check("QLinearGlobalAveragePool", [volume, F(0.3), np.int8(4), F(0.03), np.int8(1)])


def test_means_between_two_steps() -> None:
    """Sums of float32 decide which of them is nearer: they are added in ONNX Runtime's order."""
    for scale in (0.5, 0.043, 0.071):
        parameters = [F(scale), np.uint8(3), F(scale), np.uint8(4)]
        check("QLinearAveragePool", [some(np.uint8, 1, 8, 20, 20), *parameters], kernel_shape=[2, 2], strides=[2, 2])


def test_means_over_axes() -> None:
    """ONNX Runtime has no kernel."""
    x = some(np.int8, 3, 5, 7)
    for axes, keepdims in (([1], 0), ([-1, 0], 1)):
        model, feeds = model_of(
            "QLinearReduceMean", [x, F(0.5), np.int8(3), F(0.25), np.int8(-4)], axes=axes, keepdims=keepdims
        )
        got = ours(model, feeds)
        means = (x.astype(float) - 3).mean(axis=tuple(axes), keepdims=bool(keepdims))
        np.testing.assert_array_equal(got, np.clip(np.rint(means * 2) - 4, -128, 127))


@pytest.mark.parametrize("of", BYTES)
@pytest.mark.parametrize(("axis", "opset"), [(1, 12), (1, 13), (-1, 13)])
def test_softmax(of: Any, axis: int, opset: int) -> None:
    for scale, into in ((0.03, 1 / 256), (0.4, 1 / 256), (0.002, 0.0007)):
        inputs = [some(of, 3, 6, 40), F(scale), point(of), F(into), of(np.iinfo(of).min)]
        check("QLinearSoftmax", inputs, off=1, node={"axis": axis, "opset": opset})


@pytest.mark.parametrize(("a_type", "b_type"), [(np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8)])
def test_gemm(a_type: Any, b_type: Any) -> None:
    a, b = some(a_type, 33, 48), some(b_type, 48, 40)
    scales, zeros = RNG.uniform(0.001, 0.1, 40).astype(F), some(b_type, 40)
    row, column = (RNG.integers(-9999, 9999, dims).astype(np.int32) for dims in ((40,), (33, 1)))
    left, result = [F(0.04), point(a_type)], [F(0.31), point(a_type)]
    check("QGemm", [a, *left, b, F(0.02), b_type(3), row, *result])
    check("QGemm", [a, *left, b, scales, zeros, column, *result], alpha=0.7)
    check("QGemm", [a.T.copy(), *left, b.T.copy(), scales, zeros, None, *result], transA=1, transB=1)
    np.testing.assert_array_equal(*both("QGemm", [a, *left, b, scales, zeros, row]))


@pytest.mark.parametrize("b_type", BYTES)
def test_products_that_give_floats(b_type: Any) -> None:
    a, b = some(np.uint8, 2, 9, 48), some(b_type, 48, 40)
    scales, zeros = RNG.uniform(0.001, 0.1, 40).astype(F), some(b_type, 40)
    bias = RNG.standard_normal(40).astype(F)
    np.testing.assert_array_equal(*both("MatMulIntegerToFloat", [a, b, F(0.02), scales, np.uint8(5), zeros]))
    np.testing.assert_array_equal(*both("MatMulIntegerToFloat", [a, b, F(0.02), F(0.3)]))
    # Adding the bias may be one FMA.
    np.testing.assert_allclose(*both("MatMulIntegerToFloat", [a, b, F(0.02), F(0.3), None, None, bias]), rtol=1e-5)
    x = RNG.standard_normal((9, 48)).astype(F)
    np.testing.assert_array_equal(*both("DynamicQuantizeMatMul", [x, b, scales, zeros]))
    np.testing.assert_array_equal(*both("DynamicQuantizeMatMul", [0 * x, b, F(0.3)]))
    np.testing.assert_allclose(*both("DynamicQuantizeMatMul", [x, b, F(0.3), b_type(4), bias]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("of", [np.uint8, np.int8, np.uint16, np.int16])
def test_quantize_and_dequantize_in_both_domains(of: Any) -> None:
    halves = (np.arange(-70000, 70000) * F(0.5) * F(0.013)).astype(F)
    for domain in ("", "com.microsoft"):
        check("QuantizeLinear", [halves, F(0.013), point(of)], domain=domain, opset=21)
        x = some(of, 7, 40)
        np.testing.assert_array_equal(*both("DequantizeLinear", [x, F(0.013), point(of)], domain=domain, opset=21))
        scales = RNG.uniform(0.001, 0.1, 40).astype(F)
        y = RNG.standard_normal((7, 40)).astype(F)
        check("QuantizeLinear", [y, scales, some(of, 40)], domain=domain, opset=21, axis=1)


def test_convolutions_and_products_of_onnx() -> None:
    x, w = some(np.uint8, 1, 16, 12, 12), some(np.int8, 32, 16, 3, 3)
    scales, bias = RNG.uniform(0.001, 0.1, 32).astype(F), RNG.integers(-9999, 9999, 32).astype(np.int32)
    left, result = [F(0.04), np.uint8(100)], [F(0.9), np.uint8(120)]
    check("QLinearConv", [x, *left, w, scales, np.zeros(32, np.int8), *result, bias], domain="")
    a, b = some(np.uint8, 3, 9, 48), some(np.int8, 48, 32)
    check("QLinearMatMul", [a, *left, b, scales, some(np.int8, 32), *result], domain="")


def test_scales_of_a_product_may_be_halves() -> None:
    """As ONNX has them from opset 21 on; ONNX Runtime takes float32 alone."""
    a, b = some(np.uint8, 3, 9, 48), some(np.int8, 48, 32)
    scales = [F(x).astype(np.float16) for x in (0.04, RNG.uniform(0.001, 0.1, 32), 0.9)]

    def result(dtype: type) -> np.ndarray:
        first, second, third = (scale.astype(dtype) for scale in scales)
        given = [a, first, np.uint8(100), b, second, np.zeros(32, np.int8), third, np.uint8(120)]
        return ours(*model_of("QLinearMatMul", given, domain="", opset=21))

    assert len(np.unique(result(np.float16))) > 50
    np.testing.assert_array_equal(result(np.float16), result(np.float32))


X, P = every(np.uint8), np.uint8(3)
NODE = {
    "zero scale": ("QLinearSigmoid", [X, F(0), P, F(1), P], "a scale that is not positive and finite"),
    "negative scale": ("QLinearAdd", [X, F(1), P, X, F(-1), P, F(1), P], "a scale that is not positive and finite"),
    "no number": ("QLinearMul", [X, F(1), P, X, F(1), P, F("nan"), P], "a scale that is not positive and finite"),
    "infinite": ("QLinearConcat", [F(1), P, X, F("inf"), P], "a scale that is not positive and finite"),
    "two scales": ("QLinearLeakyRelu", [X, F([1, 2]), P, F(1), P], r"a scale of shape \[2\], not one value"),
    "double": ("QLinearLeakyRelu", [X, np.float64(1), P, F(1), P], "a scale of dtype float64"),
    "other zero": ("QLinearSigmoid", [X, F(1), np.int8(3), F(1), P], "a zero point of dtype int8 for values of uint8"),
    "two zeros": ("QLinearSigmoid", [X, F(1), X[:2], F(1), P], r"a zero point of shape \[2\], not one value"),
    "far apart": (
        "QLinearAdd",
        [X, F(1e30), P, X, F(1), P, F(1e-30), P],
        "has scales too far apart, 1e\\+30 and 1e-30",
    ),
    "shapes": ("QLinearAdd", [X, F(1), P, X[:3], F(1), P, F(1), P], "which do not broadcast"),
    "floats": ("QLinearAdd", [F(X), F(1), P, X, F(1), P, F(1), P], "has dtype float32, which is not supported"),
    "mixed": ("QLinearAdd", [X, F(1), P, every(np.int8), F(1), np.int8(0), F(1), P], "mixes dtypes"),
    "parts": ("QLinearConcat", [F(1), P, X, F(1)], "has 4 inputs, which are not parts"),
    "flat pool": ("QLinearGlobalAveragePool", [X, F(1), P, F(1), P], "pools rank 1"),
    "scale alone": ("QGemm", [X[None], F(1), P, X[:, None], F(1), P, None, F(1)], "without the other"),
    "flat gemm": ("QGemm", [X, F(1), P, X[:, None], F(1), P], "multiplies ranks 1 and 2"),
    "gemm's scales": ("QGemm", [X[None], F(1), P, X[:, None], F([1, 2]), P], r"a scale of shape \[2\], not one value"),
    "sizes": ("MatMulIntegerToFloat", [X[None], X[None], F(1), F(1)], r"multiplies shapes \[1, 256\] and \[1, 256\]"),
    "quantised by nothing": ("QuantizeLinear", [F(X), F(0), P], "a scale that is not positive and finite"),
    "channels": ("DequantizeLinear", [X[None], F([1, 2]), X[:2]], r"a scale of shape \[2\], not one value or 256"),
}


@pytest.mark.parametrize("case", NODE)
def test_refusals(case: str) -> None:
    op, inputs, reason = NODE[case]
    model, _ = model_of(op, inputs, (2,), axis=0) if op == "QLinearConcat" else model_of(op, inputs)
    with pytest.raises(ModelError, match=reason) as caught:
        import_onnx(model)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf])
def test_scales_of_onnx_operators(scale: float) -> None:
    x, w = some(np.uint8, 1, 2, 5, 5), some(np.int8, 3, 2, 3, 3)
    zero = np.int8(0)
    conv = [x, F(1), P, w, F([1, scale, 1]), np.zeros(3, np.int8), F(1), P]
    product = [X[None], F(1), P, some(np.int8, 256, 4), F(scale), zero, F(1), P]
    for op, inputs in (("QLinearConv", conv), ("QLinearMatMul", product), ("DequantizeLinear", [X, F(scale), P])):
        model, _ = model_of(op, inputs, domain="")
        with pytest.raises(ModelError, match="has a scale that is not positive and finite"):
            import_onnx(model)


def test_scales_at_run_time_are_named() -> None:
    model, _ = model_of("QLinearSigmoid", [X, F(1), P, F(1), P], (0, 1))
    with pytest.raises(ModelError, match="value of input 'x1'"):
        import_onnx(model)


@pytest.mark.parametrize("zero", [np.int32(3), F(3)])
def test_what_a_product_gives_is_bytes(zero: Any) -> None:
    product = [X[None], F(1), P, some(np.int8, 256, 4), F(1), np.int8(0), F(1), zero]
    model, _ = model_of("QLinearMatMul", product, domain="")
    with pytest.raises(ModelError, match=f"has dtype {zero.dtype}, which is not supported"):
        import_onnx(model)

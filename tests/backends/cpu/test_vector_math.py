"""The polynomials' stated errors, measured against float64 over the whole range."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.s_tir import Schedule

from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.lowering.pipeline import flat
from subtune.backends.cpu.math import exp_avx512
from subtune.backends.cpu.math.vector_math import vectorize_math

_erf = np.vectorize(math.erf)

CASES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "exp": (np.exp, 1.2e-7),
    "tanh": (np.tanh, 5e-7),
    "erf": (_erf, 5e-7),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 2.5e-7),
    "log1p": (np.log1p, 4e-7),
    "log": (np.log, 2.5e-7),
}
POWERS = {2.0: 1e-7, 3.0: 2e-7, 0.75: 8e-6, -0.5: 8e-6}


@pytest.fixture(params=["polynomials", "tables"])
def features(request: pytest.FixtureRequest, device: CPUModel) -> tuple[str, ...]:
    """Those that choose: none, as on AVX2 and NEON, and what is here."""
    if request.param == "polynomials":
        return ()
    if exp_avx512.FEATURE not in device.features:
        pytest.skip("no AVX-512 here")
    return device.features


def _evaluate(
    name: str, values: np.ndarray, device: CPUModel, *more: object, features: tuple[str, ...] = ()
) -> np.ndarray:
    rows = te.placeholder((len(values) // 16, 16), "float32", name="rows")
    result = te.compute(rows.shape, lambda i, j: getattr(tirx, name)(rows[i, j], *more), name="result")
    func = vectorize_math(te.create_prim_func([rows, result]), features).with_attr("global_symbol", "main")
    assert f"T.{name}(" not in func.script()
    out = tvm.runtime.tensor(np.zeros((len(values) // 16, 16), str(result.dtype)))
    tvm.compile(func, target=device.target())["main"](tvm.runtime.tensor(values.reshape(-1, 16)), out)
    return out.numpy().reshape(-1)


@pytest.mark.parametrize("name", CASES)
def test_error(name: str, device: CPUModel, features: tuple[str, ...]) -> None:
    reference, tolerance = CASES[name]
    if name == "exp" and features:
        tolerance = 1.8e-7
    tiny = np.geomspace(1e-30, 1.0, 4096)
    values = np.concatenate([np.linspace(-87, 88.7, 1 << 16), tiny, -tiny]).astype("float32")
    got = _evaluate(name, values, device, features=features).astype("float64")
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = reference(values.astype("float64"))
    normal = (np.abs(expected) > 1.7e-38) & np.isfinite(expected)
    assert (np.abs(got[normal] - expected[normal]) / np.abs(expected[normal])).max() < tolerance


@pytest.mark.parametrize("exponent", POWERS)
def test_power(exponent: float, device: CPUModel) -> None:
    values = np.concatenate([np.geomspace(1e-12, 1e12, 1 << 14), [np.nan, np.inf, -np.inf, 0.0] * 4]).astype("float32")
    got = _evaluate("power", values, device, tirx.const(exponent, "float32")).astype("float64")
    with np.errstate(divide="ignore"):
        expected = values.astype("float64") ** exponent
    finite = np.isfinite(expected) & (expected != 0)
    assert (np.abs(got[finite] - expected[finite]) / expected[finite]).max() < POWERS[exponent]
    assert np.array_equal(got[~finite], expected[~finite], equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_special_values(name: str, device: CPUModel, features: tuple[str, ...]) -> None:
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 89.0, -200.0, 1e38, -1e38, 3.4e38, -3.4e38, 1e5, -1e5, 88.8, -88, 1]
    values = np.array(special, "float32")
    with np.errstate(all="ignore"):
        expected = CASES[name][0](values.astype("float64")).astype("float32")
    got = _evaluate(name, values, device, features=features)
    assert np.array_equal(np.isnan(got), np.isnan(expected))
    assert np.allclose(got, expected, rtol=1e-6, atol=1e-37, equal_nan=True)
    if name in ("tanh", "erf"):  # a GELU multiplies what is left with any number
        assert (np.abs(got[np.abs(values) > 80]) == 1).all()


@pytest.mark.parametrize("width", [1, 5, 16, 40])
def test_exp_of_any_width(width: int, device: CPUModel) -> None:
    if exp_avx512.FEATURE not in device.features:
        pytest.skip("no AVX-512 here")
    rows = te.placeholder((3, width), "float32", name="rows")
    result = te.compute(rows.shape, lambda i, j: tirx.exp(rows[i, j]), name="result")
    sch = Schedule(vectorize_math(te.create_prim_func([rows, result]), device.features))
    sch.vectorize(sch.get_loops(sch.get_sblock("result"))[1])
    values = np.linspace(-100, 88, 3 * width).reshape(3, width).astype("float32")
    out = tvm.runtime.tensor(np.zeros_like(values))
    tvm.compile(sch.mod, target=device.target())["main"](tvm.runtime.tensor(values), out)
    assert np.allclose(out.numpy(), np.exp(values.astype("float64")), rtol=1.8e-7, atol=2e-45)


def test_rounding(device: CPUModel) -> None:
    """To the even one of two that are as near; zeros keep their sign."""
    halves = np.concatenate([np.arange(-64, 64) / 2, [8388609.5, -8388609.5, 1e30, np.inf, -np.inf, np.nan, -0.0, 0.4]])
    values = np.pad(halves, (0, -len(halves) % 16)).astype("float32")
    got, expected = _evaluate("nearbyint", values, device), np.rint(values)
    assert np.array_equal(got, expected, equal_nan=True)
    assert np.array_equal(np.signbit(got), np.signbit(expected))


def test_reciprocal_root(device: CPUModel) -> None:
    values = np.concatenate([np.geomspace(1e-37, 1e38, 1 << 14), [np.inf, 0.0] * 8]).astype("float32")
    with np.errstate(divide="ignore"):
        expected = 1 / np.sqrt(values.astype("float64"))
    assert np.allclose(_evaluate("rsqrt", values, device), expected, rtol=1.5e-7, atol=0)


@pytest.mark.parametrize("name", ["isinf", "isnan"])
def test_questions(name: str, device: CPUModel) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -3e38, 1e-45] * 2, "float32")
    got = _evaluate(name, values, device)
    assert np.array_equal(got, getattr(np, name)(values))


def _answered(name: str, x: Any) -> Any:
    if name == "power":
        return tirx.power(x, tirx.const(0.75, "float32"))
    found = getattr(tirx, name)(x)
    return tirx.Select(found, tirx.const(0.0, "float32"), x) if name.startswith("is") else found


@pytest.mark.parametrize("name", [*CASES, "power", "rsqrt", "nearbyint", "isinf", "isnan"])
def test_vectors_stay_vectors(name: str, device: CPUModel, features: tuple[str, ...]) -> None:
    """TVM takes a vector apart where a call in it has no vector of its own: nothing may be stored by one element."""
    source = te.placeholder((16,), "float32", name="source")
    func = te.create_prim_func([source, te.compute(source.shape, lambda i: _answered(name, source[i]), name="result")])
    sch = Schedule(vectorize_math(func, features))
    sch.vectorize(*sch.get_loops(sch.get_sblock("result")))
    with device.target():
        lowered = flat(tvm.IRModule({"main": sch.mod["main"].with_attr("target", device.target())}))
    stores: list[tirx.BufferStore] = []
    tvm_ffi.structural_walk(lowered["main"].body, (tirx.BufferStore, stores.append))
    assert [str(store.value.ty.dtype) for store in stores] == ["float32x16"]


def test_other_dtypes_are_left_alone() -> None:
    rows = te.placeholder((16,), "float64", name="rows")
    func = te.create_prim_func([rows, te.compute(rows.shape, lambda i: tirx.exp(rows[i]), name="result")])
    assert vectorize_math(func, (exp_avx512.FEATURE,)).same_as(func)

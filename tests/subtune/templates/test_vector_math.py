"""The polynomials' stated errors, measured against float64 over the whole range."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from subtune.devices.cpu import CPUModel
from subtune.templates.vector_math import vectorize_math

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


def _evaluate(name: str, values: np.ndarray, device: CPUModel, *more: object) -> np.ndarray:
    rows = te.placeholder((len(values) // 16, 16), "float32", name="rows")
    result = te.compute(rows.shape, lambda i, j: getattr(tirx, name)(rows[i, j], *more), name="result")
    func = vectorize_math(te.create_prim_func([rows, result])).with_attr("global_symbol", "main")
    assert f"T.{name}(" not in func.script()
    out = tvm.runtime.tensor(np.zeros((len(values) // 16, 16), "float32"))
    tvm.compile(func, target=device.target())["main"](tvm.runtime.tensor(values.reshape(-1, 16)), out)
    return out.numpy().reshape(-1)


@pytest.mark.parametrize("name", CASES)
def test_error(name: str, device: CPUModel) -> None:
    reference, tolerance = CASES[name]
    tiny = np.geomspace(1e-30, 1.0, 4096)
    values = np.concatenate([np.linspace(-87, 88.7, 1 << 16), tiny, -tiny]).astype("float32")
    got = _evaluate(name, values, device).astype("float64")
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = reference(values.astype("float64"))
    normal = (np.abs(expected) > 1.2e-38) & np.isfinite(expected)
    assert (np.abs(got[normal] - expected[normal]) / np.abs(expected[normal])).max() < tolerance


@pytest.mark.parametrize("exponent", POWERS)
def test_power(exponent: float, device: CPUModel) -> None:
    values = np.concatenate([np.geomspace(1e-12, 1e12, 1 << 14), [np.nan, np.inf, 0.0, 1.0] * 4]).astype("float32")
    got = _evaluate("power", values, device, tirx.const(exponent, "float32")).astype("float64")
    with np.errstate(divide="ignore"):
        expected = values.astype("float64") ** exponent
    finite = np.isfinite(expected) & (expected != 0)
    assert (np.abs(got[finite] - expected[finite]) / expected[finite]).max() < POWERS[exponent]
    assert np.array_equal(got[~finite], expected[~finite], equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_special_values(name: str, device: CPUModel) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 89.0, -200.0, 1e38] * 2, "float32")
    with np.errstate(all="ignore"):
        expected = CASES[name][0](values.astype("float64")).astype("float32")
    got = _evaluate(name, values, device)
    assert np.array_equal(np.isnan(got), np.isnan(expected))
    assert np.allclose(got, expected, rtol=1e-6, atol=1e-37, equal_nan=True)


def test_other_dtypes_are_left_alone() -> None:
    rows = te.placeholder((16,), "float64", name="rows")
    func = te.create_prim_func([rows, te.compute(rows.shape, lambda i: tirx.exp(rows[i]), name="result")])
    assert vectorize_math(func).same_as(func)

"""The polynomials' stated errors, measured against float64 over the whole range."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.s_tir import Schedule

from subtune.build.lower import flat
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
    normal = (np.abs(expected) > 1.7e-38) & np.isfinite(expected)
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


@pytest.mark.parametrize("name", [*CASES, "power"])
def test_vectors_stay_vectors(name: str, device: CPUModel) -> None:
    """TVM takes a vector apart where a call in it has no vector of its own: nothing may be stored by one element."""
    source = te.placeholder((16,), "float32", name="source")
    exponent = (tirx.const(0.75, "float32"),) if name == "power" else ()
    func = te.create_prim_func(
        [source, te.compute(source.shape, lambda i: getattr(tirx, name)(source[i], *exponent), name="result")]
    )
    sch = Schedule(vectorize_math(func))
    sch.vectorize(*sch.get_loops(sch.get_sblock("result")))
    with device.target():
        lowered = flat(tvm.IRModule({"main": sch.mod["main"].with_attr("target", device.target())}))
    stores: list[tirx.BufferStore] = []
    tvm_ffi.structural_walk(lowered["main"].body, (tirx.BufferStore, stores.append))
    assert [str(store.value.ty.dtype) for store in stores] == ["float32x16"]


def test_other_dtypes_are_left_alone() -> None:
    rows = te.placeholder((16,), "float64", name="rows")
    func = te.create_prim_func([rows, te.compute(rows.shape, lambda i: tirx.exp(rows[i]), name="result")])
    assert vectorize_math(func).same_as(func)

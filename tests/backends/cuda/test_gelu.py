"""GELU: by tanh where halves are stored, by its tails where floats are, recognised however its factors lie."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.lowering.default_schedule import default_schedule
from subtune.backends.cuda.lowering.gelu import COEFFICIENTS, EDGE, MIDDLE_COEFFICIENTS, TAIL, TAIL_COEFFICIENTS
from subtune.backends.cuda.lowering.pipeline import register


def evaluated(x: np.ndarray) -> np.ndarray:
    """In float32, with a tanh that is exact."""
    c0, c1, c2 = (np.float32(c) for c in COEFFICIENTS)
    t = np.minimum(x * x, np.float32(EDGE**2))
    half = np.float32(0.5) * x
    return half + half * np.tanh(((c2 * t + c1) * t + c0) * x)


def test_the_formula_is_gelu() -> None:
    x = np.linspace(-12, 12, 100001).astype(np.float32)
    want = np.array([v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x.tolist()])
    assert np.abs(evaluated(x) - want).max() < 2.6e-5
    far = np.array([-6e4, -100.0, 100.0, 6e4], np.float32)
    assert evaluated(far).tolist() == [0.0, 0.0, 100.0, 60000.0]
    assert np.isnan(evaluated(np.array([np.nan], np.float32))).all()


def evaluated_wide(x: np.ndarray) -> np.ndarray:
    """In float32, each step rounded once, the exponential two units off."""

    def added(a: np.ndarray, b: np.ndarray, c: float) -> np.ndarray:
        return (a.astype(np.float64) * b + np.float32(c)).astype(np.float32)

    t, s = np.abs(x), x * x
    p, r = (np.full_like(x, c[-1]) for c in (MIDDLE_COEFFICIENTS, TAIL_COEFFICIENTS))
    for c in MIDDLE_COEFFICIENTS[-2::-1]:
        p = added(p, s, c)
    for c in TAIL_COEFFICIENTS[-2::-1]:
        r = added(r, t, c)
    q = np.exp2(added(r, t, -1)) * (1 + np.float32(2**-22))
    return x * np.where(t < np.float32(TAIL), added(x, p, 0.5), np.where(x < 0, q, 1 - q))


def test_gelu_of_floats_is_right_to_a_digit() -> None:
    x = np.linspace(-12, 12, 400001).astype(np.float32)
    want = np.array([v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in x.tolist()])
    assert (np.abs(evaluated_wide(x) - want) / (np.abs(want) + 0.58)).max() < 1e-7
    far = np.array([-6e4, -100.0, 100.0, 6e4, np.inf], np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        assert evaluated_wide(far).tolist() == [0.0, 0.0, 100.0, 60000.0, np.inf]
        assert np.isnan(evaluated_wide(np.array([np.nan, -np.inf], np.float32))).all()


HALF, ROOT = tirx.const(0.5, "float32"), tirx.const(math.sqrt(0.5), "float32")
FORMS: dict[str, Any] = {
    "as the operator": lambda x: x * (HALF + tirx.erf(x * ROOT) * HALF),
    "turned round": lambda x: (HALF * tirx.erf(ROOT * x) + HALF) * x,
}


def text_of(form: Any, dtype: str) -> str:
    x, y = te.placeholder((1024,), "float16", "x"), te.placeholder((1024,), "float16", "y")
    z = te.compute((1024,), lambda i: form(x[i].astype("float32") + y[i].astype("float32")).astype(dtype), "z")
    target = CUDA("H200").target()
    mod = default_schedule(tvm.IRModule({"main": te.create_prim_func([x, y, z])}), target)
    with target:
        return str(tvm.compile(mod, target=target, tir_pipeline=register()).mod.imports[0].inspect_source())


@pytest.mark.parametrize("form", FORMS)
def test_it_is_recognised_by_what_is_stored(form: str) -> None:
    for dtype in ("float16", "bfloat16"):
        text = text_of(FORMS[form], dtype)
        assert text.count("subtune_gelu(") == 2  # its definition, and the kernel's call
        assert "subtune_erf" not in text
    text = text_of(FORMS[form], "float32")
    assert "subtune_gelu" not in text
    assert text.count("subtune_wide_gelu(") == 2


def test_erf_of_something_else_is_no_gelu() -> None:
    text = text_of(lambda x: x * (HALF + tirx.erf(x) * HALF), "float16")
    assert "subtune_gelu" not in text
    assert "subtune_erf(" in text

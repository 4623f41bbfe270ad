"""Denormal numbers count as zero where nobody can tell, in every thread, and the caller's arithmetic stays his own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

import subtune
from subtune.backends.cpu.device import CPUModel

_TINY = np.float32(1e-40)


def model(tail: tuple[str, ...], rows: int, scale: float) -> ModelProto:
    """x times `scale`, through `tail`, and times 1 / scale, which shows what was left of it."""
    factors = {"small": scale, "large": 1 / scale}
    ops = (("Mul", "small"), *((one, None) for one in tail), ("Mul", "large"))
    nodes, last = [], "x"
    for i, (name, factor) in enumerate(ops):
        nodes.append(helper.make_node(name, [last, factor] if factor else [last], [f"v{i}"]))
        last = f"v{i}"
    given = [numpy_helper.from_array(np.array(value, np.float32), name) for name, value in factors.items()]
    x, y = (helper.make_tensor_value_info(name, 1, [rows, 4096]) for name in ("x", last))
    return helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], given), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )


def product() -> ModelProto:
    """x @ w @ w: the first result is denormal where x is 1e-30."""
    w = numpy_helper.from_array(np.diag(np.full(256, 1e-10)).astype(np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "v"], ["y"])]
    v = numpy_helper.from_array(np.diag(np.full(256, 1e10)).astype(np.float32), "v")
    x, y = (helper.make_tensor_value_info(name, 1, [64, 256]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], [w, v])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def x86(device: CPUModel) -> None:
    if not device.has_costly_denormals:
        pytest.skip("a processor whose denormals cost nothing")


@pytest.mark.usefixtures("x86")
@pytest.mark.parametrize(("exact", "left"), [(False, 0.0), (True, 1e-30)])
def test_all_threads_take_them_for_zero(exact: bool, left: float) -> None:
    artifact = subtune.compile(product(), tune=False, exact=exact, threads=2)
    x = np.full((64, 256), 1e-30, np.float32)
    y = artifact.run({"x": x})["y"]
    np.testing.assert_allclose(y, np.full_like(y, left), rtol=1e-4)
    assert (artifact.run({"x": x * 1e30})["y"] == 1).all()


@pytest.mark.usefixtures("x86")
def test_the_caller_keeps_them() -> None:
    artifact = subtune.compile(product(), tune=False, threads=2)
    x = np.full((64, 256), 1e-30, np.float32)
    with ThreadPoolExecutor(1) as other:
        for run in (lambda f: f(), lambda f: other.submit(f).result()):
            run(lambda: artifact.run({"x": x}))
            assert run(lambda: _TINY * np.ones(64, np.float32)).all()


def test_what_shows_them_keeps_them() -> None:
    artifact = subtune.compile(model(("Abs", "Log", "Exp"), 8, 1e-38), tune=False)
    x = np.full((8, 4096), 0.01, np.float32)
    (y,) = artifact.run({"x": x}).values()
    np.testing.assert_allclose(y, x, rtol=1e-2)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", ["Tanh", "Sinh", "Asinh", "Atanh"])
def test_functions_keep_their_digits_near_zero(name: str, exact: bool) -> None:
    artifact = subtune.compile(model((name,), 8, 1e-6), tune=False, exact=exact)
    x = np.random.default_rng(1).standard_normal((8, 4096)).astype(np.float32)
    (y,) = artifact.run({"x": x}).values()
    np.testing.assert_allclose(y, x, rtol=1e-6)

"""A kind of device that subtune does not know goes through the whole pipeline: a folder, and one line in BACKENDS."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx.helper as h
import pytest

import subtune
from subtune import backends
from subtune.core.errors import TargetError
from subtune.database import Database
from subtune.driver import compile_model

FOLDER = Path(__file__).parent
ROOM = FOLDER / "scalar"


@pytest.fixture
def scalar(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))  # for the worker processes
    from scalar.backend import BACKEND

    monkeypatch.setattr(backends, "BACKENDS", (*backends.BACKENDS, BACKEND))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "scalar"]:
        del sys.modules[name]


def model():
    """relu(x @ w) and a softmax: a contraction with its epilogue, and a row-wise reduction."""
    weights = h.make_tensor("w", 1, [16, 12], np.random.default_rng(0).normal(size=192).astype("float32"))
    nodes = [
        h.make_node("MatMul", ["x", "w"], ["m"]),
        h.make_node("Relu", ["m"], ["r"]),
        h.make_node("Softmax", ["r"], ["y"]),
    ]
    x, y = h.make_tensor_value_info("x", 1, [8, 16]), h.make_tensor_value_info("y", 1, [8, 12])
    return h.make_model(h.make_graph(nodes, "small", [x], [y], [weights]))


@pytest.mark.usefixtures("scalar")
def test_a_third_backend(tmp_path: Path) -> None:
    with Database(tmp_path / "t.db") as database:
        report = compile_model(model(), tmp_path / "m.subtune", target="scalar", topk=2, database=database)
        assert {record.device for record in database.list_records()} == {
            f"scalar/{backends.device_of('auto').model.name}"
        }
    assert [row.tried for row in report.rows] == [2, 2]
    artifact = subtune.load(tmp_path / "m.subtune")
    assert artifact.manifest.kind == "scalar"
    x = np.random.default_rng(1).normal(size=(8, 16)).astype("float32")
    weights = np.random.default_rng(0).normal(size=192).astype("float32").reshape(16, 12)
    e = np.exp(np.maximum(x @ weights, 0))
    np.testing.assert_allclose(artifact.run({"x": x})["y"], e / e.sum(1, keepdims=True), rtol=1e-4)


@pytest.mark.usefixtures("scalar")
def test_it_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="bf16 is not for a scalar thread"):
        compile_model(model(), tmp_path / "m.subtune", target="scalar", precision="bf16")


def test_it_is_small() -> None:
    assert sum(len(path.read_text().splitlines()) for path in ROOM.glob("*.py")) <= 150

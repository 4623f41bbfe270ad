"""The examples for Triton and KServe, as far as they go without the servers."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from subtune.artifact import load
from tests.artifact.dynamic_model import arrays
from tests.deploy import serving_doubles as doubles

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


@pytest.fixture
def expected(dynamic_artifact):
    return load(dynamic_artifact).run(arrays(2, 4, 3))


def test_triton(dynamic_artifact, expected, tmp_path, monkeypatch):
    doubles.put(monkeypatch, {"triton_python_backend_utils": doubles.triton()})
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "classifier.subtune").symlink_to(dynamic_artifact)
    model = runpy.run_path(str(EXAMPLES / "triton_model.py"))["TritonPythonModel"]()
    model.initialize({"model_repository": str(tmp_path), "model_version": "1"})
    good = [doubles.Tensor(name, array) for name, array in arrays(2, 4, 3).items()]
    bad = [doubles.Tensor(name, array.astype(np.float64)) for name, array in arrays(2, 4, 3).items()]
    answers = model.execute([good, bad, good])
    for answer in answers[::2]:
        for tensor in answer.output_tensors():
            np.testing.assert_array_equal(tensor.as_numpy(), expected[tensor.name()])
        assert len(answer.output_tensors()) == len(expected)
    assert answers[1].has_error()
    assert "input x has dtype float64" in answers[1].error().message()


def test_kserve(dynamic_artifact, expected, monkeypatch):
    doubles.put(monkeypatch, doubles.kserve())
    model = runpy.run_path(str(EXAMPLES / "kserve_model.py"), run_name="example")["Classifier"](
        "classifier", str(dynamic_artifact)
    )
    assert model.load()

    def request(dtype: str) -> doubles.Request:
        given = {name: array.astype(dtype) if dtype else array for name, array in arrays(2, 4, 3).items()}
        inputs = [SimpleNamespace(name=name, as_numpy=lambda array=array: array) for name, array in given.items()]
        return doubles.Request(inputs, "17")

    answer = model.predict(request(""))
    assert (answer.id, answer.model_name) == ("17", "classifier")
    for output in answer.outputs:
        np.testing.assert_array_equal(output.as_numpy(), expected[output.name])
    assert len(answer.outputs) == len(expected)
    with pytest.raises(doubles.InvalidInput, match="input x has dtype float64"):
        model.predict(request("float64"))

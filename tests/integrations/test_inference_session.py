"""`subtune.InferenceSession` gives what ONNX Runtime's gives on the same model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import subtune
from subtune.core.errors import ArtifactError, InputError
from tests.artifact.dynamic_model import arrays, expected, write_dynamic

ort = pytest.importorskip("onnxruntime")
InvalidArgument = ort.capi.onnxruntime_pybind11_state.InvalidArgument
X = np.random.default_rng(0).standard_normal((4, 32), np.float32)


@pytest.fixture(scope="module")
def both(small_artifact, small_model):
    """ONNX Runtime's session and subtune's."""
    model = onnx.load(small_model)
    theirs = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return theirs, subtune.InferenceSession(small_artifact, providers=["CPUExecutionProvider"])


def described(arguments):
    return [(one.name, one.shape, one.type) for one in arguments]


def test_they_describe_themselves_alike(both):
    theirs, ours = both
    assert described(ours.get_inputs()) == described(theirs.get_inputs())
    assert described(ours.get_outputs()) == described(theirs.get_outputs())
    assert ours.get_providers() == theirs.get_providers() == ["CPUExecutionProvider"]
    assert ours.get_modelmeta().graph_name == theirs.get_modelmeta().graph_name


@pytest.mark.parametrize("names", [None, [], ["y"], ["s", "y"], ["s", "s"]])
def test_they_give_the_same(both, names):
    theirs, ours = (session.run(names, {"x": X}) for session in both)
    assert len(ours) == len(theirs)
    for own, other in zip(ours, theirs, strict=True):
        assert own.dtype == other.dtype
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-4)


def test_lists_and_their_values_are_taken(both):
    _, ours = both
    wanted = ours.run(["y"], {"x": X})[0]
    np.testing.assert_array_equal(ours.run(["y"], {"x": X.tolist()})[0], wanted)
    np.testing.assert_array_equal(ours.run(["y"], {"x": ort.OrtValue.ortvalue_from_numpy(X)})[0], wanted)


@pytest.mark.parametrize(
    ("names", "feed", "message"),
    [
        (["z"], {"x": X}, "there is no output z: the model gives y, s"),
        (None, {"x": X.astype("float64")}, "input x has dtype float64"),
        (None, {"x": X[:2]}, "input x has shape"),
        (None, {"y": X}, "no array for x; unknown input y"),
    ],
)
def test_both_refuse(both, names, feed, message):
    theirs, ours = both
    with pytest.raises((ValueError, RuntimeError, InvalidArgument)):
        theirs.run(names, feed)
    with pytest.raises(InputError, match=message):
        ours.run(names, feed)


def test_options(small_artifact, small_model):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = subtune.InferenceSession(small_artifact, options)
    assert session.artifact.threads == 1
    assert session.get_session_options() is options
    with pytest.raises(InputError, match="not from a model's bytes"):
        subtune.InferenceSession(small_model.read_bytes())
    with pytest.raises(ArtifactError, match="is not an artifact"):
        subtune.InferenceSession(small_model)


def test_dimensions_that_vary(tmp_path):
    session = subtune.InferenceSession(write_dynamic(tmp_path / "dynamic.subtune"))
    assert described(session.get_inputs()) == [
        ("x", ["batch", "seq", 4], "tensor(float)"),
        ("cache", ["batch", "past", 4], "tensor(float)"),
        ("mask", ["batch", "past + seq"], "tensor(int64)"),
    ]
    for instance in ((1, 0, 1), (4, 8, 5)):
        inputs = arrays(*instance)
        y, sums = session.run(["y", "sums"], inputs)
        wanted = expected(**inputs)
        np.testing.assert_allclose(y, wanted["y"], rtol=1e-5)
        np.testing.assert_allclose(sums, wanted["sums"], rtol=1e-5, atol=1e-5)

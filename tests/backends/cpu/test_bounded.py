"""A kernel on which LLVM does not end is compiled without optimisation, the others with it."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm

import subtune
from subtune.backends.cpu.lowering import bounded, pipeline
from subtune.core.errors import ArtifactError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no limit elsewhere")


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> onnx.ModelProto:
    """LLVM takes 2 ** 44 steps for the maximum without our pass against that."""
    monkeypatch.setattr(pipeline, "begun_at_one", lambda: tvm.transform.Sequential([]))
    monkeypatch.setattr(bounded, "BASE_S", 2.0)
    monkeypatch.setattr(bounded, "EACH_S", 0.0)
    monkeypatch.setattr(bounded, "KERNEL_S", 2.0)
    text = "g (float[1, 1, 48, 44] x) => (float[1, 1] y, float[1, 1, 44, 48] z) {"
    text += "y = ReduceMax<axes=[2, 3], keepdims=0>(x) z = Transpose<perm=[0, 1, 3, 2]>(x) }"
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 13]> {text}')


def test_the_rest_is_optimised(endless: onnx.ModelProto, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        artifact = subtune.compile(endless, tune=False, verify=False, database=tmp_path / "db")
    assert "not optimised now: " in caplog.text
    assert "tir_max" in caplog.text
    x = np.random.default_rng(0).standard_normal((1, 1, 48, 44)).astype("float32")
    found = artifact.run({"x": x})
    assert found["y"] == x.max()
    np.testing.assert_array_equal(found["z"], x.transpose(0, 1, 3, 2))


def test_what_does_not_end_so_either_is_refused(
    endless: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "BASE_S", 0.5)
    monkeypatch.setattr(bounded, "KERNEL_S", 0.5)
    monkeypatch.setattr(bounded, "_unoptimised", lambda mod, *_: mod)
    with pytest.raises(ArtifactError, match="the model does not compile: it took longer than"):
        subtune.compile(endless, tune=False, verify=False, output=tmp_path / "m.subtune", database=tmp_path / "db")
    assert not list(tmp_path.glob("*subtune*"))

"""`subtune.quantize`, its report, and that what it makes is compiled to ONNX Runtime's results."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import subtune
from subtune import models
from subtune.core.errors import InputError, SubtuneError
from subtune.driver import compile_model
from subtune.frontends.onnx.reference import onnxruntime_reference
from tests.whole import IS_WHOLE

pytest.importorskip("onnxruntime")

SEEDS = range(100, 104)
MLP = "zoo:mlp?image=8&batch=2&hidden=32"


def distance(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    """The largest of the outputs' root mean square errors, of the root mean square of `b`."""
    wide = [(a[name].astype(np.float64), b[name].astype(np.float64)) for name in b]
    return max(float(np.sqrt(np.mean((x - y) ** 2)) / np.sqrt(np.mean(y**2))) for x, y in wide)


INTEGERS = [("resnet18", 21), ("bert", 15), ("squeezenet", 26)]
INTEGERS += [("mobilenet_v2", 53), ("resnet50", 54)] if IS_WHOLE else []


@pytest.mark.parametrize(("name", "integers"), INTEGERS)
def test_zoo_models_agree_with_onnx_runtime(name: str, integers: int, tmp_path: Path) -> None:
    """Their integers are ONNX Runtime's. Where floats between them lie on the edge of two, an input may have others."""
    model = models.reduced(f"{name}-int8")
    report = compile_model(
        model, tmp_path / "m.subtune", tune=False, database=tmp_path / "t.db", verify=False, threads=2
    )
    assert report.products["uint8"] == integers
    artifact, reference = subtune.load(tmp_path / "m.subtune"), onnxruntime_reference(model)
    assert reference
    away = []
    for seed in SEEDS:
        inputs = models.example_inputs(model, seed)
        away.append(distance(artifact.run(inputs), reference(inputs)))
    assert sorted(away)[-2] < 1e-5, away
    assert max(away) < 0.05, away


def test_what_is_left_in_float(tmp_path: Path) -> None:
    """Rounding attention's own products and the pieces of norms as well would cost more than 10 dB."""
    report = subtune.quantize(models.reduced("bert"), random=4)
    assert report.products == (13, 13)
    assert min(report.losses.outputs.values()) > 28


def test_the_report(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    report = subtune.quantize(MLP, path, random=3, exclude="Gemm_3")
    assert onnx.load(path).SerializeToString() == report.model.SerializeToString()
    assert os.listdir(tmp_path) == ["m.onnx"], "nothing else is left"
    found = json.loads(report.to_json())
    assert found["products"] == {"quantised": 2, "all": 3}
    assert found["samples"] == found["compared_samples"] == 3
    assert found["path"] == str(path)
    assert found["bytes"]["quantised"] < found["bytes"]["float"]
    assert found["outputs_db"].keys() == {"output"}
    assert [layer["name"] for layer in found["layers"]] == [layer.name for layer in report.losses.layers]
    assert {"Gemm_1", "Gemm_5"} <= {layer["name"] for layer in found["layers"]}
    assert all(value is None or math.isfinite(value) for layer in found["layers"] for value in list(layer.values())[3:])
    text = str(report)
    assert "2 of 3 products in 8 bits, minmax of 3 samples" in text
    assert "not those of real data" in text
    assert f"wrote {path}" in text
    assert text.index(report.losses.layers[0].name) < text.index(report.losses.layers[-1].name)
    assert not [entry for entry in report.model.metadata_props if "subtune" in entry.key], (
        "it is not the zoo's any more"
    )


def test_data_and_random_inputs_that_are_the_same_give_the_same() -> None:
    model = models.build("mlp", image=8, batch=2, hidden=32)
    samples = np.stack([models.example_inputs(model, seed)["input"] for seed in range(3)])
    by_data = subtune.quantize(model, data=[{"input": samples[:2]}, {"input": samples[2:]}])
    by_seed = subtune.quantize(model, random=3)
    assert by_data.model == by_seed.model
    assert by_data.samples == 3
    assert not by_data.notes


def test_symbols_get_values() -> None:
    model = models.build("mlp", image=8, batch=2, hidden=32)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    report = subtune.quantize(model, random=1, shapes={"n": 4})
    assert report.model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 4


def test_files_that_are_read_are_not_written(tmp_path: Path) -> None:
    path, data = tmp_path / "m.onnx", tmp_path / "d.npz"
    onnx.save(models.build("mlp", image=8, batch=2, hidden=32), path)
    np.savez(data, input=np.zeros((2, 8, 8, 3), np.float32))
    (tmp_path / "link.onnx").symlink_to(path)
    before = path.read_bytes(), data.read_bytes()
    for target in (path, data, tmp_path / "link.onnx", tmp_path / "x" / ".." / "m.onnx"):
        with pytest.raises(SubtuneError, match=r"is read and cannot be written|no directory to write in"):
            subtune.quantize(path, target, data=data)
    assert before == (path.read_bytes(), data.read_bytes())


def test_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs samples"):
        subtune.quantize(MLP)
    for count in (0, -1, 1.5, True):
        with pytest.raises(InputError, match="whole number above zero"):
            subtune.quantize(MLP, random=count)  # type: ignore[arg-type]
    for name in [one for one in sys.modules if one.startswith("onnxruntime")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SubtuneError, match=r"needs ONNX Runtime.*pip install 'subtune\[ort\]'"):
        subtune.quantize(MLP, random=1)
    with pytest.raises(SubtuneError, match=r"pip install 'subtune\[ort\]'"):
        subtune.compile("zoo:mlp-int8?image=8&batch=2&hidden=32", tune=False)

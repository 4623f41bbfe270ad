"""`subtune quantize`: it writes a model and says what is lost, and mistakes cost one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from subtune import models
from subtune.cli import main

pytest.importorskip("onnxruntime")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a model, data, and what is neither."""
    monkeypatch.chdir(tmp_path)
    model = models.build("mlp", image=8, batch=2, hidden=32)
    onnx.save(model, "m.onnx")
    onnx.save(models.build("mlp", image=8, batch=2, hidden=32, dtype="float16"), "half.onnx")
    onnx.save(models.build("mlp-int8", image=8, batch=2, hidden=32), "int8.onnx")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(model, "dynamic.onnx")
    np.savez("d.npz", input=np.random.default_rng(0).standard_normal((4, 8, 8, 3)).astype("float32"))
    np.savez("named.npz", image=np.zeros((2, 8, 8, 3), "float32"))
    np.savez("shaped.npz", input=np.zeros((2, 8, 8, 4), "float32"))
    np.savez("empty.npz")
    np.save("one.npy", np.zeros((2, 8, 8, 3), "float32"))
    Path("text.npz").write_text("no archive")
    Path("folder").mkdir()
    return tmp_path


def test_a_model_is_written(capfd: Any) -> None:
    assert main("quantize m.onnx --data d.npz d.npz -o q.onnx --exclude Gemm_3 --calibration percentile".split()) == 0
    out, err = capfd.readouterr()
    assert "2 of 3 products in 8 bits, percentile of 4 samples" in out
    assert out.endswith("wrote q.onnx\n")
    assert err == ""
    assert any(node.op_type == "QuantizeLinear" for node in onnx.load("q.onnx").graph.node)


def test_json_and_the_default_name(capfd: Any) -> None:
    assert main("quantize dynamic.onnx --shape n=3 --random 2 --json --format qoperator".split()) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["path"] == "dynamic.int8.onnx"
    assert found["notes"]
    assert any(node.op_type == "QGemm" for node in onnx.load("dynamic.int8.onnx").graph.node)
    assert main(["quantize", "zoo:mlp?image=8&batch=2&hidden=32", "--random", "1"]) == 0
    assert Path("mlp.int8.onnx").is_file()


MISTAKES = {
    "no data": ("m.onnx", "--random 16"),
    "both": ("m.onnx --data d.npz --random 2", "not on both"),
    "no such file": ("m.onnx --data none.npz", "There is no file 'none.npz'"),
    "no archive": ("m.onnx --data text.npz", "not a readable .npz"),
    "one array": ("m.onnx --data one.npy", "without a name"),
    "an empty archive": ("m.onnx --data empty.npz", "no arrays in empty.npz"),
    "an empty directory": ("m.onnx --data folder", "no .npz file"),
    "another name": ("m.onnx --data named.npz", "named image, but the inputs of the model input"),
    "another shape": ("m.onnx --data shaped.npz", "not [samples, 2, 8, 8, 3]"),
    "no model": ("none.onnx --random 1", "There is no file 'none.onnx'"),
    "a model of halves": ("half.onnx --random 1", "computes in float16"),
    "a quantised model": ("int8.onnx --random 1", "quantised already"),
    "a model without sizes": ("dynamic.onnx --random 1", "give fixed sizes"),
    "a node that is none": ("m.onnx --random 1 --exclude Gemm_2", "did you mean Gemm_"),
    "all nodes": ("m.onnx --random 1 --exclude Gemm_1 Gemm_3 Gemm_5", "that may be quantised"),
    "the model itself": ("m.onnx --random 1 -o ./m.onnx", "is read and cannot be written"),
    "the data": ("m.onnx --data d.npz -o d.npz", "is read and cannot be written"),
    "nowhere": ("m.onnx --random 1 -o no/q.onnx", "cannot write"),
    "a directory": ("m.onnx --random 1 -o folder", "it is a directory"),
    "a name too long": (f"m.onnx --random 1 -o {'x' * 300}", "cannot write"),
    "a calibration that is none": ("m.onnx --random 1 --calibration mean", "invalid choice: 'mean'"),
    "no samples": ("m.onnx --random 0", "whole number above zero"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_cost_one_line(mistake: str, place: Path, capfd: Any) -> None:
    command, said = MISTAKES[mistake]
    before = {path.name for path in place.iterdir()}
    model = (place / "m.onnx").read_bytes()
    try:
        code = main(["quantize", *command.split()])
    except SystemExit as e:  # argparse's way
        code = int(e.code or 0)
    out, err = capfd.readouterr()
    assert (code, out) == (2, ""), err
    assert err.startswith("subtune: error: ")
    assert err.count("\n") == 1
    assert said in err
    assert {path.name for path in place.iterdir()} == before
    assert (place / "m.onnx").read_bytes() == model


@pytest.mark.parametrize(
    "command", ["quantize m.onnx --random 1", "compile zoo:mlp-int8 --no-tune", "zoo build mlp-int8 -o x"]
)
def test_without_onnx_runtime(command: str, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    for name in [one for one in sys.modules if one.startswith("onnxruntime")]:
        monkeypatch.setitem(sys.modules, name, None)
    assert main(command.split()) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert "pip install 'subtune[ort]'" in err

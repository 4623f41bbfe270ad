"""Relay models as a new user meets them: files, the command line, `subtune.compile`, FastDlight's entry."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from tvm import tirx

import subtune
from subtune.cli import main
from subtune.core.errors import ModelError, TargetError
from subtune.frontends import load

TEXT = """#[version = "0.0.5"]
def @main(%x: Tensor[(2, 3), float32], %w: Tensor[(4, 3), float32], %b: Tensor[(4), float32]) {
  %0 = nn.bias_add(nn.dense(%x, %w, units=4), %b);
  nn.relu(%0)
}
"""
X = np.float32([[1, 2, 3], [-1, 0, 1]])
W = np.arange(12, dtype=np.float32).reshape(4, 3) - 5
B = np.float32([0.5, 1, -1, 0])


def said(capsys, *arguments: str) -> str:
    """What a refused command says."""
    assert main(list(arguments)) == 2
    error = capsys.readouterr().err
    assert error.startswith("subtune: error: ")
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("empty.relay", b"", "empty"),
        ("garbage.relay", bytes(range(256)), "is no text"),
        ("garbage.relay", b"\x00\x01\x02", "does not belong here"),
        ("cut.relay", TEXT[: TEXT.index("units")].encode(), "truncated"),
        ("noversion.relay", TEXT.split("\n", 1)[1].encode(), "no values for 2 parameters (w, b)"),
        ("windows.relay", TEXT.replace("\n", "\r\n").encode(), "no values for 2 parameters (w, b)"),
        ("bom.txt", b"\xef\xbb\xbf" + TEXT.encode(), "no values for 2 parameters (w, b)"),
        ("unknown.relay", TEXT.replace("nn.relu", "nn.what").encode(), "no values"),
        ("other.json", b"[1, 2]", "not what tvm.ir.save_json writes"),
        ("other.json", b'{"a": 1}', "not what tvm.ir.save_json writes"),
        ("nosuffix", TEXT.encode(), "no values for 2 parameters (w, b)"),
        ("words.txt", b"these are words", "does not belong here"),
    ],
)
def test_bad_files(name, data, reason, tmp_path, capsys):
    path = tmp_path / name
    path.write_bytes(data)
    assert reason in said(capsys, "compile", str(path), "-o", str(tmp_path / "out.subtune"))


def test_missing_file(tmp_path, capsys):
    assert "There is no file" in said(capsys, "inspect", str(tmp_path / "no.relay"))
    assert "There is no file" in said(capsys, "compile", str(tmp_path / "no.json"))


def test_parameters_are_for_relay_models():
    with pytest.raises(ModelError, match="are for Relay models"):
        subtune.compile("zoo:mlp?image=8", random_params=True)


def test_the_command_line(tmp_path, capsys):
    path, params, out = tmp_path / "dense.relay", tmp_path / "p.npz", tmp_path / "dense.subtune"
    path.write_text(TEXT)
    np.savez(params, w=W, b=B)
    arguments = ["compile", str(path), "--params", str(params), "-o", str(out), "--no-tune", "--threads", "1"]
    assert main([*arguments, "--db", str(tmp_path / "db")]) == 0
    printed = capsys.readouterr().out
    assert "inputs: x: float32[2, 3]" in printed
    assert "agrees with the untuned build" in printed
    artifact = subtune.load(out)
    np.testing.assert_allclose(artifact.run({"x": X})["output"], np.maximum(X @ W.T + B, 0), rtol=1e-5)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["source"]["model"] == str(path)
    assert main(["inspect", str(path), "--inputs", "x, w,b"]) == 0
    assert "matmul" in capsys.readouterr().out
    assert "no other framework runs Relay" in said(capsys, "bench", str(out), "--against", "onnxruntime")
    assert "'w' has the shape" in said(capsys, "compile", str(path), "--params", str(_wrong(tmp_path)), "-o", str(out))


def _wrong(tmp_path):
    np.savez(tmp_path / "wrong.npz", w=W.T, b=B)
    return tmp_path / "wrong.npz"


def test_the_parser_is_loaded_for_relay_only():
    code = "import sys; from subtune.frontends import load; load('zoo:mlp?image=8'); sys.exit('lark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_from_python():
    artifact = subtune.compile(TEXT, params={"w": W, "b": B}, tune=False, threads=1)
    np.testing.assert_allclose(artifact.run({"x": X})["output"], np.maximum(X @ W.T + B, 0), rtol=1e-5)
    assert [spec.name for spec in load(TEXT.encode(), {}, subtune.frontends.Parameters(random=True)).inputs] == ["x"]


def test_apply_opt_before_tuning():
    mod = subtune.apply_opt_before_tuning(TEXT, {"w": W, "b": B}, "nvidia/nvidia-a100")
    kernels = [func for _, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)]
    assert len(kernels) == 1  # dense, bias and relu are one
    assert not any("tirx.is_scheduled" in func.attrs for func in kernels)
    assert len(mod["main"].params) == 1
    assert len(subtune.apply_opt_before_tuning(TEXT, None, subtune.CUDA("H100"))["main"].params) == 1
    with pytest.raises(TargetError):
        subtune.apply_opt_before_tuning(TEXT, None, "no-such-gpu")

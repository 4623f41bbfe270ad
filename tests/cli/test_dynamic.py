"""`run`, `inspect` and `bench` of an artifact whose shapes vary."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from subtune.bench.artifact_race import bench
from subtune.cli import main
from tests.artifact.dynamic_model import arrays, expected, write_dynamic


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_dynamic(tmp_path_factory.mktemp("artifact") / "dynamic.subtune"))


@pytest.mark.parametrize(
    ("given", "shape", "said"),
    [
        ([], [4, 13, 4], "seq=5 batch=4 past=8"),
        (["seq=2"], [4, 10, 4], "seq=2 batch=4 past=8"),
        (["past=0", "batch=1", "seq=1"], [1, 1, 4], "seq=1 batch=1 past=0"),
    ],
)
def test_random_arrays_have_the_shapes_that_were_chosen(artifact, capsys, given, shape, said):
    options = [option for text in given for option in ("--shape", text)]
    assert main(["run", artifact, "--json", *options]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["outputs"][0]["shape"] == shape
    assert f"running on random arrays of {said}\n" in printed.err


def test_files_say_the_shapes_themselves(artifact, capsys, tmp_path):
    inputs = arrays(2, 4, 3)
    options = []
    for name, array in inputs.items():
        np.save(tmp_path / f"{name}.npy", array)
        options += ["--input", f"{name}={tmp_path / name}.npy"]
    assert main(["run", artifact, *options, "--output", str(tmp_path / "out.npz")]) == 0
    with np.load(tmp_path / "out.npz") as outputs:
        for name, wanted in expected(**inputs).items():
            np.testing.assert_allclose(outputs[name], wanted, rtol=1e-5, atol=1e-5)
    capsys.readouterr()
    assert main(["run", artifact, *options, "--shape", "seq=3"]) == 2
    assert "--shape is for random arrays: those of --input have shapes of their own" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "bench"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("seq=6", "--shape: seq is 6, and the model was compiled for seq=1..5"),
        ("batch=3", "--shape: batch is 3, and the model was compiled for batch=1,2,4"),
        ("sequence=3", "--shape sequence=3: the model dynamic has the symbols seq, batch, past"),
        ("seq", "--shape 'seq' is not of the form SYMBOL=N, such as seq=1"),
        ("seq=1,2", "--shape 'seq=1,2' is not of the form SYMBOL=N"),
        ("seq=" + "1" * 5000, "is not of the form SYMBOL=N"),
    ],
)
def test_shapes_that_there_are_not(artifact, capsys, command, given, message):
    assert main([command, artifact, "--shape", given]) == 2
    error = capsys.readouterr().err
    assert error.startswith("subtune: error: ")
    assert message in error
    assert error.count("\n") == 1


def test_a_static_artifact_has_no_shapes_to_choose(small_artifact, capsys):
    for command in ("run", "bench"):
        assert main([command, str(small_artifact), "--shape", "seq=3"]) == 2
        assert "the model small has no symbolic dimensions: leave --shape out" in capsys.readouterr().err


def test_inspect_shows_symbols_and_what_they_may_be(artifact, capsys):
    assert main(["inspect", artifact]) == 0
    text = capsys.readouterr().out
    assert text.startswith("dynamic: (x: float32[batch, seq, 4], cache: float32[batch, past, 4], mask: ")
    assert "\ncompiled for seq=1..5 batch=1,2,4 past=0..8: 135 shapes\n" in text
    assert main(["inspect", artifact, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["inputs"][2]["shape"] == ["batch", "past + seq"]
    assert shown["domain"]["symbols"][0]["text"] == "seq=1..5"


def test_bench_runs_the_shape_that_was_chosen(artifact, capsys):
    options = ["--against", "none", "--rounds", "1", "--round-time", "10ms", "--json"]
    assert main(["bench", artifact, *options, "--shape", "seq=2", "--shape", "past=1"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["name"] == "dynamic seq=2 batch=4 past=1"
    assert [row["framework"] for row in report["rows"]] == ["subtune"]
    assert bench(Path(artifact), against=(), rounds=1, round_s=0.01).name == "dynamic seq=5 batch=4 past=8"

"""`subtune compile` of several models or a directory: an artifact of each; one that fails does not stop the rest."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from subtune.artifact import load
from subtune.cli import main
from subtune.cli.compile_many import models_of, outputs_of
from subtune.core.errors import ModelError
from tests.small_model import small_onnx


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Two models that compile, one that is none, and something else."""
    monkeypatch.chdir(tmp_path)
    models = tmp_path / "models"
    models.mkdir()
    onnx.save(small_onnx(), models / "b.onnx")
    (models / "broken.onnx").write_bytes(b"not a model")
    (models / "readme.txt").write_text("about the models")
    onnx.save(small_onnx(), models / "a.onnx")
    return tmp_path


def test_a_directory(place, capsys):
    assert main(["compile", "models", "-o", "out", "--no-tune"]) == 2
    said = capsys.readouterr()
    assert sorted(path.name for path in (place / "out").iterdir()) == ["a.subtune", "b.subtune"]
    for name in ("a", "b"):
        assert load(place / "out" / f"{name}.subtune").manifest.name == name
    assert [line for line in said.out.splitlines() if line.startswith("==")] == [
        "== 1/3 models/a.onnx",
        "== 2/3 models/b.onnx",
        "== 3/3 models/broken.onnx",
    ]
    assert said.out.splitlines()[-1] == "2 of 3 models compiled"
    (complaint,) = [line for line in said.err.splitlines() if line.startswith("subtune:")]
    assert complaint.startswith("subtune: models/broken.onnx: error: ")


def test_several_as_json(place, capsys):
    models = ["models/broken.onnx", "models/a.onnx", "models/a.onnx", "none.onnx"]
    assert main(["compile", *models, "--no-tune", "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert report["compiled"] == 1
    assert [(row["model"], row["artifact"]) for row in report["models"]] == [
        ("models/broken.onnx", None),
        ("models/a.onnx", "a.subtune"),
        ("none.onnx", None),
    ]
    errors = [row["error"] for row in report["models"]]
    assert errors[1] is None
    assert "models/broken.onnx" in errors[0]
    assert report["models"][1]["report"]["path"] == "a.subtune"
    assert report["models"][0]["report"] is None


def test_all_that_compile_exit_with_0(place):
    (place / "models" / "broken.onnx").unlink()
    assert main(["compile", "models", "-o", "out", "--no-tune"]) == 0


@pytest.mark.slow
def test_dimensions_that_vary(place, capsys):
    x, y = (onnx.helper.make_tensor_value_info(name, 1, ["rows", 8]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "varying", [x], [y])
    onnx.save(onnx.helper.make_model(graph), place / "varying.onnx")
    domain = ["--dynamic", "rows=1..4"]
    assert main(["compile", "varying.onnx", "models/a.onnx", "-o", "out", "--no-tune", *domain]) == 2
    assert "subtune: models/a.onnx: error: " in capsys.readouterr().err
    assert load("out/varying.subtune").manifest.domain.names == ("rows",)


def test_a_bug_does_not_stop_the_rest(place, capsys, monkeypatch):
    import subtune.cli.compile as command

    done = command.compile_one

    def fails_once(args, model, output, dump):
        if model.endswith("a.onnx"):
            raise ZeroDivisionError("of our own")
        return done(args, model, output, dump)

    monkeypatch.setattr(command, "compile_one", fails_once)
    (place / "models" / "broken.onnx").unlink()
    assert main(["compile", "models", "--no-tune"]) == 1
    assert "subtune: models/a.onnx: internal error: ZeroDivisionError: of our own" in capsys.readouterr().err
    assert (place / "b.subtune").is_dir()


def test_ctrl_c_ends_it(place, capsys, monkeypatch):
    import subtune.cli.compile as command

    class Interrupted:
        is_interrupted = True

        def to_json(self):
            return "{}"

    monkeypatch.setattr(command, "compile_one", lambda *given: Interrupted())
    assert main(["compile", "models", "--json"]) == 130
    assert len(json.loads(capsys.readouterr().out)["models"]) == 1


class TestNames:
    def test_models_of_a_directory(self, place):
        names = ["models/a.onnx", "models/b.onnx", "models/broken.onnx"]
        assert models_of(["models"]) == names
        assert models_of(["zoo:mlp?batch=2", "models/b.onnx", "models"]) == [
            "zoo:mlp?batch=2", "models/b.onnx", "models/a.onnx", "models/broken.onnx",
        ]  # fmt: skip
        (place / "empty").mkdir()
        with pytest.raises(ModelError, match="empty has no ONNX file"):
            models_of(["empty"])

    def test_outputs(self, place):
        assert outputs_of(["zoo:mlp?batch=2", "x/y.onnx"], None) == ["mlp.subtune", "y.subtune"]
        assert outputs_of(["y.onnx"], "new") == [str(Path("new") / "y.subtune")]
        assert (place / "new").is_dir()

    @pytest.mark.parametrize(
        ("models", "output", "message"),
        [
            (["a/m.onnx", "c.onnx", "b/m.onnx"], None, r"a/m.onnx, b/m.onnx would all become m.subtune"),
            (["a.onnx", "b.onnx"], "out.subtune", r"-o out.subtune is for one model"),
            (["a.onnx", "b.onnx"], "models/readme.txt", r"no artifacts can be put in models/readme.txt"),
            (["a.onnx", "b.onnx"], "no/where", r"no artifacts can be put in no/where"),
        ],
    )
    def test_nothing_is_begun_where_names_do_not_fit(self, place, models, output, message):
        with pytest.raises(ModelError, match=message):
            outputs_of(models, output)

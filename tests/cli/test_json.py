"""What every command prints with --json is what docs/reference/json.md says, field by field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from subtune import models
from subtune.cli import main
from tests.artifact.dynamic_model import write_dynamic
from tests.cli.json_reference import Table, tables
from tests.dynamic.models import layer

TABLES = tables()


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model and its artifact, tuned a little into the module's own database."""
    place = tmp_path_factory.mktemp("json")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        onnx.save(models.build("mlp", batch=4, image=8, hidden=16), place / "mlp.onnx")
        onnx.save(layer(), place / "layer.onnx")
        assert main(["compile", "mlp.onnx", "--topk", "1"]) == 0
        write_dynamic(place / "dynamic.subtune")
        (place / "fleet.toml").write_text('topk = 1\n[[model]]\npath = "mlp.onnx"\n[[target]]\ntarget = "auto"\n')
        yield place


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def check(title: str, value: Any) -> None:
    assert list(TABLES[title].complaints(value)) == []


@pytest.mark.parametrize(
    ("title", "arguments"),
    [
        ("compile", ["compile", "mlp.onnx", "--topk", "1", "-o", "again.subtune"]),
        ("compile", ["compile", "mlp.onnx", "--no-tune", "-o", "plain.subtune"]),
        ("inspect, a model", ["inspect", "mlp.onnx"]),
        ("inspect, a model", ["inspect", "zoo:mlp-int8?image=8&batch=1"]),
        ("inspect, an artifact", ["inspect", "mlp.subtune"]),
        ("inspect, an artifact", ["inspect", "dynamic.subtune"]),
        ("inspect --pipeline", ["inspect", "--pipeline"]),
        ("run", ["run", "mlp.subtune"]),
        ("run", ["run", "dynamic.subtune"]),
        ("device", ["device"]),
        ("device", ["device", "--target", "H100"]),
        ("zoo list", ["zoo", "list"]),
        ("zoo build", ["zoo", "build", "mlp", "-o", "zoo.onnx", "--set", "image=8"]),
        ("db list", ["db", "list"]),
        ("db export", ["db", "export", "exchanged"]),
        ("db import", ["db", "import", "exchanged"]),
        ("db merge", ["db", "merge", "cache/subtune/tuning.db", "--db", "merged.db"]),
        ("tune-fleet", ["tune-fleet", "fleet.toml", "--dry-run"]),
        ("tune-fleet", ["tune-fleet", "fleet.toml"]),
        ("db gc", ["db", "gc"]),
    ],
)
def test_quick_commands(capsys, title, arguments):
    check(title, printed(capsys, *arguments))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("title", "arguments"),
    [
        ("compile", ["compile", "layer.onnx", "--dynamic", "seq=2,4", "--topk", "1"]),
        ("bench", ["bench", "mlp.subtune", "--rounds", "1", "--round-time", "10ms"]),
        ("compare", ["compare", "mlp.onnx", "--topk", "1"]),
        ("quantize", ["quantize", "mlp.onnx", "--random", "1"]),
        ("export", ["export", "mlp.subtune", "--standalone", "shipped"]),
    ],
)
def test_slow_commands(capsys, title, arguments):
    if title in ("bench", "quantize"):
        pytest.importorskip("onnxruntime")
    check(title, printed(capsys, *arguments))


def test_several_models(capsys, place):
    Path("broken.onnx").write_bytes(b"")
    report = printed(capsys, "compile", "mlp.onnx", "broken.onnx", "--no-tune", "-o", "many", code=2)
    check("compile, several models", report)
    check("compile", report["models"][0]["report"])


def test_a_workload(capsys):
    key = printed(capsys, "db", "list")[0]["workload_key"]
    check("db show", printed(capsys, "db", "show", key))


def test_a_calibration(capsys, monkeypatch):
    """Measuring takes a minute: what is printed is that of figures that were measured before."""
    from subtune.backends import calibration
    from subtune.backends.cpu.backend import CPUBackend

    found = calibration.found_today("here", {"grain_s": (2e-8, "timed")})
    monkeypatch.setattr(CPUBackend, "calibrate", lambda self, model: found)
    check("device --calibrate", printed(capsys, "device", "--calibrate", "-o", "own.json"))


class TestTable:
    TABLE = Table(
        "| field | type | meaning |\n|---|---|---|\n| `a` | integer or null | x |\n| `b` | list | x |\n"
        "| `b[]` | object | x |\n| `b[].c` | text, optional | x |\n| `d` | object | x |\n"
        "| `d{}` | true or false | x |\n"
    )

    @pytest.mark.parametrize(
        "value", [{"a": None, "b": [], "d": {}}, {"a": 1, "b": [{"c": "x"}, {}], "d": {"y": True}}]
    )
    def test_what_fits(self, value):
        assert list(self.TABLE.complaints(value)) == []

    @pytest.mark.parametrize(
        ("value", "complaint"),
        [
            ({"a": 1, "b": []}, "d is missing"),
            ({"a": 1, "b": [], "d": {}, "e": 2}, "e is '2', and should be not there"),
            ({"a": True, "b": [], "d": {}}, "a is 'True', and should be integer or null"),
            ({"a": 1, "b": [{"c": 1}], "d": {}}, "b[].c is '1', and should be text"),
            ({"a": 1, "b": [], "d": {"x": 0}}, "d{} is '0', and should be true or false"),
        ],
    )
    def test_what_does_not(self, value, complaint):
        assert list(self.TABLE.complaints(value)) == [complaint]


def test_every_command_that_has_json_has_a_table():
    from subtune.cli.main import build_parser

    def commands(parser: Any, name: str) -> Any:
        for action in parser._actions:
            if "--json" in action.option_strings:
                yield name
            for child, below in (action.choices or {}).items() if action.dest == "==SUPPRESS==" else ():
                yield from commands(below, f"{name} {child}".strip())

    assert set(commands(build_parser(), "")) <= {title.split(",")[0] for title in TABLES}

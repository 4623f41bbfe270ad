"""Every command as users run it, on small models; and what it says when they get something wrong."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest

from subtune import models
from subtune.cli import main
from subtune.core.account import ACCOUNT_NAME
from subtune.core.manifest import LIBRARY_NAME, MANIFEST_NAME, TRACE_NAME, WEIGHTS_NAME
from subtune.frontends.onnx.reference import onnxruntime_reference
from subtune.verification.verify import output_error

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-c", "import sys; from subtune.cli import main; sys.exit(main())"]
Compiled = tuple[Path, str]


def call(*arguments: object, cwd: Path = ROOT) -> tuple[str, str]:
    """stdout and stderr of a command that must succeed; its home, and so its default database, is `cwd`."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(cwd), "XDG_CACHE_HOME": str(cwd / "cache")}
    done = subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, env=env)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr


def call_again(*arguments: object, cwd: Path) -> tuple[str, str]:
    """As `call`, in this process: for commands of which another call is a process of its own, which takes seconds."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.chdir(cwd)
        patch.setenv("HOME", str(cwd))
        patch.setenv("XDG_CACHE_HOME", str(cwd / "cache"))
        code = main([*map(str, arguments)])
    assert code == 0, err.getvalue()
    assert "Traceback" not in err.getvalue()
    return out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def model(place: Path) -> Path:
    """The reduced MLP, as `zoo build` writes it."""
    sizes = ("--set", "image=16", "--set", "hidden=32")
    out, _ = call_again("zoo", "build", "mlp", "-o", place / "mlp.onnx", "--batch", 4, *sizes, cwd=place)
    assert out == f"wrote {place / 'mlp.onnx'}\n"
    return place / "mlp.onnx"


@pytest.fixture(scope="module")
def compiled(place: Path, model: Path) -> Compiled:
    """An artifact under its default name with its database in the default place, and what the command printed."""
    out, err = call("compile", model, "--topk", 2, "--threads", 2, "--budget", "1h", cwd=place)
    assert err == ""
    return place / "mlp.subtune", out


# -- the commands ------------------------------------------------------------------------------------------


def test_zoo(place: Path, model: Path) -> None:
    out, _ = call("zoo", "list", cwd=place)
    assert [line.split()[0] for line in out.splitlines()] == [*models.names(), *models.quantised_names()]
    built = onnx.load(model)
    assert built.SerializeToString() == models.reduced("mlp").SerializeToString()
    call_again(
        "zoo", "build", "squeezenet", "-o", place / "s.onnx", "--dtype", "float16", "--set", "width=0.25", cwd=place
    )
    assert onnx.load(place / "s.onnx").graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16


def test_compile(place: Path, compiled: Compiled, model: Path) -> None:
    artifact, out = compiled
    assert sorted(file.name for file in artifact.iterdir()) == sorted(
        [LIBRARY_NAME, WEIGHTS_NAME, MANIFEST_NAME, ACCOUNT_NAME]
    )
    assert "agrees with ONNX Runtime" in out
    assert f"wrote {artifact.name}" in out
    options = ("--topk", 2, "--threads", 2, "--trace", "--json")
    again, _ = call_again("compile", model, "-o", "again.subtune", *options, cwd=place)
    report = json.loads(again)
    assert report["is_interrupted"] is False
    assert report["failures"] == {}
    assert report["default_s"] >= report["tuned_s"] > 0
    assert all(row["name"] in out and row["candidate"] in out for row in report["rows"])
    first, second = (json.loads((place / n / MANIFEST_NAME).read_text()) for n in (artifact.name, "again.subtune"))
    assert first["subgraphs"] == second["subgraphs"]
    assert all(s["measured_hash"] == s["linked_hash"] for s in first["subgraphs"])
    shas = [{one["name"]: one["sha256"] for one in each["files"]} for each in (first, second)]
    assert shas[1][TRACE_NAME]
    assert shas[1][LIBRARY_NAME] == shas[0][LIBRARY_NAME], "a second library leaves the first as it is"
    slices = _traced(place, place / "again.subtune")
    kernels = {one["name"] for one in second["subgraphs"]}
    assert {name for one in slices for name in one["name"].split(" + ")} == kernels


def _traced(place: Path, artifact: Path) -> list[Any]:
    out, _ = call_again("run", artifact, "--trace", "trace.json", cwd=place)
    assert "wrote trace.json" in out
    return [one for one in json.loads((place / "trace.json").read_text())["traceEvents"] if one["ph"] == "X"]


def test_run(place: Path, compiled: Compiled, model: Path) -> None:
    artifact, _ = compiled
    (name, array), *_ = models.example_inputs(onnx.load(model)).items()
    np.save(place / "x.npy", array)
    out, err = call("run", artifact, "--input", f"{name}=x.npy", "--output", "y.npz", "--check", cwd=place)
    assert err == ""
    reference = onnxruntime_reference(str(model))
    assert reference is not None
    with np.load(place / "y.npz") as got:
        for key, expected in reference({name: array}).items():
            assert output_error(key, got[key], expected).is_within
            assert f"{key}: float32{list(expected.shape)}" in out
    out, err = call_again("run", artifact, "--json", "--threads", 1, cwd=place)
    assert json.loads(out)["outputs"][0]["shape"] == [4, 10]
    assert "random arrays" in err


def test_bench(place: Path, compiled: Compiled) -> None:
    artifact, _ = compiled
    out, _ = call("bench", artifact, "--against", "onnxruntime,default", "--rounds", 1, "--json", cwd=place)
    report = json.loads(out)
    assert [row["framework"] for row in report["rows"]] == ["subtune", "onnxruntime", "default"]
    assert all(row["median_s"] > 0 and row["ratio"] > 0 for row in report["rows"])
    assert report["failures"] == {}
    out, _ = call_again("bench", artifact, "--against", "none", "--rounds", 1, "--threads", 1, cwd=place)
    assert "subtune" in out
    assert "onnxruntime" not in out


def test_bench_of_a_model_compiles_it_first(place: Path, compiled: Compiled, model: Path) -> None:
    out, _ = call_again("bench", model, "--against", "onnxruntime", "--rounds", 1, "--threads", 2, cwd=place)
    assert "onnxruntime" in out
    assert not list(place.glob(".*")), "it leaves nothing behind"


def test_inspect(place: Path, model: Path) -> None:
    out, _ = call("inspect", model, "--dot", "g.dot", "--svg", "g.svg", cwd=place)
    assert "matmul" in out
    assert (place / "g.dot").read_text().startswith("digraph")
    assert ElementTree.parse(place / "g.svg").getroot().tag.endswith("svg")
    out, _ = call_again("inspect", "zoo:mlp?image=16&hidden=32&batch=4", "--json", cwd=place)
    assert json.loads(out)


def test_report(place: Path, compiled: Compiled) -> None:
    artifact, _ = compiled
    out, _ = call("report", artifact, "--json", cwd=place)
    account = json.loads(out)
    manifest = json.loads((artifact / MANIFEST_NAME).read_text())
    assert {one["name"] for one in account["subgraphs"]} <= {one["name"] for one in manifest["subgraphs"]}
    for module in ("altair", "vl_convert"):
        pytest.importorskip(module)
    out, _ = call("report", artifact, cwd=place)
    assert out.startswith("wrote mlp.html: ")
    assert "<title>" in (place / "mlp.html").read_text(encoding="utf-8")


def test_device(place: Path) -> None:
    out, _ = call("device", "--json", "--threads", 3, cwd=place)
    data = json.loads(out)
    assert data["threads"] == 3
    (place / "device.json").write_text(json.dumps({"name": data["name"], "l2_bytes": 123 * 1024}))
    out, _ = call_again("device", "--device", "device.json", cwd=place)
    assert "-123K-" in out


def test_db(place: Path, compiled: Compiled, tmp_path: Path) -> None:
    out, _ = call("db", "list", "--json", cwd=place)
    records = json.loads(out)
    assert len(records) >= 2  # of what ships; alternatives are among them where they might have won
    out, _ = call_again("db", "list", cwd=place)
    assert all(record["workload_key"] in out for record in records)
    key = records[0]["workload_key"]
    out, _ = call_again("db", "show", key, "--json", cwd=place)
    shown = json.loads(out)
    assert shown["workload"] == key
    assert len(shown["measurements"]) == records[0]["tried"]
    out, _ = call_again("db", "export", tmp_path / "ms", "--threads", 2, "--json", cwd=place)
    exported = json.loads(out)
    assert exported["exported"] + len(exported["skipped"]) == len(records)
    out, _ = call_again("db", "import", tmp_path / "ms", "--db", tmp_path / "other.db", "--json", cwd=place)
    assert json.loads(out)["imported"] == exported["exported"]
    out, _ = call_again("db", "gc", cwd=place)
    assert out == "0 rows deleted\n"
    out, _ = call_again("db", "list", "--db", tmp_path / "empty.db", cwd=place)
    assert out == "no records\n"


def test_compare(place: Path, compiled: Compiled, model: Path) -> None:
    out, _ = call("compare", model, "--topk", 1, "--threads", 2, "--json", cwd=place)
    report = json.loads(out)
    assert len(report["rows"]) == 3
    assert report["op_model_s"] > 0
    assert report["subgraph_model_s"] > 0


# -- mistakes ----------------------------------------------------------------------------------------------

MISTAKES: dict[str, tuple[str, str]] = {
    "a model that is not there": ("compile {tmp}/none.onnx", "none.onnx"),
    "an empty model": ("compile {tmp}/empty.onnx", "empty"),
    "a text file": ("compile {tmp}/text.onnx", "text.onnx"),
    "a cut off model": ("inspect {tmp}/cut.onnx", "cut.onnx"),
    "a directory": ("compile {tmp}/folder", "folder"),
    "an artifact": ("compile {artifact}", "compiled already"),
    "a shape of the wrong rank": ("compile {model} --shape input=1,2", "4 dimensions"),
    "a shape of no input": ("compile {model} --shape inptu=4,16,16,3", "inptu"),
    "a shape that is none": ("inspect {model} --shape input=four", "not a positive integer"),
    "a zoo model that is none": ("compile zoo:resnet19", "did you mean"),
    "a zoo argument that is none": ("inspect zoo:mlp?depth=3", "depth"),
    "a target that is none": ("compile {model} --target pdp11", "pdp11"),
    "a GPU that is none": ("compile {model} --target sm_9", "sm_90a"),
    "a duration that is none": ("compile {model} --budget soon", "is not a duration"),
    "no candidates": ("compile {model} --topk 0", "whole number above zero"),
    "an output in the way": ("compile {model} -o {tmp}/text.onnx", "in the way"),
    "an output nowhere": ("compile {model} -o {tmp}/no/where.subtune", "does not exist"),
    "a device file that is none": ("compile {model} --device {tmp}/text.onnx", "device description"),
    "a database that is a directory": ("compile {model} --db {tmp}/folder -o {tmp}/m.subtune", "is a directory"),
    "an artifact that is not there": ("run {tmp}/none.subtune", "no artifact"),
    "an artifact that is a model": ("run {model}", "not an artifact"),
    "an artifact without its library": ("run {tmp}/incomplete.subtune", "incomplete"),
    "an artifact cut short": ("run {tmp}/short.subtune", "damaged"),
    "an artifact with a changed byte": ("run {tmp}/changed.subtune --check", "SHA-256"),
    "an artifact whose manifest is cut": ("bench {tmp}/manifest.subtune --rounds 1", "damaged"),
    "an input that is none": ("run {artifact} --input z={tmp}/x.npy", "unknown input z"),
    "an input of the wrong shape": ("run {artifact} --input input={tmp}/x.npy", "has shape"),
    "outputs that cannot be written": (
        "run {artifact} --input input={tmp}/good.npy --output {tmp}/no/y.npz",
        "cannot write",
    ),
    "a framework that is none": ("bench {artifact} --against pytorch", "unknown framework"),
    "a bench of nothing": ("bench {tmp}/none.onnx", "none.onnx"),
    "a zoo model to build that is none": ("zoo build vgg17 -o {tmp}/v.onnx", "did you mean"),
    "a dtype that is none": ("zoo build mlp -o {tmp}/v.onnx --dtype int4", "int4"),
    "a place to build that is none": ("zoo build lstm -o {tmp}/no/l.onnx", "cannot write"),
    "a report of a model": ("report {model}", "not an artifact"),
    "a report of nothing": ("report {tmp}/none.subtune", "no artifact"),
    "a trace of what was not compiled for it": (
        "run {artifact} --input input={tmp}/good.npy --trace {tmp}/t.json",
        "subtune compile --trace",
    ),
    "a trace nowhere": ("run {artifact} --trace {tmp}/no/t.json", "cannot write"),
    "a picture nowhere": ("inspect {model} --svg {tmp}/no/g.svg", "cannot write"),
    "a workload that is none": ("db show 0123456789abcdef --db {tmp}/t.db", "0123456789abcdef"),
    "an import of nothing": ("db import {tmp}/folder --db {tmp}/t.db", "folder"),
    "an export over a file": ("db export {tmp}/text.onnx --db {tmp}/t.db", "text.onnx"),
    "a processor that is none": ("device --target pdp11", "pdp11"),
    "a device in the open net": ("compile {model} --remote 8.8.8.8:9090", "8.8.8.8 is a public address"),
    "a push to the open net": ("push {artifact} --remote 8.8.8.8:9090", "8.8.8.8 is a public address"),
    "a push of nothing": ("push {tmp}/none.subtune --remote 127.0.0.1:1", "no artifact"),
    "a push of what is damaged": ("push {tmp}/changed.subtune --remote 127.0.0.1:1", "SHA-256"),
    "a push to nobody": ("push {artifact} --remote 127.0.0.1:1", "cannot be reached"),
    "a comparison of nothing": ("compare {tmp}/none.onnx", "none.onnx"),
    "a command that is none": ("fly", "invalid choice"),
}


@pytest.fixture
def broken(compiled: Compiled, model: Path, tmp_path: Path) -> Callable[[str], list[str]]:
    """Everything that `MISTAKES` name, and their templates filled in."""
    artifact, _ = compiled
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.onnx").touch()
    (tmp_path / "text.onnx").write_text("not a model, but a text file\n")
    (tmp_path / "cut.onnx").write_bytes(model.read_bytes()[:-1000])
    np.save(tmp_path / "x.npy", np.zeros((2, 2), "float32"))
    np.save(tmp_path / "good.npy", np.zeros((4, 16, 16, 3), "float32"))
    for name in ("incomplete", "short", "changed", "manifest"):
        shutil.copytree(artifact, tmp_path / f"{name}.subtune")
    (tmp_path / "incomplete.subtune" / LIBRARY_NAME).unlink()
    weights = tmp_path / "short.subtune" / WEIGHTS_NAME
    weights.write_bytes(weights.read_bytes()[:-1])
    weights = tmp_path / "changed.subtune" / WEIGHTS_NAME
    weights.write_bytes(b"\x7f" + weights.read_bytes()[1:])
    manifest = tmp_path / "manifest.subtune" / MANIFEST_NAME
    manifest.write_text(manifest.read_text()[:-100])
    return lambda text: text.format(tmp=tmp_path, model=model, artifact=artifact).split()


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_cost_one_line(
    mistake: str, broken: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    template, expected = MISTAKES[mistake]
    arguments = broken(template)
    before = {path.name for path in tmp_path.iterdir()}
    try:
        code = main(arguments)
    except SystemExit as e:  # argparse's way
        code = int(e.code or 0)
    out, err = capfd.readouterr()
    assert code == 2, err
    assert out == ""
    assert err.startswith("subtune: error: ")
    assert err.count("\n") == 1
    assert expected in err
    left = {path.name for path in tmp_path.iterdir()} - before
    assert not [name for name in left if name.endswith(".subtune") or name.startswith(".")], "nothing half-made stays"


def test_a_mistake_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, "compile", tmp_path / "none.onnx"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr

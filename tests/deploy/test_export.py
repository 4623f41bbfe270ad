"""`subtune export`: wheels and directories that Python uses, what is reported, what is refused."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

from subtune.artifact import load
from subtune.artifact import manifest as manifests
from subtune.cli import main
from subtune.core.errors import ArtifactError
from subtune.deploy import export_standalone, export_wheel
from subtune.deploy.loader import Model, ModelError
from subtune.deploy.wheel import Package
from tests.artifact.dynamic_model import arrays

pytestmark = pytest.mark.usefixtures("exports")  # which skips where there is no C compiler

USE = """
import sys, json, numpy as np
import {name}
assert not any(name in sys.modules for name in ("tvm", "tvm_ffi", "subtune"))
for missing in ("tvm", "tvm_ffi", "subtune"):
    try:
        __import__(missing)
    except ImportError:
        continue
    sys.exit(missing + " is here")
model = {name}.load()
with np.load(sys.argv[1]) as inputs:
    np.savez(sys.argv[2], **model.run(dict(inputs)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small", "dynamic"])
def test_a_wheel_runs_in_an_empty_environment(small_artifact, dynamic_artifact, tmp_path, name):
    artifact = small_artifact if name == "small" else dynamic_artifact
    inputs = {"x": np.random.default_rng(0).random((4, 32), np.float32)} if name == "small" else arrays(2, 4, 3)
    report = export_wheel(artifact, tmp_path / "wheels", name="my_model", version="2.1")
    wheel = Path(report.path)
    assert wheel.name.startswith("my_model-2.1-py3-none-manylinux_2_")
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", "--no-deps", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    for package in ("numpy", "numpy.libs"):  # as installed from an index
        here = Path(str(importlib.util.find_spec("numpy").origin)).parents[1] / package
        if here.is_dir():
            (site / package).symlink_to(here)
    np.savez(tmp_path / "in.npz", **inputs)
    command = [str(python), "-I", "-c", USE.format(name="my_model"), tmp_path / "in.npz", tmp_path / "out.npz"]
    subprocess.run(list(map(str, command)), check=True, env={})
    with np.load(tmp_path / "out.npz") as outputs:
        for key, expected in load(artifact).run(inputs).items():
            np.testing.assert_array_equal(outputs[key], expected)


def test_the_record_of_a_wheel_is_right(small_artifact, tmp_path):
    import base64
    import hashlib

    report = export_wheel(small_artifact, tmp_path)
    with zipfile.ZipFile(report.path) as wheel:
        assert wheel.testzip() is None
        lines = wheel.read("small-1.0.dist-info/RECORD").decode().splitlines()
        names = [line.rsplit(",", 2)[0] for line in lines]
        assert sorted(names) == sorted(wheel.namelist())
        for name, digest, size in (line.rsplit(",", 2) for line in lines[:-1]):
            data = wheel.read(name)
            found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == (f"sha256={found}", len(data))
        metadata = wheel.read("small-1.0.dist-info/METADATA").decode()
    assert "Name: small\nVersion: 1.0\n" in metadata
    assert metadata.count("Requires-Dist") == 1
    assert "Requires-Dist: numpy\n" in metadata
    assert report.beside_weights_bytes < 30 << 20
    assert report.startup_s > 0


def test_traces_stay_behind(exports, small_artifact):
    """What was exported is as if it had not been compiled for them."""
    folder = exports / "small" / "model"
    assert manifests.read(folder) == manifests.read(small_artifact)
    assert sorted(one.name for one in folder.iterdir()) == sorted(one.name for one in small_artifact.iterdir())


class TestLoader:
    """The file that is shipped, here beside subtune."""

    @pytest.mark.parametrize("instance", [(1, 0, 1), (2, 4, 3), (4, 8, 5)])
    def test_it_gives_what_the_artifact_gives(self, exports, dynamic_artifact, instance):
        model = Model(exports / "dynamic" / "model", exports / "dynamic" / "lib")
        inputs = arrays(*instance)
        expected = load(dynamic_artifact).run(inputs)
        found = model.run(inputs)
        assert list(found) == list(expected)
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array)
        turned = np.asfortranarray(inputs["x"])
        np.testing.assert_array_equal(model.run({**inputs, "x": turned})["y"], expected["y"])

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"x": np.zeros((2, 3, 5), "f")}, "axis 2 of input x is 5, and should be 4"),
            ({"x": np.zeros((3, 3, 4), "f")}, "axis 0 of input cache is 2, and should be 3"),
            ({"x": np.zeros((2, 6, 4), "f"), "mask": np.zeros((2, 10), "l")}, "seq is 6, and the model was not"),
            ({"x": np.zeros((2, 3, 4))}, "input x is float64 of 3 axes; the model takes float32 of 3"),
            ({"x": np.zeros((2, 3), "f")}, "input x is float32 of 2 axes; the model takes float32 of 3"),
            ({"z": np.zeros(1)}, "the model takes x, cache, mask, and was given x, cache, mask, z"),
        ],
    )
    def test_what_does_not_fit_is_a_sentence(self, exports, change, message):
        model = Model(exports / "dynamic" / "model", exports / "dynamic" / "lib")
        with pytest.raises(ModelError, match=message):
            model.run({**arrays(2, 4, 3), **change})

    def test_there_is_no_model(self, exports, tmp_path):
        with pytest.raises(ModelError, match="is no artifact"):
            Model(tmp_path, exports / "dynamic" / "lib")


def test_the_command_reports(small_artifact, tmp_path, capsys):
    folder = tmp_path / "out"
    assert main(["export", str(small_artifact), "--standalone", str(folder), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["form"] == "standalone"
    files = [file for file in folder.rglob("*") if file.is_file()]
    total = sum(file.stat().st_size for file in files)
    assert report["beside_weights_bytes"] + report["weights_bytes"] == total
    assert report["weights_bytes"] == (small_artifact / "weights.bin").stat().st_size
    assert main(["export", str(small_artifact), "--standalone", str(folder)]) == 0  # in the place of the first
    assert "its first result" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    page = (folder / "README.md").read_text()
    assert "| input | x | float32 | [4, 32] |" in page


def test_something_else_is_not_replaced(small_artifact, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("today")
    with pytest.raises(ArtifactError, match="is in the way: it is not what an export wrote"):
        export_standalone(small_artifact, tmp_path / "mine")
    with pytest.raises(ArtifactError, match=r"the directory .* does not exist"):
        export_standalone(small_artifact, tmp_path / "no" / "place")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_failure_leaves_nothing(small_artifact, tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "false")
    for export in (export_standalone, export_wheel):
        with pytest.raises(ArtifactError, match="the loader cannot be built: false says"):
            export(small_artifact, tmp_path / "out")
        assert [path.name for path in tmp_path.rglob("*") if path.name != "out"] == []
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(ArtifactError, match="no-such-compiler does not start"):
        export_standalone(small_artifact, tmp_path / "other")


@pytest.mark.parametrize(("name", "version"), [("a-b", "1.0"), ("1a", "1.0"), ("", "1.0"), ("a", "one"), ("a", "1.0-")])
def test_names_and_versions_that_no_package_has(name, version):
    with pytest.raises(ArtifactError, match=r"is no (name|version) of a package"):
        Package(name, version)


def test_options_of_a_wheel_alone(small_artifact, tmp_path, capsys):
    assert main(["export", str(small_artifact), "--standalone", str(tmp_path / "d"), "--name", "x"]) == 2
    assert "are of a Python package" in capsys.readouterr().err


def test_what_runs_in_a_virtual_machine_is_refused(small_artifact, tmp_path, monkeypatch):
    from dataclasses import replace

    from subtune.deploy.runtime_files import check_exportable

    manifest = load(small_artifact).manifest
    with pytest.raises(ArtifactError, match="runs in TVM's virtual machine"):
        check_exportable(small_artifact, replace(manifest, memory=replace(manifest.memory, takes_addresses=False)))
    with pytest.raises(ArtifactError, match="is for a GPU"):
        check_exportable(small_artifact, replace(manifest, kind="cuda"))

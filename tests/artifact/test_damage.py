"""Damaged and forged artifacts are refused in one sentence, or give the right result: never a crash, never another."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from subtune.artifact import load
from subtune.artifact import manifest as manifests
from subtune.cli import main
from subtune.core.errors import ArtifactError
from subtune.core.manifest import LIBRARY_NAME, MANIFEST_NAME, WEIGHTS_NAME, FileEntry

ROOT = Path(__file__).parents[2]
EDITS = 400


def with_topk() -> onnx.ModelProto:
    """topk(x @ w, 3), which Relax's virtual machine runs: x float32[4, 32] -> values, indices."""
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((32, 16), dtype=np.float32), "w")
    k = numpy_helper.from_array(np.array([3], np.int64), "k")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["xw"]), helper.make_node("TopK", ["xw", "k"], ["v", "i"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 32])]
    outputs = [
        helper.make_tensor_value_info("v", TensorProto.FLOAT, [4, 3]),
        helper.make_tensor_value_info("i", TensorProto.INT64, [4, 3]),
    ]
    graph = helper.make_graph(nodes, "topk", inputs, outputs, [weight, k])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    return model


def after_edits(folder: Path, results: Path, *options: str) -> dict[str, str]:
    """What came of each of EDITS edits, by what it was; they run in a process of their own."""
    command = [sys.executable, "-m", "tests.artifact.damage", str(folder), str(results), "0", str(EDITS), *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"exit code {done.returncode} after {lines[-1:]}: {done.stderr[-2000:]}"
    edits = {line["seed"]: line["edit"] for line in lines if "edit" in line}
    return {f"{line['seed']}: {edits[line['seed']]}": line["outcome"] for line in lines if "outcome" in line}


@pytest.mark.parametrize("kind", ["machine code", "virtual machine"])
def test_an_edited_manifest_is_refused_or_means_the_same(build_artifact, own_artifact, tmp_path, kind):
    """The virtual machine's arguments have an order and places in the arena that only its program knows."""
    folder = own_artifact
    if kind == "virtual machine":
        folder = tmp_path / "topk.subtune"
        assert not build_artifact(with_topk(), folder).manifest.memory.takes_addresses
    x = np.random.default_rng(0).standard_normal((4, 32), dtype=np.float32)
    np.savez(tmp_path / "results.npz", x=x, **load(folder).run({"x": x}))
    found = after_edits(folder, tmp_path / "results.npz", *(["plain"] if kind == "virtual machine" else []))
    assert len(found) == EDITS
    assert not {edit: outcome for edit, outcome in found.items() if outcome == "WRONG"}
    assert sum(outcome.startswith("refused") for outcome in found.values()) > EDITS // 2
    assert all(len(outcome.splitlines()) == 1 for outcome in found.values())


def test_every_changed_byte_of_a_manifest_is_found(own_artifact):
    file = own_artifact / MANIFEST_NAME
    original, rng = file.read_bytes(), random.Random(0)
    for _ in range(200):
        at = rng.randrange(len(original))
        changed = bytearray(original)
        changed[at] ^= 1 << rng.randrange(8)
        file.write_bytes(changed)
        if json.loads(original) != tolerant(changed):
            with pytest.raises(ArtifactError):
                manifests.read(own_artifact)


def tolerant(text: bytes) -> Any:
    """The JSON value of `text`; None where it has none."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def reseal(folder: Path, name: str) -> None:
    """Give the manifest the size and the SHA-256 that the file has now, as a forger would."""
    data = json.loads((folder / MANIFEST_NAME).read_text())
    for said in data["files"]:
        if said["name"] == name:
            said["nbytes"] = (folder / name).stat().st_size
            said["sha256"] = manifests.sha256_of(folder / name)
    fields = {field: value for field, value in data.items() if field not in ("format", "checksum")}
    (folder / MANIFEST_NAME).write_text(manifests.to_text(fields))


@pytest.mark.skipif(sys.platform != "linux", reason="libraries are of another format")
@pytest.mark.parametrize("part", [0, 10, 63, 64, 1000, -1, -100, -5000])
def test_a_library_that_ends_early_is_refused(own_artifact, part):
    library = own_artifact / LIBRARY_NAME
    os.truncate(library, part if part >= 0 else library.stat().st_size + part)
    reseal(own_artifact, LIBRARY_NAME)
    with pytest.raises(ArtifactError, match=r"model\.so (is damaged|cannot be loaded)"):
        load(own_artifact)


@pytest.mark.skipif(sys.platform != "linux", reason="libraries are of another format")
def test_a_library_with_another_header_is_refused(own_artifact):
    library = own_artifact / LIBRARY_NAME
    original = library.read_bytes()
    changes = {4: b"\x01", 5: b"\x02", 16: b"\x01\x00", 32: struct.pack("<Q", 1 << 60), 40: struct.pack("<Q", 1 << 40)}
    for at, value in changes.items():
        library.write_bytes(original[:at] + value + original[at + len(value) :])
        reseal(own_artifact, LIBRARY_NAME)
        with pytest.raises(ArtifactError, match=r"model\.so is damaged: it"):
            load(own_artifact)


def test_a_changed_library_is_found_without_being_asked(own_artifact):
    content = bytearray((own_artifact / LIBRARY_NAME).read_bytes())
    content[len(content) // 2] ^= 1
    (own_artifact / LIBRARY_NAME).write_bytes(content)
    with pytest.raises(ArtifactError, match=r"model\.so is damaged: its SHA-256 differs"):
        load(own_artifact)


@pytest.mark.parametrize("name", ["../model.so", "/etc/passwd", "..", "", "a/b", "a\\b", "c:model.so", "a\0b"])
def test_names_of_files_stay_in_the_directory(own_artifact, name):
    data = manifests.encode(manifests.read(own_artifact))
    data["files"].append({"name": name, "nbytes": 1, "sha256": "0" * 64})
    (own_artifact / MANIFEST_NAME).write_text(manifests.to_text(data))
    with pytest.raises(ArtifactError, match="is not the name of a file in the artifact's directory"):
        manifests.read(own_artifact)


def test_links_to_files_outside_are_refused(own_artifact, tmp_path):
    (own_artifact / WEIGHTS_NAME).rename(tmp_path / "elsewhere")
    (own_artifact / WEIGHTS_NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match=r"weights\.bin is a link to a file outside of the artifact"):
        load(own_artifact)


def test_the_writer_refuses_what_contradicts_itself(own_artifact):
    manifest = manifests.read(own_artifact)
    with pytest.raises(AssertionError, match="the manifest contradicts itself: the arena"):
        manifests.write(own_artifact, replace(manifest, memory=replace(manifest.memory, bound_nbytes=1 << 30)))
    with pytest.raises(AssertionError, match="two of the files have the name"):
        manifests.write(own_artifact, replace(manifest, files=(*manifest.files, FileEntry("model.so", 1, "0" * 64))))


def test_inspect_checks_every_file(own_artifact, capsys):
    assert main(["inspect", "--check", str(own_artifact)]) == 0
    assert "all as they were written" in capsys.readouterr().out
    content = bytearray((own_artifact / WEIGHTS_NAME).read_bytes())
    content[7] ^= 1
    (own_artifact / WEIGHTS_NAME).write_bytes(content)
    assert main(["inspect", str(own_artifact)]) == 0
    assert main(["inspect", "--check", str(own_artifact)]) == 2
    assert "weights.bin is damaged: its SHA-256 differs" in capsys.readouterr().err
    (own_artifact / LIBRARY_NAME).write_bytes(b"\0" * (own_artifact / LIBRARY_NAME).stat().st_size)
    assert main(["inspect", "--check", str(own_artifact)]) == 2
    assert "weights.bin are damaged: their SHA-256 differ" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="no umask")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o755), (0o077, 0o700), (0o002, 0o775)])
def test_the_umask_says_who_may_read(build_artifact, tmp_path, umask, mode):
    from tests.small_model import small_onnx

    before = os.umask(umask)
    try:
        build_artifact(small_onnx(), tmp_path / "m.subtune")
    finally:
        os.umask(before)
    assert (tmp_path / "m.subtune").stat().st_mode & 0o777 == mode
    modes = {path.name: path.stat().st_mode & 0o666 for path in (tmp_path / "m.subtune").iterdir()}
    assert set(modes.values()) == {0o666 & ~umask}

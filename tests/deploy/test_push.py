"""Artifacts on a device behind TVM's RPC: what lies there, what a run of it gives, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from subtune.artifact import load, manifest
from subtune.backends.cpu import artifact_there
from subtune.backends.cpu.artifact_there import session_at
from subtune.backends.cpu.lowering.ring import TAKE
from subtune.cli import main
from subtune.core.cache import Cache
from subtune.core.errors import ArtifactError, SubtuneError, VerificationError
from subtune.core.manifest import LIBRARY_NAME, MANIFEST_NAME, WEIGHTS_NAME, FileEntry
from subtune.deploy import push as pushing
from subtune.deploy.push import push
from subtune.driver import compile_model
from subtune.models import reduced
from subtune.runtime.remote import read_remote
from subtune.runtime.triples import llvm_triple_here
from tests.artifact.dynamic_model import write_dynamic
from tests.cli.json_reference import tables
from tests.measure.rpc_server import rpc_server


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with rpc_server(tmp_path_factory.mktemp("server") / "log.txt") as port:
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artifact")
    compile_model(reduced("mlp"), folder / "m.subtune", tune=False, threads=2, database=folder / "t.db")
    return folder / "m.subtune"


def test_what_lies_there_is_the_artifact(artifact, remote, tmp_path):
    found = push(artifact, remote, str(tmp_path / "a" / "b"))
    assert found.path == str(tmp_path / "a" / "b" / "m.subtune")
    assert load(found.path, check=True).inputs == load(artifact).inputs
    assert found.sent_bytes == sum(file.stat().st_size for file in artifact.iterdir())
    assert found.run_s is not None
    assert 0 < found.run_s < 1
    assert found.compared == "its outputs are those of the artifact here, bit for bit"
    assert {file.name for file in Path(found.path).iterdir()} == {file.name for file in artifact.iterdir()}


def test_what_is_there_already_is_not_sent(artifact, remote, tmp_path):
    first = push(artifact, remote, str(tmp_path))
    again = push(artifact, remote, str(tmp_path))
    assert (again.sent_bytes, again.kept_bytes) == (0, first.sent_bytes)
    weights = Path(first.path) / WEIGHTS_NAME
    weights.write_bytes(b"\x7f" + weights.read_bytes()[1:])
    assert push(artifact, remote, str(tmp_path)).sent_bytes == weights.stat().st_size
    assert load(first.path, check=True)


def test_models_of_many_shapes(remote, tmp_path):
    """Which have copies out of the arena, too."""
    write_dynamic(tmp_path / "d.subtune")
    for values in (None, {"batch": 2, "past": 0, "seq": 3}):
        found = push(tmp_path / "d.subtune", remote, str(tmp_path / "there"), values=values)
        assert found.compared.endswith("bit for bit")


def test_the_command(artifact, remote, tmp_path, capsys):
    order = ["push", str(artifact), "--remote", remote, "--to", str(tmp_path)]
    assert main(order) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{remote} has {tmp_path}/m.subtune: sent ")
    assert lines[1].endswith(" ms on 2 threads")
    assert main([*order, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["path"] == f"{tmp_path}/m.subtune"
    assert list(tables()["push"].complaints(printed)) == []


def test_below_the_home_of_the_servers_user(artifact, remote, tmp_path, monkeypatch):
    monkeypatch.setattr(artifact_there.ArtifactThere, "home", lambda _: str(tmp_path))
    assert push(artifact, remote).path == str(tmp_path / "subtune" / "m.subtune")
    assert push(artifact, remote, "models").path == str(tmp_path / "models" / "m.subtune")
    monkeypatch.setattr(artifact_there.ArtifactThere, "home", lambda _: "")
    with pytest.raises(SubtuneError, match="knows no home: say with --to"):
        push(artifact, remote)


def test_wrong_outputs_are_told(artifact, remote, tmp_path, monkeypatch):
    """The files have arrived whole: it is the device that computes something else."""
    run = artifact_there.ArtifactThere.run

    def wrong(*given):
        found = run(*given)
        return replace(found, outputs={name: array + np.float32(0.1) for name, array in found.outputs.items()})

    monkeypatch.setattr(artifact_there.ArtifactThere, "run", wrong)
    with pytest.raises(VerificationError, match="a run there disagrees with the artifact here: output: max abs error"):
        push(artifact, remote, str(tmp_path))


def test_where_this_machine_cannot_run_it_the_models_reference_is_asked(remote, tmp_path, monkeypatch):
    source = "zoo:mlp?image=8&batch=1"
    compile_model(source, tmp_path / "m.subtune", tune=False, threads=1, database=tmp_path / "t.db")
    monkeypatch.setattr(pushing, "missing_features", lambda _: ("neon",))
    found = push(tmp_path / "m.subtune", remote, str(tmp_path / "there"))
    assert "agree with ONNX Runtime: largest relative error" in found.compared
    data = manifest.read(tmp_path / "m.subtune")
    without = replace(data, source=replace(data.source, model="/no/such/model.onnx", sha256="0" * 64))
    manifest.write(tmp_path / "m.subtune", without)
    found = push(tmp_path / "m.subtune", remote, str(tmp_path / "there"))
    assert found.compared.startswith("its outputs are not compared")
    assert found.run_s


def changed(artifact: Path, folder: Path, **fields) -> Path:
    """A copy whose manifest says something else."""
    folder.mkdir()
    for file in artifact.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    manifest.write(folder, replace(manifest.read(folder), **fields))
    return folder


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"triple": "riscv64-linux-gnu"}, "was compiled for riscv64-linux-gnu, and .* is .*; compile it with --remote"),
        ({"triple": "arm64-apple-macosx11.0"}, "only Linux can be pushed to"),
        ({"threads": 3}, "runs on 3 threads, and the server at .* has 2: start it with TVM_NUM_THREADS=3"),
    ],
)
def test_what_is_refused(artifact, remote, tmp_path, fields, said):
    with pytest.raises(ArtifactError, match=said):
        push(changed(artifact, tmp_path / "m.subtune", **fields), remote, str(tmp_path / "there"))
    assert not (tmp_path / "there").exists()


def test_what_wants_more_than_addresses_is_not_run(artifact):
    found = manifest.read(artifact)
    assert pushing._why_not(found) == ""
    vm = replace(found, memory=replace(found.memory, takes_addresses=False))
    assert "virtual machine" in pushing._why_not(vm)
    assert "caches in place" in pushing._why_not(replace(found, caches=(Cache.__new__(Cache),)))


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("8.8.8.8:9090", "8.8.8.8 is a public address"),
        ("127.0.0.1:1", "cannot be reached"),
        ("there", "write host:port"),
    ],
)
def test_mistakes_cost_one_line(artifact, capsys, address, said):
    assert main(["push", str(artifact), "--remote", address]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error


def test_a_place_that_cannot_be_written_to(artifact, remote, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match=r"file/m.subtune/\S+ cannot be written there: may the server write to it"):
        push(artifact, remote, str(tmp_path / "file"))
    assert push(artifact, remote, str(tmp_path / "folder")).run_s, "the server goes on"


def test_what_ends_its_process_does_not_end_the_server(artifact, remote, tmp_path):
    (tmp_path / LIBRARY_NAME).write_bytes(b"no library")
    with (
        pytest.raises(SubtuneError, match=f"{remote} fails: "),
        session_at(read_remote(remote), llvm_triple_here(), 1) as session,
    ):
        session._session.load_module("there is none")
    with (
        pytest.raises(SubtuneError, match="was lost, or what it was asked to do has ended its process"),
        session_at(read_remote(remote), llvm_triple_here(), 1) as session,
    ):
        session._tools[TAKE](session._empty(1), 1 << 46, session._empty(1))  # where nothing is
    with session_at(read_remote(remote), llvm_triple_here(), 1) as session:
        file = tmp_path / LIBRARY_NAME
        entry = FileEntry(LIBRARY_NAME, file.stat().st_size, "0" * 64)
        with pytest.raises(ArtifactError, match="has arrived damaged"):
            session.send(file, str(tmp_path), entry)
        (tmp_path / MANIFEST_NAME).mkdir()
        entry = FileEntry(MANIFEST_NAME, 10, manifest.sha256_of(file))
        with pytest.raises(ArtifactError, match="cannot be replaced there"):
            session.send(file, str(tmp_path), entry)
        assert session.home()

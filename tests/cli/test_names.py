"""Names that no file can have, or that TVM cannot be told, cost one line and exit code 2."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from subtune.cli import main

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="names are bytes on Linux")

LONG = "a" * 300
NOT_UTF8 = os.fsdecode(b"b\xff\xe9.subtune")
MODEL = "zoo:mlp?image=8&batch=2"
RUN = [sys.executable, "-c", "import sys; from subtune.cli import main; sys.exit(main())"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compile", MODEL, "-o", LONG], "File name too long; choose another name"),
        (["compile", MODEL, "-o", "a" * 250], "File name too long"),
        (["compile", MODEL, "-o", NOT_UTF8], "TVM takes UTF-8 paths only; choose another name"),
        (["compile", MODEL, "-o", "loop"], "loop is in the way"),
        (["compile", MODEL, "-o", "loop/m.subtune"], "the directory loop does not exist"),
        (["compile", MODEL, "--no-tune", "-o", "m.subtune", "--db", "loop"], "loop"),
        (["compile", MODEL, "--no-tune", "-o", "m.subtune", "--db", LONG], "cannot use the database"),
        (["compile", MODEL, "--no-tune", "-o", "m.subtune", "--db", f"{LONG}/db"], "cannot use the database"),
        (["compile", MODEL, "--no-tune", "-o", "a\0b"], "cannot write 'a\\x00b': no name has a zero byte"),
        (["compile", MODEL, "--no-tune", "-o", "m.subtune", "--db", "a\0b"], "no name has a zero byte"),
        (["compile", f"{LONG}.onnx"], "File name too long"),
        (["inspect", LONG], "File name too long"),
        (["inspect", MODEL, "--db", "loop"], "loop"),
        (["run", LONG], "File name too long"),
        (["run", "loop"], "there is no artifact at loop"),
        (["run", NOT_UTF8], "there is no artifact at b"),
        (["bench", LONG], "File name too long"),
        (["db", "list", "--db", "loop"], "loop"),
    ],
)
def test_a_name_that_cannot_be(place, capsys, arguments, words):
    assert main(arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    assert words in lines[-1]
    assert lines[-1].startswith("subtune: error: ")
    assert [path.name for path in place.iterdir()] == ["loop"]


def test_an_artifact_moved_where_tvm_cannot_find_it(small_artifact, place, capsys):
    shutil.copytree(small_artifact, place / NOT_UTF8)
    assert main(["inspect", "--check", NOT_UTF8]) == 0
    assert main(["run", NOT_UTF8]) == 2
    assert "TVM takes UTF-8 paths only; rename its directory" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["strict UTF-8 mode", "no UTF-8 mode"])
def test_the_c_locale(small_artifact, place, encoding):
    """Python takes names for UTF-8 there unless told otherwise; then they still lead to the artifact."""
    name = os.fsdecode("é.subtune".encode())
    shutil.copytree(small_artifact, place / name)
    off = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"} if encoding == "no UTF-8 mode" else {}
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "LC_ALL": "C", **off, "PYTHONPATH": root}
    for arguments in (["inspect", "--check", name], ["run", name, "--output", "ö.npz"]):
        done = subprocess.run([*RUN, *arguments], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    done = subprocess.run([*RUN, "compile", MODEL, "-o", "ü/m.subtune"], env=env, capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"subtune: error: cannot write ")

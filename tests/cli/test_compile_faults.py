"""`subtune compile` as a process, disturbed: interrupted, killed, without room, beside another, on a bad database."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
import psutil
import pytest

import subtune
from subtune import models
from subtune.core.errors import ArtifactError, DatabaseError
from subtune.database import Database, sqlite_file
from subtune.driver import compile_model
from subtune.measure import LocalMeasurer
from tests.whole import IS_WHOLE

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-c", "import sys; from subtune.cli import main; sys.exit(main())", "compile"]
WAITING = [
    sys.executable,
    "-c",
    "import signal, sys\nfrom subtune.cli import main\nfrom subtune.database import Database\n"
    "add, before = Database.add_record, [2]\n"
    "def wait_or_add(*args):\n    before[0] -= 1\n"
    "    if before[0] < 0:\n        print('waiting', flush=True)\n        signal.pause()\n    add(*args)\n"
    "Database.add_record = wait_or_add\nsys.exit(main())",
    "compile",
]
"""The same, but it says so and waits for a signal when it has two records: the signal comes before its end."""
Process = subprocess.Popen[str]


@pytest.fixture(scope="module")
def lstm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen small subgraphs: several seconds of tuning."""
    path = tmp_path_factory.mktemp("lstm") / "lstm.onnx"
    onnx.save(models.reduced("lstm"), path)
    return path


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three subgraphs."""
    path = tmp_path_factory.mktemp("mlp") / "mlp.onnx"
    onnx.save(models.reduced("mlp"), path)
    return path


def start(
    model: Path, output: Path, database: Path, *options: str, command: Sequence[str] = COMMAND, **env: str
) -> Process:
    """A process group of its own, as a shell's job: a signal to it is what Ctrl-C in a terminal is."""
    return subprocess.Popen(
        [*command, str(model), "-o", str(output), "--db", str(database), "--threads", "2", *options],
        cwd=ROOT,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: Process) -> tuple[int, str, str]:
    out, err = process.communicate()
    return process.returncode, out, err


def recorded(database: Path) -> set[str]:
    """Keys of the winners that are committed, read as any other process would."""
    if not database.exists():
        return set()
    with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as reader:
        try:
            return {key for (key,) in reader.execute("SELECT key FROM winners")}
        except sqlite3.OperationalError:  # its tables are not there yet
            return set()


def workers_of(process: Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process.pid).children(recursive=True)
    return []


# -- signals -----------------------------------------------------------------------------------------------


def test_ctrl_c_writes_what_was_tuned_and_the_next_run_continues(mlp: Path, tmp_path: Path) -> None:
    output, database = tmp_path / "m.subtune", tmp_path / "t.db"
    process = start(mlp, output, database, "--topk", "2", command=WAITING)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    before = recorded(database)
    workers = workers_of(process)
    os.killpg(process.pid, signal.SIGINT)
    code, out, err = finish(process)
    assert code == 130, err
    assert err == ""
    assert "interrupted: what was tuned by then is in the artifact" in out
    assert not psutil.wait_procs(workers, timeout=300)[1]
    kept = recorded(database)
    assert before == kept
    assert len(kept) == 2
    manifest = subtune.load(output, check=True).manifest
    assert {s.workload for s in manifest.subgraphs if s.measured_hash} == kept
    assert len(kept) < len(manifest.subgraphs)

    code, _, err = finish(start(mlp, output, database, "--topk", "2"))
    assert code == 0, err
    assert kept < recorded(database)
    assert all(s.measured_hash == s.linked_hash for s in subtune.load(output).manifest.subgraphs)


def test_killed_at_random_moments(lstm: Path, tmp_path: Path) -> None:
    output, database = tmp_path / "m.subtune", tmp_path / "t.db"
    rng = random.Random(3)
    before: set[str] = set()
    for _ in range(3 if IS_WHOLE else 2):
        process = start(lstm, output, database, "--topk", "1")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0.3, 4.5))
        workers = workers_of(process)
        before |= recorded(database)
        process.kill()
        process.communicate()
        assert not psutil.wait_procs(workers, timeout=300)[1], "workers outlive the compile"
        with Database(database) as opened:
            present = {record.workload_key for record in opened.list_records()}
        assert before <= present
        if output.exists():
            subtune.load(output, check=True)
        compile_model(lstm, tmp_path / "next.subtune", threads=2, tune=False, verify=False, database=database)
        subgraphs = subtune.load(tmp_path / "next.subtune").manifest.subgraphs
        assert {s.workload for s in subgraphs if s.measured_hash} == {s.workload for s in subgraphs} & present
    code, _, err = finish(start(lstm, output, database, "--topk", "1"))
    assert code == 0, err
    assert before <= recorded(database)
    assert all(s.measured_hash for s in subtune.load(output, check=True).manifest.subgraphs)
    assert not list(tmp_path.glob("*.corrupt-*"))


def test_two_compiles_share_a_database(mlp: Path, tmp_path: Path) -> None:
    database = tmp_path / "t.db"
    options = ("--topk", "1", "--no-verify")
    both = [start(mlp, tmp_path / f"{i}.subtune", database, *options) for i in range(2)]
    for process in both:
        code, _, err = finish(process)
        assert code == 0, err
        assert err == ""
    for i in range(2):
        manifest = subtune.load(tmp_path / f"{i}.subtune", check=True).manifest
        assert all(s.measured_hash for s in manifest.subgraphs)
    assert {s.workload for s in manifest.subgraphs} <= recorded(database)  # and the alternatives that lost


# -- the database ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def filled(small_model: Path, workers: LocalMeasurer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filled") / "t.db"
    compile_model(
        small_model, path.with_name("m.subtune"), topk=1, threads=2, verify=False, database=path, measurer=workers
    )
    assert len(recorded(path)) == 2
    return path


@pytest.mark.parametrize("damage", ["truncated", "not a database", "empty"])
def test_a_damaged_database_does_not_stop_a_compile(
    damage: str,
    filled: Path,
    small_model: Path,
    workers: LocalMeasurer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    database = tmp_path / "t.db"
    content = filled.read_bytes()
    database.write_bytes({"truncated": content[: len(content) // 2], "empty": b""}.get(damage, b"just a text\n" * 500))
    options: dict[str, Any] = {"topk": 1, "threads": 2, "database": database, "measurer": workers}
    report = compile_model(small_model, tmp_path / "m.subtune", **options)
    assert all(row.tuned_s for row in report.rows)
    assert len(recorded(database)) == 2
    assert ("damaged" in caplog.text) == bool(list(tmp_path.glob("t.db.corrupt-*"))) == (damage != "empty")
    subtune.load(tmp_path / "m.subtune", check=True)


def test_a_locked_database_is_an_error_that_says_so(
    filled: Path, small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_S", 0.1)
    database = tmp_path / "t.db"
    database.write_bytes(filled.read_bytes())
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as holder:
        holder.execute("PRAGMA locking_mode=EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DatabaseError, match="locked by another process"):
            compile_model(small_model, tmp_path / "m.subtune", threads=2, database=database)
        assert not (tmp_path / "m.subtune").exists()
    report = compile_model(small_model, tmp_path / "m.subtune", topk=1, threads=2, database=database)
    assert all(row.tuned_s for row in report.rows)


def test_a_read_only_directory(
    filled: Path, small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    database = tmp_path / "t.db"
    database.write_bytes(filled.read_bytes())
    monkeypatch.setattr(sqlite_file.os, "access", lambda path, mode: path != database and path != tmp_path / "none")
    report = compile_model(small_model, tmp_path / "m.subtune", topk=1, threads=2, database=database)
    assert all(row.tuned_s for row in report.rows), "what is in it is used"
    assert "read-only" in caplog.text
    assert database.read_bytes() == filled.read_bytes()
    (tmp_path / "none").mkdir()
    with pytest.raises(DatabaseError, match="cannot be made: its directory is read-only"):
        compile_model(small_model, tmp_path / "n.subtune", threads=2, database=tmp_path / "none" / "t.db")


# -- the disk ----------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB; a model.so alone takes a third of it, the database another."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, leave: int) -> Path:
    """Take all room in `folder` but `leave` bytes."""
    ballast = folder / "ballast"
    free = os.statvfs(folder)
    ballast.write_bytes(b"\0" * max(0, free.f_bavail * free.f_bsize - leave))
    return ballast


def test_the_disk_is_full_where_the_artifact_goes(small_disk: Path, filled: Path, small_model: Path) -> None:
    output = small_disk / "m.subtune"
    for leave in (0, 4096, 24 * 1024):
        ballast = fill(small_disk, leave)
        with pytest.raises(ArtifactError, match=r"No space left|cannot write"):
            compile_model(small_model, output, topk=1, threads=2, database=filled)
        assert [file.name for file in small_disk.iterdir()] == ["ballast"]
        ballast.unlink()
    compile_model(small_model, output, topk=1, threads=2, database=filled)
    subtune.load(output, check=True)


def test_the_disk_is_full_where_the_database_is(
    small_disk: Path, small_model: Path, workers: LocalMeasurer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = small_disk / "t.db"
    options: dict[str, Any] = {"topk": 1, "threads": 2, "measurer": workers}
    with Database(database) as opened:
        ballast = fill(small_disk, 0)
        report = compile_model(small_model, tmp_path / "m.subtune", database=opened, **options)
    assert all(row.tuned_s for row in report.rows)
    assert "full" in caplog.text
    subtune.load(tmp_path / "m.subtune", check=True)
    with pytest.raises(DatabaseError, match="name another with --db"):
        compile_model(small_model, tmp_path / "m.subtune", database=database, **options)
    ballast.unlink()
    compile_model(small_model, tmp_path / "m.subtune", database=database, **options)
    assert len(recorded(database)) == 2


def test_the_disk_is_full_where_the_workers_build(small_disk: Path, small_model: Path, tmp_path: Path) -> None:
    """No kernel can be timed, and the model still ships, with the reasons in the report."""
    ballast = fill(small_disk, 8 * 1024)
    options = ("--topk", "1")
    database, output = tmp_path / "t.db", tmp_path / "m.subtune"
    code, out, err = finish(start(small_model, output, database, *options, TMPDIR=str(small_disk)))
    assert code == 0, err
    assert out.count("not tuned: ") == 2
    assert "Traceback" not in err
    subtune.load(output, check=True)
    ballast.unlink()
    code, out, err = finish(start(small_model, output, database, *options))
    assert code == 0, err
    assert "not tuned" not in out
    assert len(recorded(database)) == 2

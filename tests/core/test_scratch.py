"""Directories that a killed process leaves behind go; those in use stay. Two paths change places in one step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from subtune.artifact import destination
from subtune.artifact.exchange_paths import exchange
from subtune.core import scratch as scratches
from subtune.core.scratch import abandoned, scratch, temporary

needs_locks = pytest.mark.skipif(sys.platform == "win32", reason="no flock")


SIGNALS = [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL] if sys.platform != "win32" else []
SIGNALS = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]  # as `nohup` has it


def ended_by(number: int, code: str, *args: object, **env: str) -> None:
    """Run `code` in a process of its own until it prints a line, and end it by that signal."""
    command = [sys.executable, "-c", code, *map(str, args)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **env}) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        process.send_signal(number)
        assert process.wait(60) == -number


@needs_locks
@pytest.mark.parametrize("number", SIGNALS)
def test_what_a_killed_process_left_goes_at_the_next_start(tmp_path: Path, number: int) -> None:
    code = (
        "import sys, pathlib, time\nfrom subtune.core.scratch import scratch\n"
        "made = scratch('.m.', '.new', pathlib.Path(sys.argv[1]))\n(made.path / 'half').write_text('x')\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    ended_by(number, code, tmp_path)
    (left,) = tmp_path.iterdir()
    assert (left / "half").exists()
    mine = scratch(".m.", ".new", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [mine.path.name]
    mine.remove()
    assert list(tmp_path.iterdir()) == []


@needs_locks
@pytest.mark.parametrize("number", SIGNALS)
def test_what_a_killed_compile_left_goes_at_the_next_start(tmp_path: Path, number: int) -> None:
    """Its measurer's directory, and an artifact half written, of another name."""
    temporary_files, artifacts = tmp_path / "tmp", tmp_path / "artifacts"
    temporary_files.mkdir()
    artifacts.mkdir()
    code = (
        "import sys, pathlib, time\nfrom subtune.artifact.destination import staged\n"
        "from subtune.measure import LocalMeasurer\nmeasurer = LocalMeasurer()\n"
        "with staged(pathlib.Path(sys.argv[1]) / 'one.subtune') as staging:\n"
        "    (staging / 'model.so').write_text('half')\n    print('ready', flush=True)\n    time.sleep(60)\n"
    )
    ended_by(number, code, artifacts, TMPDIR=str(temporary_files))
    assert len(list(temporary_files.iterdir())) == len(list(artifacts.iterdir())) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(temporary_files))
        with temporary(), destination.staged(artifacts / "two.subtune") as staging:
            (staging / "manifest.json").write_text("{}")
    assert list(temporary_files.iterdir()) == []
    assert [path.name for path in artifacts.iterdir()] == ["two.subtune"]


@needs_locks
def test_what_is_in_use_or_not_ours_stays(tmp_path: Path) -> None:
    names = [".m.new", ".m.12345678.newer", ".other.abcdefgh.new", ".m.ABCDEFGH.new"]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / ".m.abcdefgh.new").write_text("a file")
    first, second = (scratch(".m.", ".new", tmp_path) for _ in range(2))
    assert list(abandoned(".m.", ".new", tmp_path)) == []
    kept = {p.name for p in tmp_path.iterdir()}
    assert kept == {*names, ".m.abcdefgh.new", first.path.name, second.path.name}
    first.remove()
    second.remove()


@needs_locks
def test_one_that_another_process_takes_for_abandoned_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was made and not locked yet, when another process that starts came by."""
    taken: list[Path] = []
    lock = scratches._lock

    def come_by(path: Path) -> int | None:
        if not taken:
            taken.append(path)
            assert lock(path) is not None
        return lock(path)

    monkeypatch.setattr(scratches, "_lock", come_by)
    mine = scratch(".m.", ".new", tmp_path)
    assert taken != [mine.path]
    assert mine.lock is not None


def test_a_temporary_place_goes_with_its_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with temporary() as place:
        (place / "file").write_text("x")
        assert place.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_exchange(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "who").write_text(name)
    done = exchange(tmp_path / "a", tmp_path / "b")
    assert ((tmp_path / "a" / "who").read_text(), (tmp_path / "b" / "who").read_text()) == (
        ("b", "a") if done else ("a", "b")
    )
    assert not exchange(tmp_path / "a", tmp_path / "nowhere")
    assert (tmp_path / "a").is_dir()


@pytest.mark.parametrize("atomic", [True, False])
def test_replacing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, atomic: bool) -> None:
    if not atomic:
        monkeypatch.setattr(destination, "exchange", lambda *_: False)
    for name in ("m", "staging"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "who").write_text(name)
    destination._replace(tmp_path / "staging", tmp_path / "m")
    assert (tmp_path / "m" / "who").read_text() == "staging"
    assert {p.name for p in tmp_path.iterdir()} <= {"m", "staging"}


@needs_locks
def test_an_artifact_that_was_set_aside_comes_back(tmp_path: Path) -> None:
    aside = tmp_path / f".m.abcdefgh{destination.OLD}"
    (aside / "m").mkdir(parents=True)
    (aside / "m" / "who").write_text("old")
    destination.recover(tmp_path)
    assert (tmp_path / "m" / "who").read_text() == "old"
    assert os.listdir(tmp_path) == ["m"]

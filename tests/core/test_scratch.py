"""Directories that a killed process leaves behind go; those in use stay. Two paths change places in one step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from subtune.artifact import destination
from subtune.artifact.exchange_paths import exchange
from subtune.core import scratch as scratches
from subtune.core.scratch import abandoned, scratch, temporary

needs_locks = pytest.mark.skipif(sys.platform == "win32", reason="no flock")


def killed(tmp_path: Path) -> Path:
    """What a process has made that ended by SIGKILL."""
    code = (
        "import os, sys, pathlib\nfrom subtune.core.scratch import scratch\n"
        "made = scratch('.m.', '.new', pathlib.Path(sys.argv[1]))\n(made.path / 'half').write_text('x')\n"
        "print(made.path, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    return Path(done.stdout.strip())


@needs_locks
def test_what_a_killed_process_left_goes_at_the_next_start(tmp_path: Path) -> None:
    left = killed(tmp_path)
    assert (left / "half").exists()
    mine = scratch(".m.", ".new", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [mine.path.name]
    mine.remove()
    assert list(tmp_path.iterdir()) == []


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
    aside = tmp_path / ".m.abcdefgh.old"
    (aside / "m").mkdir(parents=True)
    (aside / "m" / "who").write_text("old")
    destination._recover(tmp_path / "m")
    assert (tmp_path / "m" / "who").read_text() == "old"
    assert os.listdir(tmp_path) == ["m"]

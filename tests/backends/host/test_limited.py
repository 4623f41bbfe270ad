"""Work in a child: its errors come back, its crash and its delay are told, and nothing of it stays."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from subtune.backends.host.limited import Unfinished, limited, side_by_side
from subtune.core.errors import ArtifactError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no children are forked elsewhere")


def fail(error: Exception) -> None:
    raise error


class Awkward(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def test_what_it_writes_is_there(tmp_path: Path) -> None:
    limited(lambda: (tmp_path / "x").write_text("done") and None, 60)
    assert (tmp_path / "x").read_text() == "done"


def test_its_errors_are_raised_here() -> None:
    with pytest.raises(ArtifactError, match="no linker"):
        limited(lambda: fail(ArtifactError("no linker")), 60)
    with pytest.raises(RuntimeError, match="Awkward: one and two"):
        limited(lambda: fail(Awkward("one", "two")), 60)


def test_a_crash_is_told() -> None:
    with pytest.raises(Unfinished, match="exit code -9"):
        limited(lambda: os.kill(os.getpid(), signal.SIGKILL), 60)


def test_what_takes_too_long_is_ended() -> None:
    others = set(psutil.Process().children())  # other tests' workers, which live on
    with pytest.raises(Unfinished, match="longer than 0 s"):
        limited(lambda: time.sleep(60), 0.2)
    assert set(psutil.Process().children()) <= others


def test_several_run_at_once(tmp_path: Path) -> None:
    def meet(own: str, other: str) -> None:
        (tmp_path / own).touch()
        while not (tmp_path / other).exists():
            time.sleep(0.01)

    side_by_side([lambda: meet("a", "b"), lambda: meet("b", "a")], 60)


def test_what_one_of_several_raises() -> None:
    others = set(psutil.Process().children())
    with pytest.raises(ArtifactError, match="no linker"):
        side_by_side([lambda: fail(ArtifactError("no linker")), lambda: time.sleep(60)], 60)
    assert set(psutil.Process().children()) <= others

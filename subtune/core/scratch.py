"""Directories for what is being made: a process that is killed leaves them behind, and the next one removes them.

A directory that is in use is locked by the process that made it; the kernel lets go of the lock when that ends, however
it ends, and no process number can be mistaken for another's, not even between containers that share a directory.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there, and nothing removed
    fcntl = None  # type: ignore[assignment]

TEMPORARY, TEMPORARY_END = "subtune-", ".tmp"
"""How the names of subtune's directories among the system's temporary files begin and end."""

_RANDOM = "[a-z0-9_]{8}"
"""What `tempfile.mkdtemp` puts between the prefix and the suffix."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """A directory of this process's own. `lock` is the descriptor that keeps it."""

    path: Path
    lock: int | None

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self.lock is not None:
            os.close(self.lock)


def scratch(prefix: str, suffix: str = "", parent: Path | None = None) -> Scratch:
    """A new private directory `prefix...suffix` in `parent` (default: the system's directory for temporary files).

    Directories of that name whose process is gone are removed first.

    Raises:
        OSError: it cannot be made.
    """
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    for stale in abandoned(prefix, suffix, parent):
        shutil.rmtree(stale, ignore_errors=True)
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, suffix=suffix, dir=parent))
        try:
            lock = _lock(path)
        except BlockingIOError:  # another process takes it for abandoned, and is about to remove it
            continue
        if path.exists():  # nobody has done so before it was locked
            return Scratch(path, lock)
        if lock is not None:
            os.close(lock)


@contextlib.contextmanager
def temporary() -> Iterator[Path]:
    """A directory of subtune's own among the system's temporary files, until the end of the `with`."""
    place = scratch(TEMPORARY, TEMPORARY_END)
    try:
        yield place.path
    finally:
        place.remove()


def abandoned(prefix: str | None, suffix: str, parent: Path) -> Iterator[Path]:
    """Directories that `scratch` made and whose process has ended; each stays locked until the next is asked for.

    Args:
        prefix: None for any.
    """
    if fcntl is None:
        return
    pattern = re.compile((".*" if prefix is None else re.escape(prefix)) + _RANDOM + re.escape(suffix))
    try:
        names = [entry.name for entry in os.scandir(parent) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for name in names:
        if not pattern.fullmatch(name):
            continue
        try:
            lock = _lock(parent / name)
        except BlockingIOError:
            continue
        if lock is None:
            continue
        try:
            yield parent / name
        finally:
            os.close(lock)


def _lock(path: Path) -> int | None:
    """The descriptor that locks the directory; None if it is gone, or locks are not to be had there.

    Raises:
        BlockingIOError: another process has it.
    """
    if fcntl is None:
        return None
    descriptor = None
    try:
        descriptor = os.open(path, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        if isinstance(e, BlockingIOError):
            raise
        return None
    return descriptor

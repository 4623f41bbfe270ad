"""Files that a command writes beside what it prints."""

from __future__ import annotations

import os
from pathlib import Path

from subtune.core.errors import SubtuneError


def check_writable(path: str) -> None:
    """Raise SubtuneError where no file can be written to `path`: before minutes of work, not after."""
    file = Path(path)
    if "\0" in path:
        raise SubtuneError(f"cannot write {path!r}: no name has a zero byte")
    if file.is_dir():
        raise SubtuneError(f"cannot write {path}: it is a directory; name a file")
    if not file.parent.is_dir():
        raise SubtuneError(f"cannot write {path}: the directory {file.parent} does not exist")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise SubtuneError(f"cannot write {path}: no permission")


def write_text(path: str, text: str) -> None:
    """Write a file of UTF-8. Raises SubtuneError."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as e:
        raise SubtuneError(f"cannot write {path}: {e.strerror or e}") from e

"""What a command says of an exception, and which exit code that is."""

from __future__ import annotations

import errno
import os

from subtune.core.errors import SubtuneError

USER, BUG = 2, 1
"""Exit codes: something the user can mend, a bug of subtune."""

_FAULTS_OF_PATHS = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC)
"""Of what the user named, or of where it lies; every other OSError that nobody caught is a bug."""


def explained(error: Exception) -> tuple[str, int]:
    """One line that begins with "error: " or "internal error: ", and the exit code."""
    if isinstance(error, SubtuneError):
        return f"error: {_one_line(error)}", USER
    if isinstance(error, OSError) and error.errno in _FAULTS_OF_PATHS and error.filename:
        return f"error: {os.fsdecode(error.filename)} cannot be used: {error.strerror}", USER
    text = f"{type(error).__name__}: {_one_line(error)}"
    return f"internal error: {text}; this is a bug, rerun with --debug", BUG


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())

"""Where an artifact appears: all of it, or nothing, and never in place of something else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from subtune.artifact.exchange_paths import exchange
from subtune.core.errors import ArtifactError
from subtune.core.manifest import MANIFEST_NAME
from subtune.core.scratch import abandoned, scratch

SUFFIX = ".subtune"
STAGING = ".subtune-new"
OLD = ".subtune-old"
"""Ends of the names of hidden directories beside an artifact: what is being written, what is being replaced."""


def check_destination(path: str | os.PathLike[str]) -> Path:
    """The directory to write to. Raises ArtifactError if nothing can be written there, or something is in the way."""
    folder = Path(path)
    if "\0" in str(folder):
        raise ArtifactError(f"cannot write {str(folder)!r}: no name has a zero byte; choose another name")
    try:
        os.path.abspath(folder).encode()
        obstacle = _obstacle(folder)
    except UnicodeEncodeError as e:
        raise ArtifactError(
            f"cannot write {folder}: TVM takes UTF-8 paths only; choose another name, or set PYTHONUTF8=1 where the "
            "locale has another encoding"
        ) from e
    except OSError as e:
        raise ArtifactError(f"cannot write {folder}: {e.strerror or e}; choose another name") from e
    if obstacle:
        raise ArtifactError(obstacle)
    return folder


def _obstacle(folder: Path) -> str:
    if not folder.parent.is_dir():
        return f"cannot write {folder}: the directory {folder.parent} does not exist"
    if not os.access(folder.parent, os.W_OK):
        return f"cannot write {folder}: no permission to write in {folder.parent}"
    (folder.parent / f".{folder.name}.{8 * 'x'}{STAGING}").exists()  # raises where that name is too long
    if folder.is_dir() and not folder.is_symlink():
        if not any(folder.iterdir()) or (folder / MANIFEST_NAME).is_file():
            return ""
        return f"{folder} is in the way: it is a directory, but no artifact; choose another name"
    if folder.exists() or folder.is_symlink():
        return f"{folder} is in the way: it is not an artifact; choose another name"
    return ""


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A directory to fill: it is put at `folder`, replacing an artifact there, unless the block raises.

    Raises ArtifactError when the disk is full or the place cannot be written.
    """
    recover(folder.parent)
    with writing(folder):
        place = scratch(f".{folder.name}.", STAGING, folder.parent)
    try:
        staging = place.path / folder.name
        with writing(folder):
            staging.mkdir()  # the place is private; this has the mode that the umask says
        yield staging
        with writing(folder):
            _replace(staging, folder)
    finally:
        place.remove()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Inside, what the system refuses is an ArtifactError about `folder`."""
    try:
        yield
    except OSError as e:
        raise ArtifactError(f"cannot write {folder}: {e.strerror or e}; nothing was written") from e


def _replace(staging: Path, folder: Path) -> None:
    """Move the finished directory to its place; an artifact that is there goes only once the new one can come."""
    if not folder.exists():
        staging.rename(folder)
        return
    if exchange(staging, folder):  # the old one is what is thrown away
        return
    old = scratch(f".{folder.name}.", OLD, folder.parent)
    folder.rename(old.path / folder.name)
    try:
        staging.rename(folder)
    except OSError:
        (old.path / folder.name).rename(folder)
        raise
    finally:
        old.remove()


def recover(parent: Path) -> None:
    """Tidy a directory of artifacts after processes that were killed as they wrote there.

    What was half written goes; an artifact that was set aside for a new one that never came is put back.
    """
    for half in abandoned(None, STAGING, parent):
        shutil.rmtree(half, ignore_errors=True)
    for old in abandoned(None, OLD, parent):
        try:
            for aside in list(old.iterdir()):
                if not (parent / aside.name).exists():
                    aside.rename(parent / aside.name)
        except OSError:
            continue  # it stays where it is, for whoever comes next
        shutil.rmtree(old, ignore_errors=True)

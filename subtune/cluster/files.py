"""The files of a compiled kernel, which all have one stem, on their way between machines."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

_LEFT = ".o"
"""What the linker was given is nobody's any more."""


def contents(library: str) -> dict[str, bytes]:
    """The ends of its files' names, and what is in them."""
    path = Path(library)
    beside = path.parent.glob(f"{path.stem}.*")
    return {one.suffix: one.read_bytes() for one in sorted(beside) if one.suffix != _LEFT}


def write(library: str, files: Mapping[str, bytes]) -> None:
    """`library` itself is written last: where it is, all are."""
    path = Path(library)
    for suffix in sorted(files, key=lambda suffix: suffix == path.suffix):
        begun = path.with_suffix(f"{suffix}.begun")
        begun.write_bytes(files[suffix])
        begun.replace(path.with_suffix(suffix))


def local(path: str, folder: Path) -> Path:
    """The name in `folder` of what is `path` on the driver's disk."""
    given = Path(path)
    return folder / f"{hashlib.sha256(str(given.parent).encode()).hexdigest()[:16]}-{given.name}"

"""TVM's executables into shared libraries whose object files pass through memory."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from subtune.backends.host.link import link_shared

_OF_EXPORT = ("lib0.o", "devc.o")
"""`export_library`'s names for the kernels and for the VM's program."""


def export(executable: Any, library: Path, triple: str) -> None:
    """Link `executable` for `triple` into the shared library `library`. Raises ArtifactError."""
    with object_files(library.parent, _OF_EXPORT) as folder:
        link = partial(link_shared, triple=triple)
        executable.export_library(str(library), fcompile=link, workspace_dir=str(folder))


@contextmanager
def object_files(parent: Path, names: Sequence[str]) -> Iterator[Path]:
    """A directory for object files of these names, which lie in memory where the system can do that.

    LLVM ends the whole process when it cannot write an object file (a full disk); memory does not fill up so. What the
    linker writes is safe: it is a process of its own, and its failure an exit code.
    """
    folder = Path(tempfile.mkdtemp(prefix="objects.", dir=parent))
    descriptors = []
    try:
        if hasattr(os, "memfd_create"):
            for name in names:
                descriptors.append(os.memfd_create(name))
                (folder / name).symlink_to(f"/proc/{os.getpid()}/fd/{descriptors[-1]}")
        yield folder
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        shutil.rmtree(folder, ignore_errors=True)

"""Object files into one shared library, with whatever linker the machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from subtune.errors import ArtifactError

_COMPILERS = ("c++", "g++", "clang++", "cc", "gcc", "clang")
_LINKERS = ("ld", "ld.lld", "ld.mold")


def link_command() -> tuple[str, ...]:
    """The program that links and its first arguments: a compiler driver, or a bare linker where there is none."""
    for variable in ("CXX", "CC"):
        if chosen := os.environ.get(variable):
            return (*chosen.split(), "-shared", "-fPIC")
    for name in _COMPILERS:
        if path := shutil.which(name):
            return (path, "-shared", "-fPIC")
    for name in _LINKERS:
        # The code needs libc and libm, which every Python process has loaded already.
        if path := shutil.which(name):
            return (path, "-shared")
    raise ArtifactError(
        f"no linker found: install one of {', '.join((*_COMPILERS, *_LINKERS))}, for example with the package binutils"
    )


def link_shared(output: str, objects: Sequence[str], **_: object) -> None:
    """Link `objects` into the shared library `output`; the signature is that of TVM's `fcompile`."""
    command = [*link_command(), "-o", output, *objects]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as e:
        raise ArtifactError(f"cannot start the linker {command[0]}: {e}") from e
    if done.returncode:
        lines = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()
        # The driver's own last line says only that the linker failed.
        detail = next((line for line in lines if "space left" in line), lines[0])
        raise ArtifactError(f"cannot write {output}: {command[0]} says {detail!r}")

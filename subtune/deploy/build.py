"""The loader in C, compiled against the libraries that it is shipped with."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from subtune.core.errors import ArtifactError

NATIVE = Path(__file__).parent / "native"
"""The loader's sources, and the program `run`, which is `main.c`."""

LIBRARY = "libsubtune.so"
_COMPILERS = ("cc", "gcc", "clang")


def build_loader(include: Path, libraries: Path) -> Path:
    """`libraries`/libsubtune.so, which finds TVM's runtime beside itself.

    Raises:
        ArtifactError: there is no C compiler, or it fails.
    """
    sources = [str(path) for path in sorted(NATIVE.glob("*.c")) if path.name != "main.c"]
    # The runtime registers its functions as it is loaded: nothing names a symbol of it.
    linked = [f"-L{libraries}", "-Wl,--no-as-needed", "-ltvm_runtime", "-ltvm_ffi", "-Wl,-rpath,$ORIGIN"]
    library = libraries / LIBRARY
    _compile(["-shared", "-fPIC", f"-I{include}", f"-I{NATIVE}", *sources, *linked, "-o", str(library)])
    return library


def build_program(include: Path, libraries: Path, program: Path) -> Path:
    """The program `run`, which finds `libraries` at ../lib."""
    # What libsubtune itself needs is found beside it, also by the linker.
    linked = [f"-L{libraries}", "-lsubtune", f"-Wl,-rpath-link,{libraries}", "-Wl,-rpath,$ORIGIN/../lib"]
    _compile([f"-I{include}", str(NATIVE / "main.c"), *linked, "-o", str(program)])
    return program


def _compile(arguments: list[str]) -> None:
    chosen = os.environ.get("CC", "").split() or [path for name in _COMPILERS if (path := shutil.which(name))][:1]
    if not chosen:
        raise ArtifactError(f"the loader cannot be built: install one of {', '.join(_COMPILERS)}, or name one in CC")
    command = [*chosen, "-std=c11", "-D_GNU_SOURCE", "-O2", "-pthread", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as e:
        raise ArtifactError(f"the loader cannot be built: {chosen[0]} does not start: {e.strerror or e}") from e
    if done.returncode:
        raise ArtifactError(f"the loader cannot be built: {chosen[0]} says {done.stderr.strip()[-500:]}")

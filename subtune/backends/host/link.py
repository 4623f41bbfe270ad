"""Object files into one shared library, with whatever linker the machine has, for this machine or for another."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from subtune.core.errors import ArtifactError
from subtune.runtime import triples

_COMPILERS = ("c++", "g++", "clang++", "cc", "gcc", "clang")
_LINKERS = ("ld", "ld.lld", "ld.mold")

# Debian's package lld gives only the linker for Linux a name without its version.
_LD64 = ("ld64.lld", *(f"ld64.lld-{version}" for version in range(22, 13, -1)))

# What ld64.lld wants to know beyond the architecture: the oldest system that may load the library.
_MACOS_VERSION = "11.0"


def link_command(triple: str = "") -> tuple[str, ...]:
    """The program that links for `triple` ("": this machine) and its first arguments.

    A compiler driver, or a bare linker where there is none: the code needs libc and libm, which every Python process
    has loaded already. CXX and CC are asked first; for another machine only if they say that they compile for it.

    Raises:
        ArtifactError: there is none; the message names what to install.
    """
    if triple and not triples.is_here(triple):
        return _cross_command(triple)
    for variable in ("CXX", "CC"):
        if chosen := os.environ.get(variable):
            return (*chosen.split(), "-shared", "-fPIC")
    for name in _COMPILERS:
        if path := shutil.which(name):
            return (path, "-shared", "-fPIC")
    for name in _LINKERS:
        if path := shutil.which(name):
            return (path, "-shared")
    raise ArtifactError(
        f"no linker found: install one of {', '.join((*_COMPILERS, *_LINKERS))}, for example with the package binutils"
    )


def _cross_command(triple: str) -> tuple[str, ...]:
    for variable in ("CXX", "CC"):
        if (chosen := os.environ.get(variable, "").split()) and _compiles_for(chosen, triple):
            return (*chosen, "-shared", "-fPIC")
    architecture, system = triples.architecture(triple), triples.system(triple)
    if system == "linux":
        for driver in ("g++", "gcc"):
            if path := shutil.which(f"{architecture}-linux-gnu-{driver}"):
                return (path, "-shared", "-fPIC")
        if path := shutil.which("ld.lld"):
            return (path, "-shared")
        if path := shutil.which("zig"):
            return (path, "cc", "-target", f"{architecture}-linux-gnu", "-shared", "-fPIC")
        package = architecture.replace("_", "-")
        raise ArtifactError(
            f"no linker for {triple} found: install {architecture}-linux-gnu-gcc (Debian and Ubuntu: the package "
            f"gcc-{package}-linux-gnu), ld.lld (the package lld) or zig, or name a compiler for it in CC"
        )
    if system == "darwin":
        arch = "arm64" if architecture == "aarch64" else architecture
        if path := next((found for name in _LD64 if (found := shutil.which(name))), None):
            version = ("-platform_version", "macos", _MACOS_VERSION, _MACOS_VERSION)
            return (path, "-dylib", "-arch", arch, *version, "-undefined", "dynamic_lookup")
        if path := shutil.which("zig"):
            return (path, "cc", "-target", f"{architecture}-macos", "-shared", "-undefined", "dynamic_lookup")
        raise ArtifactError(f"no linker for {triple} found: install ld64.lld (the package lld) or zig")
    raise ArtifactError(f"libraries for {triple} cannot be linked here; Linux and macOS can be linked for")


def _compiles_for(command: Sequence[str], triple: str) -> bool:
    try:
        done = subprocess.run([*command, "-dumpmachine"], capture_output=True, text=True, errors="replace", check=False)
    except OSError:
        return False
    made = done.stdout.strip()
    return (triples.architecture(made), triples.system(made)) == (triples.architecture(triple), triples.system(triple))


def _within(command: Sequence[str], objects: Sequence[str], triple: str) -> list[str]:
    """What says that objects mean one another, whatever of the same name another library of the process has. Linkers of
    macOS do not have to be told."""
    if len(objects) < 2 or (triples.system(triple) or sys.platform) != "linux":
        return []
    is_driver = not Path(command[0]).name.startswith(("ld", "lld"))
    return ["-Wl,-Bsymbolic" if is_driver else "-Bsymbolic"]


def link_shared(output: str, objects: Sequence[str], triple: str = "", **_: object) -> None:
    """Link `objects` into the shared library `output`; the signature is that of TVM's `fcompile`."""
    linker = link_command(triple)
    command = [*linker, *_within(linker, objects, triple), "-o", output, *objects]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as e:
        raise ArtifactError(f"cannot start the linker {command[0]}: {e}") from e
    if done.returncode:
        lines = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()
        # The driver's own last line says only that the linker failed.
        detail = next((line for line in lines if "space left" in line), lines[0])
        raise ArtifactError(f"cannot write {output}: {command[0]} says {detail!r}")
